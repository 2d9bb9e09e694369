"""What the engine runs is what its ledger says: chosen once, shown, met or refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels.errors import ImplUnavailable, StrictRefusal
from kernels.ops.registry import op_spec
from kernels.spec import Implementation, OpSpec, Tier
from llm_engine import loader
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from llm_engine.layers import bound_ops, op_choice

Build = Callable[..., LLMEngine]
Make = Callable[..., Any]
CALLED = ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode")
NUM_LAYERS = 3


def _answer(engine: LLMEngine, request: Any, tokens_of: Callable[..., Any]) -> list[int]:
    return tokens_of(engine.generate([request]))[request.request_id]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Calls by op, once every op has a counting implementation in front of all others."""
    calls = dict.fromkeys(CALLED, 0)
    module = ModuleType("counting_ops")

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    def spec_of(name: str) -> OpSpec:
        spec = op_spec(name)
        if name not in CALLED:
            return spec
        setattr(module, name, counting(name, spec.find("cpu").load()))
        ours = Implementation(name="counted", tier=Tier.FUSED, entry=f"counting_ops:{name}")
        return replace(spec, implementations=(ours, *spec.implementations))

    monkeypatch.setitem(sys.modules, "counting_ops", module)
    monkeypatch.setattr(bound_ops, "op_spec", spec_of)
    return calls


def test_every_op_is_recorded_once_and_shown(tiny_engine: Build) -> None:
    engine = tiny_engine()
    decisions = [d for d in engine.ledger if d.where.startswith(op_choice.WHERE)]
    expected = [*CALLED, "gemm", "sampler", "paged_decode", *bound_ops.BLOCKS]
    assert [d.what for d in decisions] == expected
    assert len({(d.what, d.where) for d in decisions}) == len(decisions)
    assert [(d.what, d.chosen, str(d.tier)) for d in decisions] == list(engine.card.kernels)
    assert {d.chosen for d in decisions} == {"cpu", "torch", "engine"}
    assert all(d.case and d.evidence and d.where for d in decisions)
    assert json.loads(json.dumps(engine.card.kernels))[0] == ["rms_norm", "cpu", "fused"]


def test_the_engines_own_functions_say_why(tiny_engine: Build) -> None:
    own = [d for d in tiny_engine().ledger if d.chosen == "engine"]
    assert [d.what for d in own] == ["rotary_insert", "sampler", "paged_decode", *bound_ops.BLOCKS]
    for decision in own[3:]:
        assert decision.tier == Tier.FUSED
        assert "weights=unpacked is not packed" in decision.rejected[0].reasons
    for decision in own[:3]:
        assert (decision.tier, decision.source) == (Tier.FUSED, "tuned")
        assert decision.rejected[-1].candidate == "cpu"
        assert "µs" in decision.rejected[-1].reasons[0]


def test_what_is_recorded_is_what_runs(
    counted: dict[str, int], tiny_engine: Build, make_request: Make
) -> None:
    engine = tiny_engine(kernels={"rotary_insert": "counted"}, prefix_cache=False)
    chosen = {d.what: d.chosen for d in engine.ledger if d.where == op_choice.WHERE}
    assert [chosen[name] for name in CALLED] == ["counted"] * len(CALLED)
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True, "n": 2}
    engine.generate([make_request("a", range(8), **params)])
    # Both choices' prompts in one step of 16 tokens, then four steps of two rows.
    chunks, decodes = 1, 4
    steps = chunks + decodes
    assert engine.stats().steps_total == steps
    assert counted == {
        "rms_norm": steps * (2 * NUM_LAYERS + 1),
        "swiglu": steps * NUM_LAYERS,
        "rotary_insert": steps * NUM_LAYERS,
        "paged_prefill": chunks * NUM_LAYERS,
        "paged_decode": decodes * NUM_LAYERS,
    }


@pytest.mark.parametrize("asked", ["torch", "cpu"])
@pytest.mark.parametrize("op", CALLED)
def test_a_request_is_met(
    op: str, asked: str, tiny_engine: Build, make_request: Make, tokens_of: Callable[..., Any]
) -> None:
    request = make_request("a", range(40), temperature=0.0, max_tokens=8, ignore_eos=True)
    engine = tiny_engine(kernels={op: asked})
    (decision,) = [d for d in engine.ledger if d.what == op]
    tier = Tier.GENERIC if asked == "torch" else Tier.FUSED
    expected = (asked, asked, tier, "explicit")
    assert (decision.asked, decision.chosen, decision.tier, decision.source) == expected
    assert _answer(engine, request, tokens_of) == _answer(tiny_engine(), request, tokens_of)


@pytest.mark.parametrize("op", ["sampler", "rotary_insert"])
def test_the_engines_own_can_be_asked_for(tiny_engine: Build, op: str) -> None:
    (decision,) = [d for d in tiny_engine(kernels={op: "engine"}).ledger if d.what == op]
    assert (decision.chosen, decision.source) == ("engine", "explicit")


@pytest.mark.parametrize(
    ("op", "asked"),
    [("rms_norm", "triton"), ("swiglu", "nothing"), ("sampler", "cpu"), ("gemm", "engine")],
)
def test_a_request_is_refused_never_replaced(tiny_engine: Build, op: str, asked: str) -> None:
    with pytest.raises(ImplUnavailable, match=asked):
        tiny_engine(kernels={op: asked})


def test_an_op_it_does_not_run_is_refused(tiny_engine: Build) -> None:
    with pytest.raises(InvalidConfig, match="sparse_mla, but the engine runs rms_norm"):
        tiny_engine(kernels={"sparse_mla": "triton"})


def test_strictness_comes_before_the_weights(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reading(*_: Any) -> None:
        raise AssertionError("weights are read")

    def load(**settings: Any) -> LLMEngine:
        return LLMEngine.load(EngineConfig(model=str(tiny_folder), dtype="float32", **settings))

    monkeypatch.setattr(loader, "load_weights", no_reading)
    with pytest.raises(StrictRefusal, match="rms_norm runs on torch"):
        load(strict_floor="fused", kernels={"rms_norm": "torch"})
    with pytest.raises(StrictRefusal, match=r"swiglu runs on cpu \(fused, below vendor\)"):
        load(strict_floor="vendor")
    with pytest.raises(ImplUnavailable):
        load(kernels={"rms_norm": "triton"})
    with pytest.raises(ImplUnavailable, match="weights=unpacked is not packed"):
        load(kernels={"mlp_block": "native"})
    with pytest.raises(AssertionError, match="weights are read"):
        load(strict_floor="fused")


def test_a_floor_that_is_met_lets_it_run(tiny_engine: Build) -> None:
    ledger = tiny_engine(strict_floor="fused").ledger
    assert len([d for d in ledger if d.where.startswith(op_choice.WHERE)]) == len(CALLED) + 5
    with pytest.raises(InvalidConfig, match="vendor, fused, generic"):
        EngineConfig(model="x", strict_floor="best")


def test_a_sequence_alone_is_decoded_by_what_is_recorded(
    counted: dict[str, int], tiny_engine: Build, make_request: Make, tokens_of: Callable[..., Any]
) -> None:
    request = make_request("a", range(10), temperature=0.0, max_tokens=6, ignore_eos=True)
    by_engine = _answer(tiny_engine(), request, tokens_of)
    assert counted["paged_decode"] == 0
    engine = tiny_engine(kernels={"paged_decode": "counted"})
    assert {d.chosen for d in engine.ledger if d.what == "paged_decode"} == {"counted"}
    assert _answer(engine, request, tokens_of) == by_engine
    assert counted["paged_decode"] == 5 * NUM_LAYERS
