"""Shares of linear maps that lie whole in memory: views, so that two layouts use one set.

Row-major matrices have views of any rows and columns, packed ones of whole panels and groups.
"""

# N rows, I inputs, O outputs.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.ops.packed_gemm.quantised import PackedMatrix
from llm_engine.layers.blocks import AttentionBlock, MlpBlock
from llm_engine.layers.experts import Expert, MoeBlock
from llm_engine.layers.linear import Linear
from llm_engine.parallel.shares import WeightShare


@dataclass(frozen=True, slots=True)
class SlicedLinear(Linear):
    """Outputs of several runs of rows, one product each. Shapes: x (N, I); result (N, O)."""

    parts: tuple[Linear, ...] = ()

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Apply the maps and join their outputs."""
        return torch.cat([part(x_NI) for part in self.parts], dim=-1)


def rows_of(linear: Linear, runs: Sequence[range]) -> Linear:
    """The outputs `runs` of a map, in that order."""
    if len(runs) > 1:
        parts = tuple(rows_of(linear, [run]) for run in runs)
        return SlicedLinear(None, None, False, 0, parts=parts)
    (run,) = runs
    if linear.packed is not None:
        return _of_panels(linear.packed.part(run, range(linear.packed.num_columns)))
    weight = _plain(linear)
    bias = None if linear.bias is None else linear.bias[run.start : run.stop]
    return Linear(weight[run.start : run.stop], bias, False, len(run) * weight.shape[1])


def columns_of(linear: Linear, run: range, *, adds_bias: bool) -> Linear:
    """The map of inputs `run` alone, a term of a sum."""
    if linear.packed is not None:
        rows = range(linear.packed.num_rows)
        return _of_panels(linear.packed.part(rows, run, has_bias=adds_bias))
    weight = _plain(linear)
    bias = linear.bias if adds_bias else None
    return Linear(weight[:, run.start : run.stop], bias, False, len(run) * weight.shape[0])


class BlockSlices:
    """Blocks of the held weights as a phase computes with them."""

    def __init__(self, held: WeightShare, used: WeightShare, head_dim: int) -> None:
        """Both shares of the same rank; `used` lies within `held`."""
        self._held, self._used = held, used
        self._head_dim = head_dim
        self.is_whole = _cut_parts(held) == _cut_parts(used)

    def attention(self, block: AttentionBlock) -> AttentionBlock:
        """The phase's heads of a block."""
        held, used = self._held.heads, self._used.heads
        num_queries, num_kv = len(held.queries), len(held.kv)
        queries = _within(held.queries, used.queries)
        keys = shifted(_within(held.kv, used.kv), num_queries)
        values = shifted(keys, num_kv)
        runs = [self._rows(heads) for heads in (queries, keys, values)]
        out = columns_of(block.out, self._rows(queries), adds_bias=self._used.adds_bias)
        return replace(block, qkv=rows_of(block.qkv, runs), out=out)

    def mlp(self, block: MlpBlock) -> MlpBlock:
        """The phase's channels of a block."""
        gate_up, down = self._channels(block.gate_up, block.down, self._held.channels)
        return replace(block, gate_up=gate_up, down=down)

    def experts(self, block: MoeBlock) -> MoeBlock:
        """The phase's experts, and its channels of each."""
        used = _within(self._held.experts, self._used.experts)
        sliced = [
            Expert(*self._channels(e.gate_up, e.down, self._held.expert_channels, is_expert=True))
            for e in block.experts[used.start : used.stop]
        ]
        return replace(block, experts=tuple(sliced))

    def _channels(
        self, gate_up: Linear, down: Linear, held: range, *, is_expert: bool = False
    ) -> tuple[Linear, Linear]:
        used = self._used.expert_channels if is_expert else self._used.channels
        adds_bias = self._used.adds_expert_bias if is_expert else self._used.adds_mlp_bias
        gate = _within(held, used)
        runs = [gate, shifted(gate, len(held))]
        return rows_of(gate_up, runs), columns_of(down, gate, adds_bias=adds_bias)

    def _rows(self, heads: range) -> range:
        return range(heads.start * self._head_dim, heads.stop * self._head_dim)


def _cut_parts(share: WeightShare) -> tuple[object, ...]:
    return share.heads, share.channels, share.experts, share.expert_channels


def _within(outer: range, inner: range) -> range:
    """The indices of `inner` counted from the start of `outer`."""
    return range(inner.start - outer.start, inner.stop - outer.start)


def shifted(run: range, by: int) -> range:
    """A run of indices, counted from elsewhere."""
    return range(run.start + by, run.stop + by)


def _of_panels(part: PackedMatrix) -> Linear:
    return Linear(None, part.bias_N, False, part.num_rows * part.num_columns, part)


def _plain(linear: Linear) -> torch.Tensor:
    assert linear.weight is not None
    assert not linear.is_packed, "a matrix in a vendor's blocks has no slices"
    return linear.weight
