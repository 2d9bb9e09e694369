"""A checkpoint as one rank sees it: its own heads, channels, experts, layers and rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.parallel.shares import WeightShare
from llm_engine.weights.checkpoint import BlockWeights, Checkpoint, StoredTensor

_EXPERT = re.compile(r"\.mlp\.experts\.(\d+)\.")
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class _Cut:
    """Indices of one dim of a tensor of the file, under its name there; dim None takes all."""

    name: str
    dim: int | None = None
    part: range = range(0)


class ShardedCheckpoint:
    """Names count from the rank's first layer and first expert; tensors are the rank's slices.

    What the rank holds nothing of (the embedding on a later stage, the head on an earlier one)
    comes out with no rows.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        share: WeightShare,
        *,
        keeps_rows: bool = False,
        stage: WeightShare | None = None,
    ) -> None:
        """`config` is the whole model's; `stage` the share of its own layers, where they differ."""
        self.keeps_rows = keeps_rows
        self.config = checkpoint.config
        self.eos_token_ids = checkpoint.eos_token_ids
        self._checkpoint = checkpoint
        self._share, self._stage = share, stage
        self._head_dim = config.head_dim
        parameters = Parameters.of(config)
        self._known = parameters.weights.keys() | parameters.biases.keys()

    def has(self, name: str) -> bool:
        """Whether the rank takes a tensor of that name."""
        cut = self._cut(name)
        return cut is not None and self._checkpoint.has(cut.name)

    def take(self, name: str) -> torch.Tensor:
        """Read the rank's slice, and no more where the format allows it."""
        cut = self._needed(name)
        if cut.dim is None:
            return self._checkpoint.take(cut.name)
        shape = self._checkpoint.stored(cut.name).shape
        if not cut.part:
            return torch.empty(_cut_shape(shape, cut))
        if len(cut.part) == shape[cut.dim]:
            return self._checkpoint.take(cut.name)
        return self._checkpoint.take_part(cut.name, cut.dim, cut.part)

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """A part of the rank's slice."""
        return self.take(name).narrow(dim, part.start, len(part))

    def take_packed(self, name: str) -> BlockWeights | None:
        """The rank's slice in quantised form; columns are cut between groups only."""
        cut = self._needed(name)
        if cut.dim is not None and not cut.part:
            return None
        found = self._checkpoint.take_packed(cut.name)
        if found is None or cut.dim is None:
            return found
        quants_NK, scales_NG, minima_NG = found.quants_NK, found.scales_NG, found.minima_NG
        width = 1 if cut.dim == 0 else found.group
        start, length = cut.part.start // width, len(cut.part) // width
        return replace(
            found,
            quants_NK=quants_NK.narrow(cut.dim, cut.part.start, len(cut.part)).clone(),
            scales_NG=scales_NG.narrow(cut.dim, start, length).clone(),
            minima_NG=None
            if minima_NG is None
            else minima_NG.narrow(cut.dim, start, length).clone(),
        )

    def take_scaled(self, name: str) -> None:
        """None: a slice need not begin where a block of scales does."""
        self._needed(name)

    def stored(self, name: str) -> StoredTensor:
        """The slice's shape and bytes."""
        cut = self._needed(name)
        whole = self._checkpoint.stored(cut.name)
        if cut.dim is None:
            return whole
        num_bytes = whole.num_bytes * len(cut.part) // whole.shape[cut.dim]
        return replace(whole, shape=_cut_shape(whole.shape, cut), num_bytes=num_bytes)

    def untaken(self) -> list[str]:
        """Tensors that no rank would take."""
        return [name for name in self._checkpoint.untaken() if name not in self._known]

    def close(self) -> None:
        """Give the files back."""
        self._checkpoint.close()

    def _needed(self, name: str) -> _Cut:
        cut = self._cut(name)
        assert cut is not None, f"{name} is added by another rank"
        return cut

    def _cut(self, name: str) -> _Cut | None:
        """Where a tensor of the rank lies in the file; None for biases that another rank adds."""
        own = self._own_name(name)
        share = self._share_of(own)
        part, kind = name.split(".")[-2:]
        if kind == "sinks":
            return _Cut(own, 0, share.heads.queries)
        if part == "embed_tokens":
            return _Cut(own, 0, share.vocabulary)
        if part == "lm_head":
            return _Cut(own, 0, share.head)
        is_expert = ".experts." in name
        channels = share.expert_channels if is_expert else share.channels
        if part in ("gate_proj", "up_proj"):
            return _Cut(own, 0, channels)
        if part in ("q_proj", "k_proj", "v_proj"):
            heads = share.heads.queries if part == "q_proj" else share.heads.kv
            return _Cut(own, 0, self._rows(heads))
        if part not in ("o_proj", "down_proj"):
            return _Cut(own)
        if kind == "bias":
            adds = share.adds_bias if part == "o_proj" else share.adds_mlp_bias
            adds = share.adds_expert_bias if is_expert else adds
            return _Cut(own) if adds else None
        return _Cut(own, 1, self._rows(share.heads.queries) if part == "o_proj" else channels)

    def _share_of(self, own: str) -> WeightShare:
        match = _LAYER.search(own)
        if self._stage is None or match is None or int(match[1]) not in self._stage.layers:
            return self._share
        return self._stage

    def _own_name(self, name: str) -> str:
        name = _counted_from(_LAYER, name, self._share.layers.start)
        return _counted_from(_EXPERT, name, self._share_of(name).experts.start)

    def _rows(self, heads: range) -> range:
        return range(heads.start * self._head_dim, heads.stop * self._head_dim)


def _counted_from(pattern: re.Pattern[str], name: str, first: int) -> str:
    """A name whose number, where the pattern finds one, counted from `first`."""
    match = pattern.search(name)
    if match is None:
        return name
    return f"{name[: match.start(1)]}{first + int(match[1])}{name[match.end(1) :]}"


def num_parameters(checkpoint: Checkpoint, config: ModelConfig) -> int:
    """Parameters of the whole model, a tied embedding counted once."""
    parameters = Parameters.of(config)
    names: Iterable[str] = (*parameters.weights, *parameters.biases)
    shapes = [checkpoint.stored(name).shape for name in names if checkpoint.has(name)]
    return sum(torch.Size(shape).numel() for shape in shapes)


def _cut_shape(shape: tuple[int, ...], cut: _Cut) -> tuple[int, ...]:
    assert cut.dim is not None
    return (*shape[: cut.dim], len(cut.part), *shape[cut.dim + 1 :])
