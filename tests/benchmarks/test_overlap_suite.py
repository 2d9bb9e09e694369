"""The overlap benchmark: predictions are those of virtual time, stages compute the same model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.overlap.context import FusedContext
from benchmarks.overlap.crew import Crew, RankFailed
from benchmarks.overlap.eager import EagerLayers
from benchmarks.overlap.fused import FusedLayers, FusedWeights
from benchmarks.overlap.measure import SIZE, Effort, Measurement, WrongBits
from benchmarks.overlap.models import MODELS, RandomWeights
from benchmarks.overlap.prediction import Sizes, predict, schedule_of
from benchmarks.overlap.rates import SERIAL, measure_answers, overlapped
from benchmarks.overlap.shares import Share
from benchmarks.overlap.stages import staircase
from benchmarks.overlap.staircase import BASE_WIRE_SHARE, GOAL
from kernels.collectives.alone import Alone
from llm_engine.parallel.overlap import LayerUpdates, OverlappedLayers, TokenChunk
from llm_engine.parallel.overlap_context import OverlappedContext
from llm_engine.parallel.overlap_wire import LinkLine

SIZES = Sizes(tp_bytes=10, cp_bytes=2, num_layers=3, num_tokens=100)
TINY = Effort(num_layers=1, num_tokens=128, rounds=1, budget_s=5.0)


def durations(num_chunks: int, part_s: float) -> dict[tuple[int, str], float]:
    schedule = schedule_of(overlapped(num_chunks), SIZES, 2)
    return {n.place: part_s for n in schedule.nodes if n.kind == "compute"}


def test_a_serial_prediction_is_the_sum_of_all_that_is_done() -> None:
    line = LinkLine.through({100: 0.2, 1100: 1.2})
    assert (line.latency_s, line.bytes_s) == pytest.approx((0.1, 1000))
    found = predict(SERIAL, SIZES, 2, durations(1, 1.0), line).duration_s
    assert found == pytest.approx(6 * (1.0 + 0.1 + 1000 / 1000))


def test_an_overlapped_prediction_leaves_one_chunk_exposed() -> None:
    """Six parts of two chunks, each as long on the wire: one chunk of it is left at the end."""
    line = LinkLine(0.0, 1000.0)
    found = predict(overlapped(2), SIZES, 2, durations(2, 0.5), line).duration_s
    assert found == pytest.approx(12 * 0.5 + 0.5)


def test_the_rule_of_the_link_is_stated_in_the_published_figures() -> None:
    assert pytest.approx(0.68, abs=0.005) == BASE_WIRE_SHARE
    assert pytest.approx(6.87, abs=0.005) == GOAL


@pytest.mark.parametrize("name", sorted(MODELS))
def test_all_stages_compute_the_same_model(name: str) -> None:
    """In float32 over two shares: eager, fused and shared rows differ by rounding alone."""
    torch.manual_seed(0)
    num_tokens = 40
    with torch.inference_mode():
        weights = RandomWeights(MODELS[name].config(1), torch.float32)
        x_NC = torch.randn(num_tokens, weights.config.hidden_size)
        whole = FusedWeights(weights, Share(0, 1), num_tokens)
        chunks = [TokenChunk(x_NC, whole.step(0, num_tokens))]
        OverlappedLayers(FusedLayers(whole), Alone())(chunks)
        expected = chunks[0].x_NC
        fused = [FusedWeights(weights, Share(rank, 2), num_tokens) for rank in range(2)]
        eager = [EagerLayers(weights, Share(rank, 2)) for rank in range(2)]
        with_sdpa = [EagerLayers(weights, Share(rank, 2)) for rank in range(2)]
        for layers in with_sdpa:
            layers.fuses_attention = True
        steps = [share.step(0, num_tokens) for share in fused]
        kinds: list[Sequence[LayerUpdates]] = [eager, with_sdpa, [FusedLayers(s) for s in fused]]
        for shares in kinds:
            y_NC = x_NC
            for update in ("attention_update", "mlp_update"):
                terms = [
                    getattr(share, update)(0, y_NC, step)
                    for share, step in zip(shares, steps, strict=True)
                ]
                y_NC = y_NC + terms[0] + terms[1]
            torch.testing.assert_close(y_NC, expected, rtol=1e-4, atol=1e-4)
        layers = FusedContext(whole, 0, 1, num_tokens)
        xs = [x_NC[p.start : p.start + p.num_tokens] for p in layers.pieces]
        OverlappedContext(layers, Alone())(xs)
        torch.testing.assert_close(torch.cat(xs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_measurement_between_processes(tmp_path: Path) -> None:
    """Every stage runs over a limited link; what must be the same bits is."""
    with Crew(SIZE, tmp_path) as crew:
        at = Measurement(crew, "llama-like", 1, TINY)
        at.meet(200e6)
        runs = at.rounds(staircase(2), lambda _: None)
        assert all(run.median_s > 0 and at.predicted(run.stage).duration_s > 0 for run in runs)
        for run in runs[2:]:
            at.check_bits(run)
        runs[2].digests[1] = "others"
        with pytest.raises(WrongBits, match=r"ranks \[1\]"):
            at.check_bits(runs[2])
        assert all(run.result["error"] < 0.05 for run in runs)
        (row,) = measure_answers("llama-like", at, lambda _: None)
        assert row["row"].startswith("llama-like, 64 answers, wire 1 x compute")
        assert min(row["ours"], row["limit"], row["predicted_overlapped_s"]) > 0
        with pytest.raises(RankFailed, match="rank 0, prepare: KeyError"):
            crew("prepare", "no such model", 1, 8)
