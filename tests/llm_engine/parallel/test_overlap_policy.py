"""What can be met of `overlap` and `wire` by the layout alone, and what is refused with reasons."""

from __future__ import annotations

import pytest

from kernels.errors import StrictRefusal
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.overlap_policy import (
    OverlapPolicy,
    check_overlap,
    settled_decisions,
    unserved,
)

SERVED = ("tp2", "ep2", "tp2,ep2", "cp2,gather", "cp2,heads")
BY_THEMSELVES = ("pp2", "cp2,ring")
BLOCKING = ("cp2,ep2,gather", "tp2,cp2,heads", "dp2,ep2")


def config(layout: str, **settings: str) -> EngineConfig:
    return EngineConfig(model="any", layout=layout, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", SERVED)
@pytest.mark.parametrize("asked", [{"overlap": "on"}, {"wire": "int8"}, {"strict_floor": "vendor"}])
def test_layouts_with_a_schedule_meet_every_wish(text: str, asked: dict[str, str]) -> None:
    layout = Layout.parse(text)
    assert unserved(layout) is None
    check_overlap(config(text, **asked), layout)
    assert [d.what for d in settled_decisions(OverlapPolicy(), layout)] == ["wire"]


@pytest.mark.parametrize("text", [*BY_THEMSELVES, *BLOCKING])
@pytest.mark.parametrize("asked", [{"overlap": "on"}, {"wire": "int8"}, {"wire": "auto"}])
def test_what_has_no_schedule_is_refused_with_a_way_out(text: str, asked: dict[str, str]) -> None:
    ((name, value),) = asked.items()
    with pytest.raises(InvalidConfig, match=f"{name} is '{value}', but prompts .*Leave it out"):
        check_overlap(config(text, **asked), Layout.parse(text))


@pytest.mark.parametrize("text", BLOCKING)
def test_strict_refuses_exchanges_that_block_for_want_of_a_schedule(text: str) -> None:
    layout = Layout.parse(text)
    (decision, _) = settled_decisions(OverlapPolicy(), layout)
    assert (decision.chosen, decision.tier) == ("off", Tier.GENERIC)
    with pytest.raises(StrictRefusal, match=r"overlap runs on off .* Remedy: take"):
        check_overlap(config(text, strict_floor="fused"), layout)
    check_overlap(config(text, strict_floor="fused", overlap="off"), layout)


@pytest.mark.parametrize("text", BY_THEMSELVES)
def test_strict_takes_layouts_that_hide_by_themselves(text: str) -> None:
    layout = Layout.parse(text)
    check_overlap(config(text, strict_floor="vendor"), layout)
    (decision, _) = settled_decisions(OverlapPolicy(), layout)
    assert decision.chosen == "by the layout"


def test_what_is_asked_for_is_in_the_ledger() -> None:
    policy = OverlapPolicy(overlap="off")
    overlap, wire = settled_decisions(policy, Layout.parse("tp2"))
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


@pytest.mark.parametrize("text", [*SERVED, *BY_THEMSELVES])
def test_ranks_on_devices_take_turns_and_say_so(text: str) -> None:
    """No schedule has run over a device's streams: nothing is hidden there."""
    layout = Layout.parse(text)
    decisions = {d.what: d for d in settled_decisions(OverlapPolicy(), layout, on_devices=True)}
    overlap = decisions["overlap"]
    assert (overlap.chosen, overlap.tier) == ("off", Tier.GENERIC)
    assert "take turns" in overlap.reasons[0]
    for asked in ({"overlap": "on"}, {"wire": "int8"}):
        with pytest.raises(InvalidConfig, match=r"take turns, .* ask for overlap off"):
            check_overlap(config(text, device="cuda", **asked), layout)
    with pytest.raises(StrictRefusal, match="Remedy: ask for overlap off"):
        check_overlap(config(text, device="cuda", strict_floor="fused"), layout)
    check_overlap(config(text, device="cuda", strict_floor="fused", overlap="off"), layout)
