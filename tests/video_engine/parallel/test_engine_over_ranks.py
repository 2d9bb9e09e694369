"""Clips over ranks: the frames of one rank, and rank 0 alone decides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.errors import Interrupted, InvalidLayout
from video_engine.types import VideoRequest, VideoResult

# Frames are rounded to bytes: a difference of some float32 roundings moves a value at most to the
# next byte, where it lies between two.
MOST_LEVELS = 1


def rendered(engine: VideoEngine, request: VideoRequest) -> VideoResult:
    *_, last = engine.generate(request)
    assert isinstance(last, VideoResult)
    return last


def levels(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(np.int16) - b.astype(np.int16)).max())


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("wan2.1", "ulysses2"),
        ("wan2.2", "cfg2"),
        ("wan2.2", "ulysses4"),
        ("wan5b", "cfg2,ulysses2"),
        ("h3", "ulysses2,groups2"),
        ("h3", "ulysses3"),
    ],
)
def test_tiny_models(
    kind: str,
    layout: str,
    tiny_folder: Callable[[str], Path],
    tiny_engine: Callable[..., VideoEngine],
    tiny_request: Callable[..., VideoRequest],
    over_ranks: Callable[..., Any],
) -> None:
    request = tiny_request(kind)
    expected = rendered(tiny_engine(kind), request).clip
    found = over_ranks(
        str(tiny_folder(kind)), layout, lambda engine, _: rendered(engine, request).clip
    )
    assert expected.frames.std() > 1
    assert levels(found.frames, expected.frames) <= (0 if layout == "cfg2" else MOST_LEVELS)
    if expected.audio is not None:
        assert np.abs(found.audio.samples - expected.audio.samples).max() <= 1e-5


@pytest.mark.parametrize("layout", ["ulysses2", "cfg2,ulysses2", "ulysses3,groups1", "ulysses4"])
def test_motion_small(
    layout: str, tiny_request: Callable[..., VideoRequest], over_ranks: Callable[..., Any]
) -> None:
    request = tiny_request("wan2.2", width=96, height=64, guidance_scale=2.5, negative_prompt="")
    expected = rendered(VideoEngine.load(EngineConfig(dtype="float32")), request).clip.frames
    found = over_ranks("motion-small", layout, lambda engine, _: rendered(engine, request))
    assert levels(found.clip.frames, expected) <= MOST_LEVELS
    assert found.recipe["layout"] == layout


def test_without_guidance_the_second_branch_s_rank_has_nothing_to_do(
    tiny_request: Callable[..., VideoRequest], over_ranks: Callable[..., Any]
) -> None:
    request = tiny_request("wan2.2", width=96, height=64, guidance_scale=1.0, negative_prompt="")
    expected = rendered(VideoEngine.load(EngineConfig(dtype="float32")), request).clip.frames
    found = over_ranks("motion-small", "cfg2", lambda engine, _: rendered(engine, request))
    np.testing.assert_array_equal(found.clip.frames, expected)


def test_stopped_at_every_border_and_rendered_again(
    tiny_request: Callable[..., VideoRequest], over_ranks: Callable[..., Any]
) -> None:
    """Followers hear of steps alone: a stop leaves nothing in them."""
    request = tiny_request("wan2.2", width=96, height=64, guidance_scale=1.0, negative_prompt="")

    def lead(engine: VideoEngine, ranks: Any) -> list[Any]:
        expected = rendered(engine, request).clip.frames
        sent = []
        for border in itertools.count():
            polls = itertools.count()
            before = ranks.num_sent
            try:
                list(engine.generate(request, should_stop=lambda n=border, p=polls: next(p) == n))
            except Interrupted:
                sent.append(ranks.num_sent - before)
                continue
            np.testing.assert_array_equal(rendered(engine, request).clip.frames, expected)
            return sent

    sent = over_ranks("motion-small", "ulysses2", lead)
    assert sent == sorted(sent)
    assert set(sent) == set(range(request.steps + 1))


def test_decisions_name_layout_exchange_groups_wire_and_attention(
    over_ranks: Callable[..., Any],
) -> None:
    decisions = over_ranks("motion-small", "cfg2,ulysses2", lambda engine, _: engine.decisions)
    found = {d.what: d for d in decisions}
    assert found["layout"].chosen == "cfg2,ulysses2"
    assert found["exchange of attention"].chosen == "all-to-all by heads, 2/1 on each rank"
    assert "do not divide" in " ".join(found["exchange of attention"].reasons)
    assert found["head groups"].chosen == "one group, not overlapped"
    assert found["wire of heads"].chosen == "exact"
    assert found["full_attention"].kind == "kernel"
    assert all("between processes" in d.evidence for d in decisions if d.kind != "kernel")


def test_asked_groups_and_wire_are_explicit(over_ranks: Callable[..., Any]) -> None:
    decisions = over_ranks("motion-small", "ulysses2,groups2,int8", lambda e, _: e.decisions)
    found = {d.what: d for d in decisions}
    assert found["head groups"].source == found["wire of heads"].source == "explicit"
    assert found["wire of heads"].chosen == "int8"


def test_a_layout_without_ranks_is_refused() -> None:
    with pytest.raises(InvalidLayout, match="has no other ranks"):
        VideoEngine.load(EngineConfig(layout="ulysses2"))
