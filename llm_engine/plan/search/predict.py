"""How long a step takes under a layout: a rank's work, the ranks' exchanges, what hides what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.collectives.schedules.builders import LayerWork, blocking_layers, token_split
from kernels.collectives.schedules.gate import Overlap
from kernels.collectives.schedules.virtual_time import simulate
from kernels.cost_model.exchange import Exchange
from kernels.cost_model.parts import Parts
from kernels.cost_model.rates import DeviceRates
from llm_engine.plan.search.prediction import StepPrediction
from llm_engine.plan.search.wire import Transfer, transfers
from llm_engine.plan.search.work import rank_work

if TYPE_CHECKING:
    from kernels.collectives.schedules.graph import Node
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelSteps
    from llm_engine.plan.search.prediction import StepSize

_MODEL_ERROR = 0.1  # of what no cause stands for: interference, imbalance, waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The machine as the prediction takes it."""

    rates: DeviceRates
    exchange: Exchange
    num_devices: int

    @property
    def errors(self) -> Parts:
        """Relative errors by cause; rates of links that nobody told are wider."""
        wire = 0.5 if self.exchange.assumed else self.rates.errors.wire
        return replace(self.rates.errors, wire=wire)


def predict_step(
    steps: ModelSteps, setting: Setting, layout: Layout, size: StepSize
) -> StepPrediction:
    """One step of a phase. `layout.num_chunks` above 1 overlaps only where that pays.

    Raises: UnsupportedModel for a config that is not known; ValueError for sizes that no step has.
    """
    work = rank_work(steps.at(size), layout, size, setting.rates)
    moved = transfers(
        steps.facts, layout, size, steps.at(size).cache_bytes_per_token, steps.item_bytes
    )
    wire_s, latency_s = _exchange_s(moved, setting.exchange)
    codec_s = _codec_s(layout, moved, setting.rates)
    parts = work + Parts(wire=wire_s, latency=latency_s, memory=codec_s)
    hidden_s, reasons = 0.0, ()
    if layout.num_chunks > 1:
        gate = overlap_of(steps, setting, layout, size, work, wire_s + latency_s)
        hidden_s, reasons = _hidden(gate)
    seconds = parts.total_s - hidden_s
    if size.phase == "decode":  # a token of every sequence passes all stages
        seconds, hidden_s = seconds * layout.pp, hidden_s * layout.pp
        parts = parts * layout.pp
    half_s = (parts.error_s(setting.errors) ** 2 + (_MODEL_ERROR * seconds) ** 2) ** 0.5
    return StepPrediction(
        layout=layout,
        size=size,
        seconds=seconds,
        fill_s=(layout.pp - 1) * seconds if size.phase == "prefill" else 0.0,
        low_s=max(seconds - half_s, seconds / 4),
        high_s=seconds + half_s,
        parts=parts,
        hidden_s=hidden_s,
        sent_bytes=sum(transfer.sent_bytes for transfer in moved),
        reasons=reasons,
    )


def overlap_of(
    steps: ModelSteps,
    setting: Setting,
    layout: Layout,
    size: StepSize,
    work: Parts,
    wire_s: float,
) -> Overlap:
    """The gate of overlapping a step in chunks; the penalty is that of smaller products."""
    chunk_rows = max(1, size.rows // layout.num_chunks)
    piece = replace(size, rows=chunk_rows)
    chunk = rank_work(steps.at(piece), layout, piece, setting.rates)
    device_s = work.compute_s + work.latency
    pieces_s = layout.num_chunks * (chunk.compute_s + chunk.latency)
    return Overlap(
        compute_s=device_s,
        wire_s=wire_s,
        num_chunks=layout.num_chunks,
        penalty=max(0.0, pieces_s / device_s - 1),
        latency_s=setting.exchange.latency_s(layout.width),
    )


def _hidden(gate: Overlap) -> tuple[float, tuple[str, ...]]:
    """Seconds that overlap saves, and the two numbers behind them; none below its break-even.

    Smaller products take longer, and what they take longer hides under transfers as well: with
    `gate.gain_s`, a faster device could end later.
    """
    pieces_s = gate.compute_s * (1 + gate.penalty)
    gain_s = min(pieces_s, gate.wire_s) * (1 - 1 / gate.num_chunks)
    cost_s = pieces_s - gate.compute_s + gate.num_chunks * gate.latency_s
    numbers = f"hides {gain_s * 1e3:.2f} ms of a step, costs {cost_s * 1e3:.2f} ms"
    if gain_s <= cost_s:
        return 0.0, (f"overlap off: {numbers}",)
    return gain_s - cost_s, (f"overlap in {gate.num_chunks} chunks {numbers}",)


def simulated_s(prediction: StepPrediction, num_layers: int, penalty: float) -> float:
    """The step as its schedule runs in virtual time: layers of two parts with an exchange each."""
    layout, parts = prediction.layout, prediction.parts
    wire_s = parts.wire
    compute_s = parts.total_s - wire_s
    unit = 1 << 20
    work = LayerWork(
        attention_s=compute_s / num_layers / 2, mlp_s=compute_s / num_layers / 2, wire_bytes=unit
    )
    if layout.num_chunks > 1:
        shares = [1 / layout.num_chunks] * layout.num_chunks
        slower = replace(
            work,
            attention_s=work.attention_s * (1 + penalty),
            mlp_s=work.mlp_s * (1 + penalty),
        )
        schedule = token_split(2, [slower] * num_layers, shares)
    else:
        schedule = blocking_layers(2, [work] * num_layers)
    one_s = wire_s / num_layers / 2

    def transfer_s(node: Node) -> float:
        return one_s * node.size_bytes / unit

    return simulate(schedule, transfer_s).duration_s


def _exchange_s(moved: tuple[Transfer, ...], exchange: Exchange) -> tuple[float, float]:
    """Seconds on the wire, and those that even empty messages would take."""
    total_s = start_s = 0.0
    for t in moved:
        total_s += t.count * exchange.seconds(t.operation, t.size_bytes, t.n)
        start_s += t.count * exchange.seconds(t.operation, 1e-3, t.n)
    return max(0.0, total_s - start_s), min(start_s, total_s)


def _codec_s(layout: Layout, moved: tuple[Transfer, ...], rates: DeviceRates) -> float:
    """Encoding and decoding of int8 blocks: three passes over what is sent."""
    if layout.wire != "int8":
        return 0.0
    return 3 * sum(t.count * t.size_bytes for t in moved) / rates.memory_bytes_s
