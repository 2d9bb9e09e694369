"""The adapters of an engine, and their use in one step."""

# N tokens of all sequences in a step, I inputs and O outputs of a map, P tokens of an expert.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.adapters.fused_parts import expert_part
from llm_engine.adapters.lora import LoraAdapter
from llm_engine.adapters.update import Update
from llm_engine.device import upload
from llm_engine.errors import InvalidRequest
from llm_engine.layers.tiles import OverRows, RowMap, at_once
from llm_engine.model_config import ModelConfig


class AdapterSet:
    """Adapters by name, read once and kept beside the base model's weights."""

    def __init__(self, adapters: Sequence[LoraAdapter]) -> None:
        """Keep them."""
        self._adapters = {adapter.name: adapter for adapter in adapters}

    @classmethod
    def load(
        cls, folders: Mapping[str, str], config: ModelConfig, dtype: torch.dtype
    ) -> "AdapterSet":
        """Read the PEFT folders. Raises: UnsupportedModel naming the adapter that does not fit."""
        return cls(
            [
                LoraAdapter.load(name, Path(folder).expanduser(), config, dtype)
                for name, folder in folders.items()
            ]
        )

    def to(self, place: torch.device) -> "AdapterSet":
        """The same adapters, on a device."""
        return AdapterSet([adapter.to(place) for adapter in self.adapters])

    @property
    def adapters(self) -> tuple[LoraAdapter, ...]:
        """All of them."""
        return tuple(self._adapters.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The known names."""
        return tuple(self._adapters)

    def check(self, name: str | None) -> None:
        """Raises: InvalidRequest for a name that no adapter has."""
        if name is None or name in self._adapters:
            return
        known = ", ".join(sorted(self._adapters)) or "none"
        raise InvalidRequest(
            f"adapter is {name!r}, but the engine was started with: {known}", param="adapter"
        )

    @property
    def products(self) -> set[tuple[int, int]]:
        """Outputs and inputs of the products that the updates take."""
        updates = [u for adapter in self._adapters.values() for u in adapter.updates.values()]
        sides = [side for update in updates for side in (update.a_RI, update.b_OR)]
        return {(side.shape[0], side.shape[1]) for side in sides}

    def for_step(
        self, uses: Sequence[tuple[str | None, int]], over_rows: OverRows = at_once
    ) -> "StepAdapters | None":
        """What a step adds, None where no row uses an adapter.

        `uses` names the adapter and the number of rows of each chunk, in the order of the rows;
        `over_rows` is how updates are applied to them.
        """
        if all(name is None for name, _ in uses):
            return None
        rows: dict[str, list[int]] = {}
        start = 0
        for name, count in uses:
            if name is not None:
                rows.setdefault(name, []).extend(range(start, start + count))
            start += count
        groups = [
            _Group(adapter, _selection(rows[name], adapter.place))
            for name, adapter in ((name, self._adapters[name]) for name in rows)
        ]
        return StepAdapters(tuple(groups), start, over_rows)

    def decision(self) -> Decision | None:
        """How adapters are computed, for the ledger; None where there are none."""
        if not self._adapters:
            return None
        return Decision(
            kind="kernel",
            where="llm engine, steps in which a request uses an adapter",
            what="lora",
            asked="auto",
            chosen="torch",
            tier=Tier.GENERIC,
            source="default",
            case=f"adapters={','.join(sorted(self._adapters))}",
            reasons=(
                "two small products for each map and adapter, rows grouped by adapter, within an "
                "expert too; such a step composes its blocks from single ops, since fused blocks "
                "take no update",
                "steps without an adapter are computed as if there were none",
                "measured on 2 busy cores with AVX2, SmolLM2-135M in 4 bits, rank 16 on every map: "
                "a decode step of one sequence takes 3.1 times that without an adapter, of 8 "
                "sequences 2.1 times, of 8 of which every second has one 3.1 times, a prompt of "
                "512 tokens 1.6 times",
            ),
            remedy="serve merged weights where one adapter takes all the traffic",
        )


_Selection = slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class _Group:
    """An adapter and the rows of the step that use it."""

    adapter: LoraAdapter
    rows: _Selection


class StepAdapters:
    """The updates of one step, grouped by adapter."""

    def __init__(self, groups: tuple[_Group, ...], num_rows: int, over_rows: OverRows) -> None:
        """Keep the groups, and how their updates are applied to the step's rows."""
        self._groups = groups
        self._num_rows = num_rows
        self._over_rows = over_rows
        self._owner_N: torch.Tensor | None = None

    def update(self, layer: int, part: str, x_NI: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """Add each adapter's update to its rows of y, in place, and return y.

        Shapes: x (N, I), the map's input; y (N, O), its output, owned by the caller.
        """
        for group in self._groups:
            update = group.adapter.updates.get((layer, part))
            if update is None:
                continue
            added = self._over_rows(_product(update), x_NI[group.rows])
            if isinstance(group.rows, slice):
                y_NO[group.rows] += added
            else:
                y_NO.index_add_(0, group.rows, added)
        return y_NO

    def update_expert(
        self,
        layer: int,
        expert: int,
        part: str,
        x_PI: torch.Tensor,
        y_PO: torch.Tensor,
        token_P: torch.Tensor,
    ) -> torch.Tensor:
        """As `update`, over those rows of the step that chose the expert; `token_P` names them."""
        owner_P = None
        for number, group in enumerate(self._groups):
            update = group.adapter.updates.get((layer, expert_part(expert, part)))
            if update is None:
                continue
            owner_P = self._owners(token_P) if owner_P is None else owner_P
            rows = (owner_P == number).nonzero().flatten()
            if len(rows):
                y_PO.index_add_(0, rows, self._over_rows(_product(update), x_PI[rows]))
        return y_PO

    def _owners(self, token_P: torch.Tensor) -> torch.Tensor:
        """Which group each of these rows of the step belongs to, -1 for none. Shape: (P,)."""
        if self._owner_N is None:
            self._owner_N = torch.full((self._num_rows,), -1, device=token_P.device)
            for number, group in enumerate(self._groups):
                self._owner_N[group.rows] = number
        return self._owner_N[token_P]


def _product(update: Update) -> RowMap:
    return lambda x_NI: (x_NI @ update.a_RI.mT) @ update.b_OR.mT


def _selection(rows: list[int], place: torch.device) -> _Selection:
    """A slice where the rows are neighbours: no copy of x is made then."""
    first, last = rows[0], rows[-1]
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return upload(rows, torch.int64, place)
