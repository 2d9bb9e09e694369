"""Overlapped steps of real models over two ranks: logits, bits, gate and ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from llm_engine.layers.step import Step
from llm_engine.parallel.layout import PHASES, Phase
from llm_engine.parallel.loading import load_share
from llm_engine.parallel.mesh import Groups, join_part
from llm_engine.parallel.overlap_choice import StepCosts
from llm_engine.parallel.overlap_policy import OverlapPolicy
from llm_engine.parallel.overlap_probe import Probe, Prober
from llm_engine.parallel.overlap_seat import layer_exchange
from llm_engine.parallel.overlap_steps import OverlappedSteps, StepPlan
from llm_engine.parallel.overlap_wire import LinkLine
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
# Answers that are decoded together: prompts of two tokens, and one row each after them; one has a
# draft as well, so that no even cut falls between sequences.
NUM_ANSWERS, PROMPT = 20, 2
PROMPTS = tuple(AttentionSpan(0, PROMPT, (2 * i, 2 * i + 1)) for i in range(NUM_ANSWERS))
ANSWERS = tuple(
    AttentionSpan(PROMPT, 1 + (i == NUM_ANSWERS - 1), (2 * i, 2 * i + 1))
    for i in range(NUM_ANSWERS)
)


class Cut(OverlappedSteps):
    """Steps that are seen to be cut as planned: into as many chunks, or whole for pieces of dp."""

    def hidden(self, steps: Sequence[Step], plan: StepPlan) -> list[torch.Tensor]:
        assert len(steps) == (1 if self._ops.layout.dp > 1 else plan.num_chunks)
        return super().hidden(steps, plan)


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
            idle=LinkLine(0.0, 2 * updates.num_layers * 192 * num_tokens),
        )
        faster = replace(costs, idle=LinkLine(0.0, 2 * costs.idle.bytes_s))
        by_wire = {"exact": costs, "int8": faster}
        return Probe({c: by_wire[c] for c in contracts}, dict.fromkeys(contracts, 0.25), CUTS_ALIKE)


def command(
    number: int,
    spans: tuple[AttentionSpan, ...],
    rows: Sequence[int],
    phase: Phase = "prefill",
    num_first: int | None = None,
) -> StepCommand:
    """With `num_first`, so many spans lie in the first part of a cache, the others in another."""
    tokens = tuple((7 * i + number) % 240 for i in range(sum(s.num_tokens for s in spans)))
    part_rows: tuple[int, ...] = ()
    if num_first is not None:
        part_rows = tuple(
            sum(s.num_tokens for s in part) for part in (spans[:num_first], spans[num_first:])
        )
    return StepCommand(
        sequence=number,
        phase=phase,
        token_ids=tokens,
        spans=spans,
        logit_rows=tuple(rows),
        part_rows=part_rows,
    )


@pytest.fixture
def run_steps(tmp_path: Path) -> Callable[..., tuple[list[torch.Tensor], Ledger]]:
    """Logits of rank 0 and its ledger; ranks are threads that read their shares of a folder."""
    number = iter(range(100))

    def run(
        folder: Path,
        layout: str,
        make_prober: Callable[..., Any] | None,
        rate_bytes_s: float = 50e6,
        repeats: int = 1,
        policy: OverlapPolicy | None = None,
        phase: Phase = "prefill",
    ) -> tuple[list[torch.Tensor], Ledger]:
        policy = (policy or OverlapPolicy()).in_phase(phase)
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
            mesh = dict(zip(PHASES, groups.meshes(share.layouts), strict=True))[phase]
            rank_ops = RankOps(share.whole, share.layouts, share.layouts.of(phase), mesh, ops)
            cache = PagedCache(share.cached, 40, PAGE, share.dtype)
            ledger = Ledger()
            cp_heads = [cached_heads(share.whole, rank_ops.layout, r) for r in range(2)]
            overlap = None
            if make_prober is not None:
                exchange = layer_exchange(share, rank_ops, cp_heads)
                prober = make_prober(share.cached, ops, share.model.rotary, PAGE, exchange, phase)
                overlap = Cut(share.model, rank_ops, prober, ledger, policy)
            steps = PhaseSteps(share.model, cache, ops, rank_ops, cp_heads, overlap)
            before = PhaseSteps(share.model, cache, ops, rank_ops, cp_heads)
            one, half = (1, NUM_ANSWERS // 2) if rank_ops.layout.dp > 1 else (None, None)
            first = command(0, SPANS[:1], (), num_first=one)
            second = command(1, SPANS[1:], (54, TOKENS - 1), num_first=one)
            if phase == "decode":
                first = command(0, PROMPTS, (), num_first=half)
                second = command(1, ANSWERS, range(NUM_ANSWERS + 1), phase, half)
            found: list[torch.Tensor] = []
            with torch.inference_mode():
                for _ in range(repeats):
                    before.run(first)
                    logits = steps.run(second)
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
        free = {c: replace(costs, idle=LinkLine(0.0, 1e30)) for c, costs in found.costs.items()}
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
        ("dp2", {}),
        ("dp2", MOE),
        ("dp2,ep2", MOE),
    ],
)
def test_overlapped_steps_give_the_serial_logits(
    layout: str, model: dict[str, Any], run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder(**model)
    (serial,), _ = run_steps(folder, layout, None)
    for num_chunks in (2, 4):
        (once, again), ledger = run_steps(folder, layout, told(num_chunks), repeats=2)
        assert torch.equal(once, again), "the same step twice"
        assert torch.equal(once.argmax(-1), serial.argmax(-1))
        torch.testing.assert_close(once, serial, rtol=1e-5, atol=1e-4)
        (decision,) = [d for d in ledger if d.what == "overlap"]
        assert decision.chosen == f"on, {num_chunks} chunks"
        assert any("hides" in r and "costs" in r for r in decision.reasons)


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp2", {}),
        ("tp2,ep2", MOE),
        ("ep2", MOE),
        ("cp2,gather", {}),
        ("cp2,heads", {}),
        ("cp2->tp2", {}),
        ("dp2", {}),
        ("dp2,ep2", MOE),
    ],
)
def test_micro_batches_of_answers_give_the_serial_logits(
    layout: str, model: dict[str, Any], run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder(**model)
    (serial,), _ = run_steps(folder, layout, None, phase="decode")
    assert len(serial) == NUM_ANSWERS + 1
    for num_chunks in (2, 4):
        (once, again), ledger = run_steps(
            folder, layout, told(num_chunks), repeats=2, phase="decode"
        )
        assert torch.equal(once, again), "the same step twice"
        torch.testing.assert_close(once, serial, rtol=1e-5, atol=1e-4)
        (decision,) = [d for d in ledger if d.what == "overlap"]
        assert decision.chosen == f"on, {num_chunks} chunks"
        assert decision.where == "llm engine, ranks, decode"


@pytest.mark.parametrize("layout", ["tp2", "cp2,gather", "cp2,heads", "dp2"])
@pytest.mark.parametrize("policy", [OverlapPolicy(), OverlapPolicy(overlap="on", wire="int8")])
def test_the_probe_of_answers_decides_alike_and_keeps_their_wire_exact(
    layout: str, policy: OverlapPolicy, run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    (serial,), _ = run_steps(folder, layout, None, phase="decode")
    (found,), ledger = run_steps(
        folder, layout, Prober, rate_bytes_s=1e6, policy=policy, phase="decode"
    )
    torch.testing.assert_close(found, serial, rtol=1e-5, atol=1e-4)
    (decision,) = ledger
    assert (decision.what, decision.case) == ("overlap", "16 tokens")


def test_a_step_below_the_break_even_is_left_whole(
    run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    (serial,), _ = run_steps(folder, "tp2", None)
    (found,), ledger = run_steps(folder, "tp2", told(1))
    assert torch.equal(found, serial)
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.chosen == "off"


INT8 = OverlapPolicy(wire="int8")


@pytest.mark.parametrize("layout", ["tp2", "cp2,gather", "cp2,heads"])
def test_an_int8_wire_is_measured_told_and_repeats(
    layout: str, run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    """Numbers change by about what the probe found, in chunks and in one; the ledger shows it."""
    folder = model_folder()
    (serial,), _ = run_steps(folder, layout, None)
    for policy in (INT8, replace(INT8, overlap="off"), replace(INT8, overlap="on")):
        (once, again), ledger = run_steps(folder, layout, Prober, 1e6, repeats=2, policy=policy)
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
    num_chunks: int, expected: str, run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    """Told that int8 is twice as fast: half of a wire that takes as long as the computation."""
    policy = OverlapPolicy(overlap="off" if num_chunks == 2 else "auto", wire="auto")
    prober = told(2) if num_chunks == 2 else told_free
    _, ledger = run_steps(model_folder(), "tp2", prober, policy=policy)
    (decision,) = [d for d in ledger if d.what == "wire"]
    assert (decision.chosen, decision.source) == (expected, "tuned")
    texts = [*decision.reasons, *(r for other in decision.rejected for r in other.reasons)]
    assert any("error of one layer's exchanges: 0.25" in text for text in texts)


def test_off_measures_nothing(run_steps: Any, model_folder: Callable[..., Path]) -> None:
    def no_prober(*_: Any) -> Any:
        return lambda *_: pytest.fail("nothing is to be measured")

    folder = model_folder()
    (serial,), _ = run_steps(folder, "tp2", None)
    (found,), ledger = run_steps(folder, "tp2", no_prober, policy=OverlapPolicy(overlap="off"))
    assert torch.equal(found, serial)
    assert not list(ledger)


def test_on_overlaps_below_the_break_even_and_says_so(
    run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    _, ledger = run_steps(model_folder(), "tp2", told(1), policy=OverlapPolicy(overlap="on"))
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.chosen.startswith("on, ")
    assert decision.source == "explicit"
    off = next(r for r in decision.rejected if r.candidate == "off")
    assert off.reasons == ("predicted faster, but on is asked for",)


@pytest.mark.parametrize("layout", ["tp2", "ep2", "cp2,gather", "cp2,heads", "dp2"])
def test_the_probe_decides_alike_on_both_ranks(
    layout: str, run_steps: Any, model_folder: Callable[..., Path]
) -> None:
    """With the real probe: whatever it decides, ranks stay together and the logits are right."""
    folder = model_folder(**(MOE if layout == "ep2" else {}))
    (serial,), _ = run_steps(folder, layout, None)
    (found,), ledger = run_steps(folder, layout, Prober, rate_bytes_s=1e6)
    torch.testing.assert_close(found, serial, rtol=1e-5, atol=1e-4)
    (decision,) = [d for d in ledger if d.what == "overlap"]
    assert decision.source == "tuned"
