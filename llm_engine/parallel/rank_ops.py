"""The parts of a model on one rank of a layout: its share is computed, then exchanged."""

# N rows of the step on this rank, S rows with logits, C channels, V vocabulary.

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, ParamSpec, Self, TypeVar

import torch

from kernels.collectives.lane import Handle
from kernels.collectives.protocol import Communicator
from llm_engine.layers.blocks import AttentionBlock, DecoderLayer, MlpBlock, TorchBlocks
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.embedding import Embedding
from llm_engine.layers.experts import MoeBlock
from llm_engine.layers.linear import Linear
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.divided_step import DividedStep
from llm_engine.parallel.expert_exchange import ExpertExchange
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.mesh import Mesh, axis_ranks
from llm_engine.parallel.panel_cuts import has_cut_words
from llm_engine.parallel.place import Place
from llm_engine.parallel.row_pieces import RowPieces
from llm_engine.parallel.shares import (
    WeightShare,
    head_rows,
    held_share,
    local_config,
    phase_share,
    stage_share,
)
from llm_engine.parallel.slices import BlockSlices, rows_of, shifted

B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")


class RankOps:
    """See `llm_engine.layers.model_ops.ModelOps`; one phase of one rank.

    Numerics: sums over ranks are in rank order, in float32, rounded once along each axis.
    """

    def __init__(
        self, config: ModelConfig, layouts: PhaseLayouts, layout: Layout, mesh: Mesh, ops: BoundOps
    ) -> None:
        """`config` is the whole model's; `ops` are bound for the heads that the cache holds."""
        rank = mesh.world.group.rank
        self.config = config
        self.mesh = mesh
        self.layout = layout
        self.share: WeightShare = phase_share(config, layout, rank)
        self._ops = ops
        self._held = held_share(config, layouts, rank)
        # The layers that this phase computes, as the model counts those that it has.
        self._layers = shifted(self.share.layers, -self._held.layers.start)
        self._slices = BlockSlices(self._held, self.share, config.head_dim)
        stage = stage_share(config, layouts, rank)
        self._stage_layers = range(0) if stage is None else stage.layers
        self._stage_slices = BlockSlices(stage or self._held, self.share, config.head_dim)
        local = local_config(config, self.share, self.share.heads)
        self._blocks = TorchBlocks(local, ops.rms_norm, ops.swiglu, ops.over_rows)
        self._experts = ExpertExchange(config, layout, mesh, self.share, ops)
        self._pieces = RowPieces()
        self._made: dict[tuple[int, type], tuple[Any, Any]] = {}
        self._head_rows = head_rows(config, layout, mesh.place)
        self._cuts_words = has_cut_words(config, layout)
        unit = axis_ranks(layout, rank, "unit")
        # The unit's ranks in the order of the words that they compute.
        self._head_order = sorted(
            range(len(unit)),
            key=lambda i: head_rows(config, layout, Place.of(layout, unit[i])).start,
        )

    def in_pieces(self, count: int) -> Self:
        """The same, with rows that all ranks compute exchanged in so many pieces."""
        other = copy(self)
        other._pieces = RowPieces(count)
        return other

    def embed(self, embedding: Embedding, token_ids_N: torch.Tensor) -> torch.Tensor:
        """The rows of the rank's part of the vocabulary, summed; or what the stage before sent.

        Exact: all but one of the terms are zero.
        """
        mesh = self.mesh
        if mesh.before is not None:
            shape = (len(token_ids_N), self.config.hidden_size)
            # Of a packed embedding, which a tied last stage has, come float32 values.
            weight = embedding.weight
            dtype = torch.float32 if weight is None else weight.dtype
            x_NC = torch.empty(shape, dtype=dtype, device=token_ids_N.device)
            return self.in_lane(mesh.world.receive, x_NC, mesh.before).wait()
        held, used = self._held.vocabulary, self.share.vocabulary
        if mesh.tp.group.size == 1:
            return embedding(token_ids_N)
        is_mine_N = (token_ids_N >= used.start) & (token_ids_N < used.stop)
        x_NC = embedding(torch.where(is_mine_N, token_ids_N - held.start, 0))
        x_NC.mul_(is_mine_N.unsqueeze(1))
        return mesh.tp.all_reduce(x_NC)

    def send_on(self, x_NC: torch.Tensor) -> Handle[None]:
        """Send hidden states to the next stage while this one goes on."""
        assert self.mesh.after is not None
        return self.in_lane(self.mesh.world.send, x_NC, self.mesh.after)

    def in_lane(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Issue an exchange among all ranks behind those before it."""
        # Whether inference mode is on belongs to a thread: the lane's has to be told.
        mode = torch.inference_mode(torch.is_inference_mode_enabled())
        return self.mesh.world.start(mode(operation), *args, **kwargs)

    def stack(self, layers: Sequence[DecoderLayer], x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """All layers of a dense model. Shapes: x and result (N, C)."""
        for index in self._layers:
            x_NC = self.attention_block(index, layers[index].attention, x_NC, step)
            x_NC = self.mlp_block(index, layers[index].mlp, x_NC, step)
        return x_NC

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C). Stores the rank's keys and values on the way.

        Here as in the other blocks x passes through a layer that another stage computes.
        """
        if layer not in self._layers:
            return x_NC
        return x_NC + self.mesh.tp.all_reduce(self.attention_update(layer, block, x_NC, step))

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        if layer not in self._layers:
            return x_NC
        if not isinstance(step, DividedStep):
            return x_NC + self.mesh.tp.all_reduce(self.mlp_update(layer, block, x_NC, step))
        y_NC = self._pieces.over_all_rows(
            self.mesh.dp,
            x_NC,
            step.dp_counts,
            lambda x_MC: self.mlp_update(layer, block, x_MC, step),
        )
        return x_NC + self.mesh.tp.all_reduce(y_NC)

    def moe_block(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        if layer not in self._layers:
            return x_NC
        block = self._sliced(layer, block, BlockSlices.experts)
        return x_NC + self._experts(layer, block, x_NC, step, self._pieces)

    def moe_update(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The rank's term where all ranks have all rows. Shapes: x and result (N, C)."""
        block = self._sliced(layer, block, BlockSlices.experts)
        return self._experts.term(layer, block, step, x_NC)

    @property
    def expert_ranks(self) -> Communicator:
        """The ranks whose terms of a block of experts are summed, where all have all rows."""
        return self.mesh.peers if self.layout.ep > 1 else self.mesh.tp

    def attention_update(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The rank's term of what the block adds, not exchanged. Shapes: x and result (N, C)."""
        block = self._sliced(layer, block, BlockSlices.attention)
        heads = self._blocks.heads(layer, block, x_NC, step)
        o_NHD = step.attend(layer - self._layers.start, *heads)
        return self._blocks.output(layer, block, o_NHD, step)

    def heads(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `TorchBlocks.heads`, of the rank's weights."""
        block = self._sliced(layer, block, BlockSlices.attention)
        return self._blocks.heads(layer, block, x_NC, step)

    def output(
        self, layer: int, block: AttentionBlock, o_NHD: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `TorchBlocks.output`, of the rank's weights: a term of a sum where tp is not 1."""
        block = self._sliced(layer, block, BlockSlices.attention)
        return self._blocks.output(layer, block, o_NHD, step)

    def mlp_update(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The rank's term of what the block adds, not exchanged. Shapes: x and result (N, C)."""
        block = self._sliced(layer, block, BlockSlices.mlp)
        return self._blocks.mlp_update(layer, block, x_NC, step)

    def logits(
        self, x_NC: torch.Tensor, norm_C: torch.Tensor, head: Linear, eps: float
    ) -> torch.Tensor:
        """Logits (S, V) on the first rank of the unit, (0, V) elsewhere; x is (S, C) on all."""
        unit = self.mesh.unit
        h_SC, _, _ = self._ops.rms_norm(x_NC, norm_C, eps=eps)
        if self._held.head == self._head_rows:
            part = head
        elif head.is_packed or (head.packed is not None and self._cuts_words):
            part = head if unit.group.rank == 0 else None  # whole, in a form without these slices
        else:
            part = rows_of(head, [shifted(self._head_rows, -self._held.head.start)])
        part_VS = h_SC.new_empty(0, len(x_NC), dtype=torch.float32)
        if part is not None:
            part_VS = self._ops.over_rows(part, h_SC).float().T.contiguous()
        sizes = [len(part_VS), *(0 for _ in unit.group.others)]
        logits_VS, counts = unit.all_to_all(part_VS, sizes)
        parts = logits_VS.split(counts)
        logits_VS = torch.cat([parts[rank] for rank in self._head_order])
        return logits_VS.T.contiguous() if unit.group.rank == 0 else logits_VS.new_empty(0, 0)

    def _sliced(self, layer: int, block: B, slice_block: Callable[[BlockSlices, B], B]) -> B:
        """The phase's share of a block, made when first met."""
        slices = self._stage_slices if layer in self._stage_layers else self._slices
        if slices.is_whole:
            return block
        key = (layer, type(block))
        known, sliced = self._made.get(key, (None, None))
        if known is not block or sliced is None:
            sliced = slice_block(slices, block)
            self._made[key] = (block, sliced)
        return sliced
