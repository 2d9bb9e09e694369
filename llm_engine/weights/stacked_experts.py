"""Checkpoints that store a layer's experts as one tensor, seen expert by expert.

gpt-oss stacks the maps of a layer's experts, with rows of gate and up taking turns: as numbers,
transposed, `gate_up_proj` (E, C, 2I) and `down_proj` (E, I, C); or in MXFP4 as bytes, `*_blocks`
(E, 2I, C/32, 16) and (E, C, I/32, 16), two values each, the even one in the low nibble, with a
power of two for 32 values in `*_scales`. Its router is called `router`.
Source: OpenAI 2025, arXiv:2508.10925; OCP Microscaling Formats 1.0, sections 5.3 and 6.3.
"""

# E experts, C channels, I inner channels, N outputs and K inputs of a map, G groups of 32 inputs.

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.ops.block_fp8_gemm.formats.reference import MXFP4_GROUP
from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import (
    BlockWeights,
    Checkpoint,
    ScaledWeights,
    StoredTensor,
)

MXFP4_KIND = "MXFP4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP_BYTES = MXFP4_GROUP // 2
_NAME = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_STACK = re.compile(
    r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up|down)_proj(_bias|_blocks|_scales)?"
)
_ROUTER = re.compile(r"(model\.layers\.\d+\.mlp)\.gate\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor of one expert lies: in `stack`, among every `step`-th row from `first` on."""

    stack: str
    expert: int
    first: int
    step: int
    is_bias: bool


class StackedExperts:
    """See `llm_engine.weights.checkpoint.Checkpoint`: experts by number, gate and up apart.

    A stack is read when the first of its experts is taken, and kept until a stack of another layer
    is: experts are taken layer by layer.
    """

    def __init__(self, checkpoint: Checkpoint, num_experts: int) -> None:
        """View `checkpoint`, whose stacks hold so many experts."""
        self.config: Mapping[str, Any] = checkpoint.config
        self.eos_token_ids = checkpoint.eos_token_ids
        self.keeps_rows = checkpoint.keeps_rows
        self._checkpoint = checkpoint
        self._num_experts = num_experts
        self._stacks: dict[str, torch.Tensor] = {}

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        place = _place(name)
        if place is None:
            return self._checkpoint.has(_own_name(name))
        is_there = any(self._checkpoint.has(own) for own in (place.stack, place.stack + _BLOCKS))
        return is_there and place.expert < self._num_experts

    def take(self, name: str) -> torch.Tensor:
        """Read a tensor, a copy of its own; float32 where the file has MXFP4, which is exact."""
        place = _place(name)
        if place is None:
            return self._checkpoint.take(_own_name(name))
        if self._checkpoint.has(place.stack):
            rows = slice(place.first, None, place.step)
            stack = self._stack(place.stack)[place.expert]
            return (stack[rows] if place.is_bias else stack[:, rows].T).clone().contiguous()
        return self._scaled(name, place).dequantised()

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """As `take`; of an expert's tensor, all of it is read on the way."""
        if _place(name) is None:
            return self._checkpoint.take_part(_own_name(name), dim, part)
        return self.take(name).narrow(dim, part.start, len(part)).clone()

    def take_packed(self, name: str) -> BlockWeights | None:
        """None for experts: MXFP4 has no packed form here."""
        if _place(name) is None:
            return self._checkpoint.take_packed(_own_name(name))
        self.stored(name)
        return None

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """Read an expert's map in MXFP4, in memory that the stack may share."""
        place = _place(name)
        if place is None:
            return self._checkpoint.take_scaled(_own_name(name))
        is_in_numbers = place.is_bias or self._checkpoint.has(place.stack)
        return None if is_in_numbers else self._scaled(name, place)

    def stored(self, name: str) -> StoredTensor:
        """What the file's header says of a tensor, or of an expert's part of one.

        Raises: UnsupportedModel if there is none, or if scales do not fit their blocks.
        """
        place = _place(name)
        if place is None:
            return self._checkpoint.stored(_own_name(name))
        if not self.has(name):
            raise UnsupportedModel(f"the files have no tensor {place.stack} with {name} in it")
        shares = self._num_experts * place.step
        if self._checkpoint.has(place.stack):
            stack = self._checkpoint.stored(place.stack)
            shape = (*stack.shape[:0:-1],)
            return StoredTensor(_cut(shape, place), stack.kind, stack.num_bytes // shares)
        blocks = self._checkpoint.stored(place.stack + _BLOCKS)
        scales = self._checkpoint.stored(place.stack + _SCALES)
        if blocks.shape != (*scales.shape, _GROUP_BYTES):
            raise UnsupportedModel(
                f"{place.stack}{_BLOCKS} has the shape {blocks.shape} and {place.stack}{_SCALES} "
                f"{scales.shape}; MXFP4 needs {(*scales.shape, _GROUP_BYTES)}: a scale for "
                f"{_GROUP_BYTES} bytes"
            )
        shape = (blocks.shape[1], blocks.shape[2] * MXFP4_GROUP)
        num_bytes = (blocks.num_bytes + scales.num_bytes) // shares
        return StoredTensor(_cut(shape, place), MXFP4_KIND, num_bytes)

    def untaken(self) -> list[str]:
        """Names nobody has taken; of a stack, those of all its experts or of none."""
        names: set[str] = set()
        for own in self._checkpoint.untaken():
            names.update(self._names_in(own))
        return sorted(names)

    def close(self) -> None:
        """Give the files back."""
        self._stacks.clear()
        self._checkpoint.close()

    def _scaled(self, name: str, place: _Place) -> ScaledWeights:
        self.stored(name)
        rows = slice(place.first, None, place.step)
        blocks_NGB = self._stack(place.stack + _BLOCKS)[place.expert, rows]
        scales_NG = self._stack(place.stack + _SCALES)[place.expert, rows]
        return ScaledWeights("mxfp4", blocks_NGB.flatten(1), scales_NG, MXFP4_GROUP)

    def _names_in(self, own: str) -> list[str]:
        """What a tensor of the file is called here."""
        match = _STACK.fullmatch(own)
        if match is None:
            return [own.replace(".mlp.router.", ".mlp.gate.")]
        prefix, stack, kind = match.groups()
        parts = ("down",) if stack == "down" else ("gate", "up")
        suffix = "bias" if kind == "_bias" else "weight"
        return [
            f"{prefix}.{expert}.{part}_proj.{suffix}"
            for expert in range(self._num_experts)
            for part in parts
        ]

    def _stack(self, name: str) -> torch.Tensor:
        if name not in self._stacks:
            layer = name.partition(".experts.")[0]
            self._stacks = {k: v for k, v in self._stacks.items() if k.startswith(f"{layer}.")}
            self._stacks[name] = self._checkpoint.take(name)
        return self._stacks[name]


def _place(name: str) -> _Place | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    prefix, expert, part, kind = match.groups()
    stack = f"{prefix}.{'down' if part == 'down' else 'gate_up'}_proj"
    is_bias = kind == "bias"
    first, step = (int(part == "up"), 1 if part == "down" else 2)
    return _Place(f"{stack}_bias" if is_bias else stack, int(expert), first, step, is_bias)


def _own_name(name: str) -> str:
    return _ROUTER.sub(r"\1.router.\2", name)


def _cut(shape: tuple[int, ...], place: _Place) -> tuple[int, ...]:
    """The rows of a gate or an up: half of those that take turns."""
    return (shape[0] // place.step, *shape[1:])
