"""Which rows of a step use which adapter, on a rank that computes some of them."""

# N rows of this rank, P those of an expert, I inputs and O outputs of a map.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Self

import torch

from llm_engine.adapters.adapter_set import AdapterSet, StepAdapters
from llm_engine.device import upload
from llm_engine.layers.tiles import OverRows, at_once
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.place import Place
from llm_engine.parallel.step_command import StepCommand

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Whose rows a rank computes what for, as places among those that have rows of a step.

    Attention for its own; MLPs and experts for those of one place after the other.
    """

    own: int
    mlp: tuple[int, ...]
    experts: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout, place: Place) -> Self:
        """Places run along cp within dp; experts that are dealt out see everybody's rows."""
        along_dp = tuple(dp * layout.cp + place.cp for dp in range(layout.dp))
        everyone = tuple(range(layout.dp * layout.cp))
        return cls(
            own=place.dp * layout.cp + place.cp,
            mlp=along_dp,
            experts=everyone if layout.ep > 1 else along_dp,
        )


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """See `llm_engine.layers.step.Adapters`: a map's rows may be the rank's own, or all ranks'.

    None for rows of which no one uses an adapter. `numbers_N` are those of the own rows, 0 for
    none, where the rows are; `of_numbers` is what rows that arrive with theirs add.
    """

    attention: StepAdapters | None
    mlp: StepAdapters | None
    experts: StepAdapters | None
    numbers_N: torch.Tensor
    of_numbers: Callable[[Sequence[int]], StepAdapters | None]

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
    places: RowPlaces,
    over_rows: OverRows = at_once,
    place: torch.device = _CPU,
) -> RowAdapters | None:
    """What a rank adds in a step, None where nobody in it uses an adapter.

    `shared` are the rows of each place; `over_rows` is how updates are applied to rows; `place`
    is where rows are.
    """
    if not command.adapters:
        return None
    by_row = [
        number
        for span, number in zip(command.spans, command.adapters, strict=True)
        for _ in range(span.num_tokens)
    ]
    of_numbers = partial(_of_numbers, adapters, sorted(adapters.names), over_rows)

    def of(wanted: tuple[int, ...]) -> StepAdapters | None:
        return of_numbers([by_row[row] for place in wanted for row in shared[place]])

    found = {wanted: of(wanted) for wanted in {(places.own,), places.mlp, places.experts}}
    return RowAdapters(
        attention=found[places.own,],
        mlp=found[places.mlp],
        experts=found[places.experts],
        numbers_N=upload([by_row[row] for row in shared[places.own]], torch.int64, place),
        of_numbers=of_numbers,
    )


def _of_numbers(
    adapters: AdapterSet, names: Sequence[str], over_rows: OverRows, numbers: Sequence[int]
) -> StepAdapters | None:
    uses = [
        (names[number - 1] if number else None, len(list(run))) for number, run in groupby(numbers)
    ]
    return adapters.for_step(uses, over_rows)


def adapter_numbers(names: Sequence[str], used: Sequence[str | None]) -> tuple[int, ...]:
    """The adapters of a command: 0 for none, else a place in `names`; empty where nothing is."""
    if all(name is None for name in used):
        return ()
    return tuple(0 if name is None else names.index(name) + 1 for name in used)
