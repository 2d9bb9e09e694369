"""Pairs of layouts as the engine reads them, and the refusals of those it does not run."""

import pytest

from llm_engine.models.registry import MODELS
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.plan.families import FAMILIES
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.runnable import RUNNING_FAMILIES, runnable

TP8 = Layout(tp=8, experts="reduce")
RING = Layout(cp=4, keys="ring", experts="dense")


@pytest.mark.parametrize(
    ("prefill", "decode", "text"),
    [
        (Layout(), Layout(), "tp1"),
        (TP8, TP8, "tp8,ep8"),
        (Layout(cp=8, keys="heads", experts="gather"), TP8, "cp8,ep8->tp8,ep8"),
        (Layout(cp=8, keys="heads", experts="exchange"), TP8, "cp8,ep8,a2a->tp8,ep8"),
        (
            Layout(cp=4, keys="heads", experts="dense"),
            Layout(tp=4, experts="dense"),
            "cp4->tp4",
        ),
        (Layout(pp=2, tp=2, experts="columns"), Layout(pp=2, tp=2, experts="columns"), "tp2,pp2"),
        (Layout(tp=2, experts="columns"), Layout(tp=2, experts="columns"), "tp2"),
        (Layout(pp=2, experts="local"), Layout(tp=2, experts="columns"), "pp2->tp2"),
        (Layout(pp=2, tp=2, experts="columns"), Layout(tp=4, experts="columns"), "tp2,pp2->tp4"),
        (RING, RING, "cp4,ring"),
        (Layout(dp=4, experts="dense"), Layout(dp=4, experts="dense"), "dp4"),
        (Layout(dp=4, experts="gather"), Layout(dp=4, experts="gather"), "dp4,ep4"),
        (Layout(dp=4, experts="exchange"), Layout(dp=4, experts="gather"), "dp4,ep4,a2a->dp4,ep4"),
        (Layout(dp=2, tp=2, experts="gather"), Layout(dp=2, tp=2, experts="gather"), "dp2,tp2,ep4"),
    ],
)
def test_layouts_as_the_engine_reads_them(prefill, decode, text):
    found = runnable("qwen3_moe", prefill, decode)
    assert found.text == text
    assert PhaseLayouts.parse(text).num_ranks == prefill.num_devices


def test_replicas_are_services_of_their_own():
    replica = Layout(replicas=4, tp=2, experts="columns")
    found = runnable("qwen3_moe", replica, replica)
    assert (found.text, found.services) == ("tp2", 4)


def test_an_int8_wire_of_prompts_is_asked_for():
    found = runnable("qwen3_moe", Layout(tp=8, experts="reduce", wire="int8"), TP8)
    assert (found.text, found.wire) == ("tp8,ep8", "int8")


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        (TP8, Layout(dp=8, experts="gather"), "dp is 1 for prefill and 8"),
        (Layout(dp=8, experts="local"), Layout(dp=8, experts="local"), "replicas do the same"),
        (TP8, Layout(tp=8, experts="reduce", kv_shard=2), "divided by tokens"),
        (TP8, Layout(tp=8, experts="reduce", wire="int8"), "int8 wire where answers are decoded"),
        (Layout(pp=2, wire="int8"), Layout(pp=2), "int8 wire: a stage sends a chunk on"),
        (Layout(tp=2, cp=4, experts="exchange"), TP8, "rows sent to their experts"),
        (Layout(cp=8, keys="heads", experts="local"), TP8, ""),
        (Layout(cp=8, experts="local"), TP8, "gathered keys"),
        (RING, Layout(tp=4, experts="dense"), "'ring' keeps keys by their position"),
    ],
)
def test_what_is_not_there_yet_says_why(prefill, decode, why):
    found = runnable("qwen3_moe", prefill, decode)
    assert bool(found.text) == (not why)
    assert why in found.reason


def test_the_families_that_run_are_those_of_the_engine():
    """A family's architecture is its name in another spelling: qwen3_moe, Qwen3MoeForCausalLM."""
    spelled = {name.removesuffix("ForCausalLM").lower() for name in MODELS}
    runs = {family for family in FAMILIES if family.replace("_", "") in spelled}
    assert runs == RUNNING_FAMILIES
