"""Which rows of a step use which adapter, on a rank that computes some of them."""

# N rows of this rank, P those of an expert, I inputs and O outputs of a map.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from llm_engine.adapters.adapter_set import AdapterSet, StepAdapters
from llm_engine.layers.step import Adapters
from llm_engine.parallel.step_command import StepCommand


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """See `llm_engine.layers.step.Adapters`: a map's rows may be the rank's own, or all ranks'.

    None for rows of which no one uses an adapter.
    """

    attention: StepAdapters | None
    mlp: StepAdapters | None
    experts: StepAdapters | None

    def update(self, layer: int, part: str, x_NI: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        rows = self.mlp if part in ("gate_up", "down") else self.attention
        return y_NO if rows is None else rows.update(layer, part, x_NI, y_NO)

    def update_expert(
        self,
        layer: int,
        expert: int,
        part: str,
        x_PI: torch.Tensor,
        y_PO: torch.Tensor,
        token_P: torch.Tensor,
    ) -> torch.Tensor:
        """See the protocol."""
        if self.experts is None:
            return y_PO
        return self.experts.update_expert(layer, expert, part, x_PI, y_PO, token_P)


def step_adapters(
    adapters: AdapterSet,
    command: StepCommand,
    shared: Sequence[Sequence[int]],
    own: int,
    *,
    gathers_mlp: bool,
    gathers_experts: bool,
) -> Adapters | None:
    """What a rank adds in a step, None where nobody in it uses an adapter.

    `shared` are the rows of each rank, `own` this one's place; MLPs and experts are computed for
    its own rows, or for those of all ranks, one rank after the other.
    """
    if not command.adapters:
        return None
    by_row = [
        number
        for span, number in zip(command.spans, command.adapters, strict=True)
        for _ in range(span.num_tokens)
    ]
    names = sorted(adapters.names)

    def of(rows: Sequence[int]) -> StepAdapters | None:
        runs = groupby(by_row[row] for row in rows)
        uses = [(names[number - 1] if number else None, len(list(run))) for number, run in runs]
        return adapters.for_step(uses)

    mine = of(shared[own])
    if not gathers_mlp and not gathers_experts:
        return mine
    everyone = of([row for rows in shared for row in rows])
    return RowAdapters(
        mine, everyone if gathers_mlp else mine, everyone if gathers_experts else mine
    )


def adapter_numbers(names: Sequence[str], used: Sequence[str | None]) -> tuple[int, ...]:
    """The adapters of a command: 0 for none, else a place in `names`; empty where nothing is."""
    if all(name is None for name in used):
        return ()
    return tuple(0 if name is None else names.index(name) + 1 for name in used)
