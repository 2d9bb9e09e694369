"""How long a step takes under a layout: a rank's work, the ranks' exchanges, what hides what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.collectives.schedules.builders import split_gemm
from kernels.collectives.schedules.virtual_time import simulate
from kernels.cost_model.exchange import Exchange
from kernels.cost_model.parts import Parts
from kernels.cost_model.rates import DeviceRates
from llm_engine.plan.search.overlap import Overlapped, Part, virtual_s
from llm_engine.plan.search.prediction import StepPrediction, exposed_parts
from llm_engine.plan.search.transfer import Transfer
from llm_engine.plan.search.wire import transfers
from llm_engine.plan.search.work import StageWork, stage_work

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelSteps
    from llm_engine.plan.search.prediction import StepSize

_MODEL_ERROR = 0.1  # of what no cause stands for: interference, imbalance, waiting
_LAYER_PARTS = ("project", "attend", "mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The machine as the prediction takes it."""

    rates: DeviceRates
    exchange: Exchange
    num_devices: int

    @property
    def errors(self) -> Parts:
        """Relative errors by cause; rates of links that nobody told are wider."""
        wire = 0.5 if self.exchange.has_assumed_rate else self.rates.errors.wire
        return replace(self.rates.errors, wire=wire)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What one rank does for some rows of a step, nothing overlapped."""

    work: StageWork
    moved: tuple[Transfer, ...]
    codec: Parts  # of int8 blocks, and of partial answers of a ring

    def computed_s(self, exchange: Exchange) -> float:
        """All but exchanges behind parts of layers."""
        alone_s = sum(_seconds((t,), exchange) for t in self.moved if t.after == "step")
        return self.work.total.total_s + self.codec.total_s + alone_s

    def exchanged_s(self, part: str, exchange: Exchange) -> float:
        """Exchanges behind one part of all layers."""
        return _seconds([t for t in self.moved if t.after == part], exchange)


def predict_step(
    steps: ModelSteps, setting: Setting, layout: Layout, size: StepSize
) -> StepPrediction:
    """One step of a phase. `layout.num_chunks` above 1 overlaps only where that pays.

    Raises: UnsupportedModel for a config that is not known; ValueError for sizes that no step has.
    """
    whole = _piece(steps, setting, layout, size)
    wire_s, latency_s = _exchange_s(whole.moved, setting.exchange)
    parts = whole.work.total + Parts(wire=wire_s, latency=latency_s) + whole.codec
    hidden_s, reasons = _under_attention(whole, layout, setting.exchange)
    if layout.num_chunks > 1:
        cut = _overlapped if layout.dp == 1 else _in_pieces
        found = cut(steps, setting, layout, size, whole)
        hidden_s, reasons = found.hidden_s, (str(found),)
    seconds = parts.total_s - hidden_s
    if size.phase == "decode":  # a token of every sequence passes all stages
        seconds, hidden_s = seconds * layout.pp, hidden_s * layout.pp
        parts = parts * layout.pp
    error_s = exposed_parts(parts, hidden_s).error_s(setting.errors)
    half_s = math.hypot(error_s, _MODEL_ERROR * seconds)
    return StepPrediction(
        layout=layout,
        size=size,
        seconds=seconds,
        fill_s=(layout.pp - 1) * seconds if size.phase == "prefill" else 0.0,
        low_s=max(seconds - half_s, seconds / 4),
        high_s=seconds + half_s,
        parts=parts,
        hidden_s=hidden_s,
        sent_bytes=sum(transfer.sent_bytes for transfer in whole.moved),
        reasons=reasons,
    )


def _piece(steps: ModelSteps, setting: Setting, layout: Layout, size: StepSize) -> _Piece:
    shape = steps.at(size)
    moved = transfers(steps.facts, layout, size, shape.cache_bytes_per_token, steps.item_bytes)
    extra_s = _codec_s(layout, moved, setting.rates)
    extra_s += _merge_s(steps, layout, size, setting.rates)
    return _Piece(
        work=stage_work(shape, layout, size, setting.rates),
        moved=moved,
        codec=Parts(memory=extra_s),
    )


def _under_attention(
    whole: _Piece, layout: Layout, exchange: Exchange
) -> tuple[float, tuple[str, ...]]:
    """What a ring hides: all shares but a rank's own arrive while others are attended to."""
    passed_s = sum(t.seconds(exchange) for t in whole.moved if t.is_under)
    if not passed_s:
        return 0.0, ()
    room_s = whole.work.total.attention * (layout.cp - 1) / layout.cp
    hidden_s = min(passed_s, room_s)
    text = f"keys go around under attention: {hidden_s * 1e3:.1f} of {passed_s * 1e3:.1f} ms hidden"
    return hidden_s, (text,)


def _overlapped(
    steps: ModelSteps, setting: Setting, layout: Layout, size: StepSize, whole: _Piece
) -> Overlapped:
    """The step in chunks, all as long as the middle one."""
    k, exchange = layout.num_chunks, setting.exchange
    chunk = _piece(steps, setting, layout, _middle_chunk(size, k))
    num_layers = math.ceil(steps.facts.full_layers / layout.pp)
    codec_s = chunk.codec.total_s / len(_LAYER_PARTS)
    parts = [
        Part(
            name=name,
            compute_s=(getattr(chunk.work, name).total_s + codec_s) / num_layers,
            wire_s=chunk.exchanged_s(name, exchange) / num_layers,
        )
        for name in _LAYER_PARTS
    ]
    computed_s, chunks_s = whole.computed_s(exchange), k * chunk.computed_s(exchange)
    in_layers_s = k * num_layers * sum(part.compute_s for part in parts)
    return Overlapped(
        num_chunks=k,
        serial_s=computed_s + sum(whole.exchanged_s(name, exchange) for name in _LAYER_PARTS),
        virtual_s=virtual_s(parts, num_layers, k) + chunks_s - in_layers_s,
        cut_s=chunks_s - computed_s,
    )


def _in_pieces(
    steps: ModelSteps, setting: Setting, layout: Layout, size: StepSize, whole: _Piece
) -> Overlapped:
    """The step with rows of all sequences in pieces: MLPs hide what gathers and scatters them."""
    k, exchange = layout.num_chunks, setting.exchange
    piece = _piece(steps, setting, layout, _middle_chunk(size, k))
    gather_s, scatter_s = (
        _seconds([t for t in piece.moved if t.operation == operation], exchange)
        for operation in ("all_gather", "reduce_scatter")
    )
    mlp_s = piece.work.mlp.total_s
    split = split_gemm(1, k * mlp_s, 1, k, gather_bytes=1)
    wires_s = {"gather": gather_s, "scatter": scatter_s}
    timeline = simulate(split, lambda node: wires_s[node.name.partition(".")[0]])
    moved = ("all_gather", "reduce_scatter")
    serial_s = whole.work.mlp.total_s
    serial_s += _seconds([t for t in whole.moved if t.operation in moved], exchange)
    return Overlapped(
        num_chunks=k,
        serial_s=serial_s,
        virtual_s=max(span.end_s for span in timeline.spans),
        cut_s=k * mlp_s - whole.work.mlp.total_s,
    )


def _middle_chunk(size: StepSize, num_chunks: int) -> StepSize:
    """Some of a step's sequences where it adds to answers, else some of a prompt's tokens.

    Later tokens attend to more; sequences do not read each other.
    """
    rows = max(1, math.ceil(size.rows / num_chunks))
    if size.phase == "decode":
        return replace(size, rows=rows, batch=max(1, math.ceil(size.batch / num_chunks)))
    return replace(size, rows=rows, context=size.context - (size.rows - rows) // 2)


def _seconds(moved: Sequence[Transfer], exchange: Exchange) -> float:
    return sum(t.seconds(exchange) for t in moved)


def _exchange_s(moved: tuple[Transfer, ...], exchange: Exchange) -> tuple[float, float]:
    """Seconds on the wire, and those that even empty messages would take."""
    total_s = _seconds(moved, exchange)
    start_s = _seconds([replace(t, size_bytes=1e-3) for t in moved], exchange)
    return max(0.0, total_s - start_s), min(start_s, total_s)


def _codec_s(layout: Layout, moved: tuple[Transfer, ...], rates: DeviceRates) -> float:
    """Encoding and decoding of int8 blocks: three passes over what is sent."""
    if layout.wire != "int8":
        return 0.0
    return 3 * sum(t.count * t.size_bytes for t in moved) / rates.memory_bytes_s


def _merge_s(steps: ModelSteps, layout: Layout, size: StepSize, rates: DeviceRates) -> float:
    """Partial answers of a ring are merged in fp32: two reads and a write for each pass."""
    if layout.cp == 1 or layout.keys != "ring":
        return 0.0
    facts = steps.facts
    rows = size.rows * layout.row_share(size.rows, size.batch)
    values = rows * facts.num_heads / layout.tp * facts.value_width * facts.num_layers / layout.pp
    return 3 * 4 * values * (layout.cp - 1) / rates.memory_bytes_s
