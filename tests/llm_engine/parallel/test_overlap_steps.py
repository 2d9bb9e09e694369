"""Overlapped prefill steps of real models over two ranks: logits, bits, gate and ledger."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.collectives.communicator import join
from kernels.collectives.group import Group
from kernels.ledger import Ledger
from llm_engine.config import EngineConfig
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import bind_ops
from llm_engine.layers.op_choice import OpSizes
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.loading import load_share
from llm_engine.parallel.mesh import Groups, join_part
from llm_engine.parallel.overlap_choice import StepCosts
from llm_engine.parallel.overlap_policy import OverlapPolicy
from llm_engine.parallel.overlap_probe import Probe, Prober
from llm_engine.parallel.overlap_seat import layer_exchange
from llm_engine.parallel.overlap_steps import OverlappedSteps
from llm_engine.parallel.phase_steps import PhaseSteps
from llm_engine.parallel.rank_ops import RankOps
from llm_engine.parallel.shares import cached_heads
from llm_engine.parallel.step_command import StepCommand

PAGE, TOKENS = 4, 96
CUTS_ALIKE = frozenset({1, 2})
MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 40,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "num_hidden_layers": 4,
}
# Two sequences: one that goes on after 8 tokens of an earlier step, one from its start.
SPANS = (
    AttentionSpan(0, 8, tuple(range(20))),
    AttentionSpan(8, 55, tuple(range(20))),
    AttentionSpan(0, TOKENS - 55, tuple(range(20, 40))),
)


class Told:
    """A prober that measures nothing: the cut that it is told pays."""

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks

    def __call__(
        self, updates: Any, like_C: Any, num_tokens: int, world: Any, contracts: Any
    ) -> Probe:
        cost_s = {num_tokens: 1.0, num_tokens // self._num_chunks: 1.0 / self._num_chunks}
        if self._num_chunks == 2:  # and four are slow
            cost_s[num_tokens // 4] = 0.5
        if self._num_chunks == 1:
            cost_s = {num_tokens: 1.0, num_tokens // 4: 1.0}
        costs = StepCosts(
            compute_s=cost_s,
            num_layers=updates.num_layers,
            bytes_per_token=192,
            latency_s=0.0,
            bytes_s=2 * updates.num_layers * 192 * num_tokens,
        )
        faster = replace(costs, bytes_s=2 * costs.bytes_s)
        by_wire = {"exact": costs, "int8": faster}
        return Probe({c: by_wire[c] for c in contracts}, dict.fromkeys(contracts, 0.25), CUTS_ALIKE)


def command(number: int, spans: tuple[AttentionSpan, ...], rows: tuple[int, ...]) -> StepCommand:
    tokens = tuple((7 * i + number) % 240 for i in range(sum(s.num_tokens for s in spans)))
    return StepCommand(
        sequence=number, phase="prefill", token_ids=tokens, spans=spans, logit_rows=rows
    )


@pytest.fixture
def prefill(tmp_path: Path) -> Callable[..., tuple[list[torch.Tensor], Ledger]]:
    """Logits of rank 0 and its ledger; ranks are threads that read their shares of a folder."""
    number = iter(range(100))

    def run(
        folder: Path,
        layout: str,
        make_prober: Callable[..., Any] | None,
        rate_bytes_s: float = 50e6,
        repeats: int = 1,
        policy: OverlapPolicy | None = None,
    ) -> tuple[list[torch.Tensor], Ledger]:
        meeting = f"file://{tmp_path}/meeting-{next(number)}"
        config = EngineConfig(model=str(folder), layout=layout, dtype="float32", page_size=PAGE)

        def rank(index: int) -> tuple[list[torch.Tensor], Ledger]:
            torch.set_num_threads(1)
            group = Group(
                rank=index, size=2, rendezvous=meeting, timeout_s=30, rate_bytes_s=rate_bytes_s
            )
            comm = join(group, transports=("shm",))
            share = load_share(config, group)
            sizes = OpSizes(chunk_tokens=128, num_seqs=2, context=128, page_size=PAGE)
            ops = bind_ops(
                share.cached, share.dtype, sizes, asked={}, ledger=Ledger(), device=share.device
            )
            groups = Groups(comm, join_part)
            mesh, _ = groups.meshes(share.layouts)
            rank_ops = RankOps(share.whole, share.layouts, share.layouts.prefill, mesh, ops)
            cache = PagedCache(share.cached, 40, PAGE, share.dtype)
            ledger = Ledger()
            cp_heads = [cached_heads(share.whole, rank_ops.layout, r) for r in range(2)]
            overlap = None
            if make_prober is not None:
                exchange = layer_exchange(share, rank_ops, cp_heads)
                prober = make_prober(share.cached, ops, share.model.rotary, PAGE, exchange)
                overlap = OverlappedSteps(share.model, rank_ops, prober, ledger, policy)
            steps = PhaseSteps(share.model, cache, ops, rank_ops, cp_heads, overlap)
            found: list[torch.Tensor] = []
            with torch.inference_mode():
                for _ in range(repeats):
                    steps.run(command(0, SPANS[:1], ()))
                    logits = steps.run(command(1, SPANS[1:], (54, TOKENS - 1)))
                    if logits is not None:
                        found.append(logits)
            groups.close()
            comm.close()
            return found, ledger

        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(rank, index) for index in range(2)]
            first, _ = [future.result() for future in futures]
            return first

    return run


def told_free(*_: Any) -> Any:
    """A prober that finds exchanges that take no time, so that no wire saves any."""

    def probe(updates: Any, like_C: Any, num_tokens: int, world: Any, contracts: Any) -> Probe:
        found = Told(1)(updates, like_C, num_tokens, world, contracts)
        free = {c: replace(costs, bytes_s=1e30) for c, costs in found.costs.items()}
        return replace(found, costs=free)

    return probe


def told(num_chunks: int) -> Callable[..., Any]:
    return lambda *_: Told(num_chunks)


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp2", {}),
        ("tp2", MOE),
        ("ep2", MOE),
        ("tp2,ep2", MOE),
        ("cp2,gather", {}),
        ("cp2,gather", MOE),
        ("cp2,heads", {}),
        ("cp2,heads", MOE),
        ("cp2->tp2", {}),
    ],
)
def test_overlapped_steps_give_the_serial_logits(
    layout: str, model: dict[str, Any], prefill: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder(**model)
    (serial,), _ = prefill(folder, layout, None)
    for num_chunks in (2, 4):
        (once, again), ledger = prefill(folder, layout, told(num_chunks), repeats=2)
        assert torch.equal(once, again), "the same step twice"
        assert torch.equal(once.argmax(-1), serial.argmax(-1))
        torch.testing.assert_close(once, serial, rtol=1e-5, atol=1e-4)
        (decision,) = [d for d in ledger if d.what == "overlap"]
        assert decision.chosen == f"on, {num_chunks} chunks"
        assert any("hides" in r and "costs" in r for r in decision.reasons)


def test_a_step_below_the_break_even_is_left_whole(
    prefill: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    (serial,), _ = prefill(folder, "tp2", None)
    (found,), ledger = prefill(folder, "tp2", told(1))
    assert torch.equal(found, serial)
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.chosen == "off"


INT8 = OverlapPolicy(wire="int8")


@pytest.mark.parametrize("layout", ["tp2", "cp2,gather", "cp2,heads"])
def test_an_int8_wire_is_measured_told_and_repeats(
    layout: str, prefill: Any, model_folder: Callable[..., Path]
) -> None:
    """Numbers change by about what the probe found, in chunks and in one; the ledger shows it."""
    folder = model_folder()
    (serial,), _ = prefill(folder, layout, None)
    for policy in (INT8, replace(INT8, overlap="off"), replace(INT8, overlap="on")):
        (once, again), ledger = prefill(folder, layout, Prober, 1e6, repeats=2, policy=policy)
        (decision,) = [d for d in ledger if d.what == "wire"]
        assert (decision.asked, decision.chosen, decision.source) == ("int8", "int8", "explicit")
        (told_error,) = [float(r.split()[-1]) for r in decision.reasons if "error" in r]
        assert 0 < told_error < 0.5 / 127 * 8  # half a step of blocks whose peak is 8 of their norm
        assert torch.equal(once, again), "the same step twice"
        found = float((once - serial).norm() / serial.norm())
        num_exchanges = 2 * 2 + 1
        assert 0 < found < num_exchanges * told_error
        overlaps = [d.chosen for d in ledger if d.what == "overlap"]
        assert bool(overlaps) is (policy.overlap != "off")


@pytest.mark.parametrize(("num_chunks", "expected"), [(2, "int8"), (1, "exact")])
def test_a_wire_that_may_be_int8_is_so_where_it_pays(
    num_chunks: int, expected: str, prefill: Any, model_folder: Callable[..., Path]
) -> None:
    """Told that int8 is twice as fast: half of a wire that takes as long as the computation."""
    policy = OverlapPolicy(overlap="off" if num_chunks == 2 else "auto", wire="auto")
    prober = told(2) if num_chunks == 2 else told_free
    _, ledger = prefill(model_folder(), "tp2", prober, policy=policy)
    (decision,) = [d for d in ledger if d.what == "wire"]
    assert (decision.chosen, decision.source) == (expected, "tuned")
    texts = [*decision.reasons, *(r for other in decision.rejected for r in other.reasons)]
    assert any("error of one layer's exchanges: 0.25" in text for text in texts)


def test_off_measures_nothing(prefill: Any, model_folder: Callable[..., Path]) -> None:
    def no_prober(*_: Any) -> Any:
        return lambda *_: pytest.fail("nothing is to be measured")

    folder = model_folder()
    (serial,), _ = prefill(folder, "tp2", None)
    (found,), ledger = prefill(folder, "tp2", no_prober, policy=OverlapPolicy(overlap="off"))
    assert torch.equal(found, serial)
    assert not list(ledger)


def test_on_overlaps_below_the_break_even_and_says_so(
    prefill: Any, model_folder: Callable[..., Path]
) -> None:
    _, ledger = prefill(model_folder(), "tp2", told(1), policy=OverlapPolicy(overlap="on"))
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.chosen.startswith("on, ")
    assert decision.source == "explicit"
    off = next(r for r in decision.rejected if r.candidate == "off")
    assert off.reasons == ("predicted faster, but on is asked for",)


@pytest.mark.parametrize("layout", ["tp2", "ep2", "cp2,gather", "cp2,heads"])
def test_the_probe_decides_alike_on_both_ranks(
    layout: str, prefill: Any, model_folder: Callable[..., Path]
) -> None:
    """With the real probe: whatever it decides, ranks stay together and the logits are right."""
    folder = model_folder(**(MOE if layout == "ep2" else {}))
    (serial,), _ = prefill(folder, layout, None)
    (found,), ledger = prefill(folder, layout, Prober, rate_bytes_s=1e6)
    torch.testing.assert_close(found, serial, rtol=1e-5, atol=1e-4)
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.source == "tuned"
