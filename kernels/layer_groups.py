"""A model as a planner sees it: layers that are alike, the ops they use, the rows they cache.

Built by the engines from a model's config alone; free of torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.op_costs import Cost, cost_of
from kernels.spec import Case

if TYPE_CHECKING:
    from kernels.ledger import Decision


# Ops that are divided by heads or inner columns whatever their shape.
_BY_HEADS = frozenset(
    [
        "paged_prefill",
        "paged_decode",
        "sparse_shared_kv",
        "sparse_mla",
        "attention_epilogue",
        "kda",
        "swiglu",
        "gelu",
        "full_attention",
        "sampler",
        "rotary_insert",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpUse:
    """One op in one layer: its case, how often a layer calls it, what one call costs.

    `is_cut`: tensor parallelism divides it by heads or columns; else every rank repeats it.
    """

    op: str
    case: Case
    count: int
    cost: Cost
    is_cut: bool = False


def use(
    op: str,
    dtype: str,
    sizes: Mapping[str, int],
    *,
    options: Mapping[str, str] | None = None,
    count: int = 1,
    attended: float | None = None,
    is_cut: bool = False,
) -> OpUse:
    """An op use with its cost. `attended` is the mean number of rows that a query looks at."""
    case = Case(dtype=dtype, sizes=dict(sizes), options=dict(options or {}))
    cost = cost_of(op, case, attended)
    return OpUse(op=op, case=case, count=count, cost=cost, is_cut=is_cut or op in _BY_HEADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that use the same ops in the same shapes. Empty `layers`: outside the stack."""

    name: str
    layers: tuple[int, ...]
    uses: tuple[OpUse, ...]

    @property
    def num_layers(self) -> int:
        """How many times the uses run in a step: once outside the stack."""
        return len(self.layers) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One kind of step: how many rows it computes, over how long a context, for how many.

    Units: rows and tokens. `context` counts the rows of the step itself.
    """

    name: str
    rows: int
    context: int
    batch: int
    groups: tuple[LayerGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One kind of cached row: which layers keep it, how many tokens share a row, its bytes.

    `page_tokens` is the page in tokens of the sequence; a group without growth (a window, a
    state) has `tokens_per_row` 0 and `fixed_rows` rows for each sequence.
    """

    name: str
    layers: tuple[int, ...]
    row_bytes: int
    tokens_per_row: int = 1
    fixed_rows: int = 0
    page_tokens: int = 16
    reason: str = ""

    @property
    def bytes_per_token(self) -> float:
        """What a sequence grows by for each token."""
        per_layer = self.row_bytes / self.tokens_per_row if self.tokens_per_row else 0.0
        return per_layer * len(self.layers)

    @property
    def bytes_per_sequence(self) -> int:
        """What a sequence holds whatever its length."""
        return self.fixed_rows * self.row_bytes * len(self.layers)

    @property
    def rows_per_page(self) -> int:
        """Rows of one layer in one page."""
        if not self.tokens_per_row:
            return min(self.page_tokens, self.fixed_rows)
        return max(1, self.page_tokens // self.tokens_per_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model whole. `choices` are decisions that the family made while it laid out its steps."""

    name: str
    family: str
    phases: tuple[Phase, ...]
    rows: tuple[RowGroup, ...]
    parameters: int
    weight_bytes: int
    has_sparse_attention: bool = False
    choices: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def cache_bytes_per_token(self) -> float:
        """Growth of a sequence for each token, over all groups."""
        return sum(group.bytes_per_token for group in self.rows)

    def phase(self, name: str) -> Phase:
        """The phase of that name.

        Raises:
            KeyError: lists the phases there are.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(f"no phase {name!r}; there are: {', '.join(p.name for p in self.phases)}")


def total_parameters(groups: Iterable[LayerGroup]) -> int:
    """Weights behind the uses of all layers; each layer has its own."""
    return sum(g.num_layers * u.count * u.cost.parameters for g in groups for u in g.uses)


def total_weight_bytes(groups: Iterable[LayerGroup]) -> int:
    """Bytes of those weights as the checkpoint stores them."""
    return round(sum(g.num_layers * u.count * u.cost.weight_bytes for g in groups for u in g.uses))


def layer_range(layers: tuple[int, ...]) -> str:
    """Layer numbers in words: "3-60", "2, 4 ... 42", "0, 1"; empty outside the stack."""
    if len(layers) < 3:
        return ", ".join(map(str, layers))
    steps = {after - before for before, after in itertools.pairwise(layers)}
    if steps == {1}:
        return f"{layers[0]}-{layers[-1]}"
    if len(steps) == 1:
        return f"{layers[0]}, {layers[1]} ... {layers[-1]}"
    return f"{len(layers)} of {layers[0]}-{layers[-1]}"
