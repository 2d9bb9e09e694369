"""Layouts of a clip: text and back, the planner's terms, refusals that say why."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from video_engine.config import EngineConfig
from video_engine.errors import InvalidLayout
from video_engine.parallel.check import check_layout, check_memory
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.place import Place, head_runs, own_branches, runs, sequence_ranks
from video_engine.parallel.seat import device_of
from video_engine.plan.clip_layout import ClipFacts, clip_layouts


@settings(deadline=None)
@given(
    st.builds(
        lambda cfg, ulysses, groups, wire: VideoLayout(
            cfg=cfg, ulysses=ulysses, groups=groups, wire=wire
        ),
        st.sampled_from([1, 2]),
        st.integers(2, 64),
        st.none() | st.integers(1, 9),
        st.sampled_from(["exact", "int8"]),
    )
)
def test_text_and_back(layout: VideoLayout) -> None:
    assert VideoLayout.parse(str(layout)) == layout
    clip = layout.clip
    assert clip.num_devices == layout.num_ranks == layout.cfg * layout.ulysses
    assert (clip.cfg, clip.ulysses, clip.num_groups) == (
        layout.cfg,
        layout.ulysses,
        layout.groups or 1,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no axis; write axes"),
        ("ulysses", "'ulysses' is no axis"),
        ("ulysses0", "'ulysses0' is no axis"),
        ("cfg3", "guidance has two branches"),
        ("ulysses2,ulysses2", "gives ulysses twice"),
        ("tp2", "tp is planned by `lanewise plan`"),
        ("ulysses2,ring2", "ring is planned"),
        ("cfg2,groups2", "add ulysses2"),
        ("cfg2,int8", "add ulysses2"),
        ("cfg2 ulysses2", "is no axis"),
    ],
)
def test_texts_that_are_no_layout(text: str, words: str) -> None:
    with pytest.raises(InvalidLayout, match=words):
        VideoLayout.parse(text)


@pytest.mark.parametrize(
    ("kind", "layout", "words"),
    [
        ("wan2.2", "ulysses1", "for 1 ranks, a group has 2 to"),
        ("wan2.2", "ulysses65", "for 65 ranks"),
        ("ltx", "ulysses2", "LTXImageToVideoPipeline is computed on one rank"),
        ("h3", "cfg2", "no guidance.*take ulysses2"),
        ("wan2.2", "ulysses2,groups2", "at most 1 on a rank, too few for 2 groups"),
    ],
)
def test_layouts_that_a_model_does_not_allow(
    kind: str, layout: str, words: str, tiny_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(InvalidLayout, match=words):
        check_layout(EngineConfig(model=str(tiny_folder(kind)), layout=layout))


def test_fewer_devices_than_ranks_are_refused() -> None:
    config = EngineConfig(device="cuda", layout="ulysses4")
    with pytest.raises(InvalidLayout, match="has 4 ranks, but there are 3 devices"):
        check_layout(config, 3)
    assert check_layout(config, 4).layout.num_ranks == 4


def test_one_accelerator_is_not_shared() -> None:
    with pytest.raises(InvalidLayout, match="one accelerator"):
        device_of("cuda:1", 0)
    assert str(device_of("cuda", 3)) == "cuda:3"
    assert str(device_of("cpu", 3)) == "cpu"


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 9))
def test_runs_are_all_of_it_and_nearly_equal(count: int, num_pieces: int) -> None:
    pieces = runs(count, num_pieces)
    assert len(pieces) == num_pieces
    assert list(chain.from_iterable(pieces)) == list(range(count))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 4))
def test_every_head_is_attended_once(heads: int, ranks: int, groups: int) -> None:
    found = head_runs(heads, ranks, groups)
    assert sorted(chain.from_iterable(chain.from_iterable(found))) == list(range(heads))
    by_rank = [sum(len(group[rank]) for group in found) for rank in range(ranks)]
    assert max(by_rank) - min(by_rank) <= 1


@pytest.mark.parametrize("text", ["cfg2,ulysses3", "ulysses4", "cfg2"])
def test_places_and_branches_cover_the_grid(text: str) -> None:
    layout = VideoLayout.parse(text)
    places = [Place.of(layout, rank) for rank in range(layout.num_ranks)]
    assert len(set(places)) == layout.num_ranks
    for rank, place in enumerate(places):
        mine = sequence_ranks(layout, rank)
        assert mine[place.ulysses] == rank
        assert {places[other].cfg for other in mine} == {place.cfg}
    for num_branches in (1, 2):
        computed: list[Any] = []
        for cfg in range(layout.cfg):
            computed += own_branches(range(num_branches), layout, cfg)
        assert sorted(computed) == list(range(num_branches))


def test_what_the_planner_chooses_is_read_by_the_engine_or_not_built() -> None:
    facts = ClipFacts(rows=100, heads=8, attention_width=64, width=64, num_blocks=2)
    layouts = clip_layouts(facts, 8, num_branches=2)
    built = [layout for layout in layouts if layout.setting]
    assert {layout.cfg for layout in built} == {1, 2}
    for layout in built:
        assert VideoLayout.parse(str(layout.setting)).clip == layout
    for layout in layouts:
        assert (layout.setting is None) == (layout.tp > 1 or layout.ring > 1)


def test_more_transformers_than_the_host_holds_are_refused() -> None:
    config = EngineConfig(layout="ulysses4")
    checked = check_layout(config)
    each = 2 * checked.needs.weight_bytes(checked.layout.clip)  # float32 on a CPU
    assert each > 0
    check_memory(checked, config, int(4 * each) + 1)
    with pytest.raises(InvalidLayout, match=r"each of 4 ranks holds .* take ulysses3"):
        check_memory(checked, config, int(3.5 * each))
    with pytest.raises(InvalidLayout, match="leave layout out for one rank"):
        check_memory(checked, config, int(1.5 * each))
