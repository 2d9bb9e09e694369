"""What can be met of `overlap` and `wire` by the layout alone, and what is refused with reasons."""

from __future__ import annotations

import pytest

from kernels.errors import StrictRefusal
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.overlap_policy import (
    OverlapPolicy,
    check_overlap,
    settled_decisions,
    unserved,
)

SERVED = ("tp2", "ep2", "tp2,ep2", "cp2,gather", "cp2,heads")
SERVED_EXACT = ("dp2", "dp2,ep2", "dp2,tp2")
BY_THEMSELVES = ("pp2", "cp2,ring")
BLOCKING = ("cp2,ep2,gather", "tp2,cp2,heads", "dp2,ep2,a2a", "dp2,cp2")


def config(layout: str, **settings: str) -> EngineConfig:
    return EngineConfig(model="any", layout=layout, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", SERVED)
@pytest.mark.parametrize("asked", [{"overlap": "on"}, {"wire": "int8"}, {"strict_floor": "vendor"}])
def test_layouts_with_a_schedule_meet_every_wish(text: str, asked: dict[str, str]) -> None:
    layouts = PhaseLayouts.parse(text)
    assert unserved(layouts.prefill) is None
    check_overlap(config(text, **asked), layouts)
    assert [d.what for d in settled_decisions(OverlapPolicy(), layouts)] == ["wire"]


@pytest.mark.parametrize("text", SERVED_EXACT)
def test_rows_of_all_sequences_are_hidden_and_travel_as_they_are(text: str) -> None:
    layouts = PhaseLayouts.parse(text)
    for asked in ({"overlap": "on"}, {"strict_floor": "vendor"}):
        check_overlap(config(text, **asked), layouts)
    with pytest.raises(InvalidConfig, match=r"wire is .int8., but .* travel as they are"):
        check_overlap(config(text, wire="int8"), layouts)


@pytest.mark.parametrize("text", [*BY_THEMSELVES, *BLOCKING])
@pytest.mark.parametrize("asked", [{"overlap": "on"}, {"wire": "int8"}, {"wire": "auto"}])
def test_what_has_no_schedule_is_refused_with_a_way_out(text: str, asked: dict[str, str]) -> None:
    ((name, value),) = asked.items()
    with pytest.raises(InvalidConfig, match=f"{name} is '{value}', but prompts .*Leave it out"):
        check_overlap(config(text, **asked), PhaseLayouts.parse(text))


@pytest.mark.parametrize("text", BLOCKING)
def test_strict_refuses_exchanges_that_block_for_want_of_a_schedule(text: str) -> None:
    layout = PhaseLayouts.parse(text)
    *decisions, _ = settled_decisions(OverlapPolicy(), layout)
    assert [(d.chosen, d.tier) for d in decisions] == [("off", Tier.GENERIC)] * 2
    with pytest.raises(StrictRefusal, match=r"overlap runs on off .* Remedy: (take|leave)"):
        check_overlap(config(text, strict_floor="fused"), layout)
    check_overlap(config(text, strict_floor="fused", overlap="off"), layout)


@pytest.mark.parametrize("text", BY_THEMSELVES)
def test_strict_takes_layouts_that_hide_by_themselves(text: str) -> None:
    layout = PhaseLayouts.parse(text)
    check_overlap(config(text, strict_floor="vendor"), layout)
    *decisions, _ = settled_decisions(OverlapPolicy(), layout)
    assert [d.chosen for d in decisions] == ["by the layout"] * 2


def test_what_is_asked_for_is_in_the_ledger() -> None:
    policy = OverlapPolicy(overlap="off")
    overlap, answers, wire = settled_decisions(policy, PhaseLayouts.parse("tp2"))
    assert answers.where == "llm engine, ranks, decode"
    assert (overlap.asked, overlap.chosen, overlap.source) == ("off", "off", "explicit")
    assert (wire.chosen, wire.source) == ("exact", "default")


@pytest.mark.parametrize("asked", [{"overlap": "off"}, {"overlap": "on"}, {"wire": "int8"}])
def test_settings_of_ranks_need_ranks(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="one rank exchanges nothing"):
        config("", **asked)


@pytest.mark.parametrize(("name", "value"), [("overlap", "yes"), ("wire", "int4")])
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} is '{value}', must be one of"):
        config("tp2", **{name: value})


@pytest.mark.parametrize("text", [*SERVED, *SERVED_EXACT, *BY_THEMSELVES])
def test_ranks_on_devices_take_turns_and_say_so(text: str) -> None:
    """No schedule has run over a device's streams: nothing is hidden there."""
    layout = PhaseLayouts.parse(text)
    decisions = {d.what: d for d in settled_decisions(OverlapPolicy(), layout, on_devices=True)}
    overlap = decisions["overlap"]
    assert (overlap.chosen, overlap.tier) == ("off", Tier.GENERIC)
    assert "take turns" in overlap.reasons[0]
    for asked in ({"overlap": "on"}, {"wire": "int8"}):
        why = r"take turns, .* ask for overlap off"
        if "wire" in asked and text in SERVED_EXACT:
            why = "travel as they are"
        with pytest.raises(InvalidConfig, match=why):
            check_overlap(config(text, device="cuda", **asked), layout)
    with pytest.raises(StrictRefusal, match="Remedy: ask for overlap off"):
        check_overlap(config(text, device="cuda", strict_floor="fused"), layout)
    check_overlap(config(text, device="cuda", strict_floor="fused", overlap="off"), layout)
