"""Engines over ranks that lose one in the middle: the same tokens as alone, for every layout."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict

import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from llm_engine.loop import EngineLoop
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.loading import check_layout
from llm_engine.types import GenerationRequest, SamplingParams, TextDelta
from workers.ranks.founding import GroupSpec
from workers.ranks.group import RankGroup

SETTINGS = {
    "dtype": "float32", "page_size": 4, "prefill_chunk_tokens": 24, "max_num_seqs": 4,
    "max_model_len": 128, "kv_cache_bytes": 1 << 20, "speculation": "off", "num_threads": 1,
}  # fmt: skip
# Room for one answer and a half.
TIGHT = {
    "kv_cache_bytes": 30 << 10, "max_model_len": 60, "host_cache_bytes": 1 << 20,
    "preemption": "copy",
}  # fmt: skip


def requests():
    return [
        GenerationRequest(
            request_id=str(index), messages=None,
            prompt_token_ids=tuple((7 * i + index) % 250 for i in range(19 + 5 * index)),
            params=SamplingParams(max_tokens=24, ignore_eos=True, **sampling),
        )
        for index, sampling in enumerate(
            ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.0})
        )
    ]  # fmt: skip


def tokens_alone(config):
    engine = LLMEngine.load(config)
    tokens = {}
    for request_id, event in engine.generate(requests()):
        if isinstance(event, TextDelta):
            tokens.setdefault(request_id, []).extend(event.token_ids)
    return tokens


def tokens_with_losses(config, num_ranks, folder, strikes):
    """Tokens, and the group's state, where a follower is struck at some deltas."""
    spec = GroupSpec(
        num_ranks=num_ranks, command=(sys.executable, "-m", "workers.ranks"), folder=folder,
        config=asdict(config),
    )  # fmt: skip
    group = RankGroup(spec)
    try:
        communicator = group.start()
        engine = LLMEngine.load(config, ranks=Ranks(communicator, group, group.expect))
        group.wait_loaded()
        with group.window(60.0):
            engine.warm_up()
        loop = EngineLoop(engine, group)
        tokens, num_seen = {}, 0

        def strike(item):
            nonlocal num_seen
            num_seen += isinstance(item, TextDelta)
            if isinstance(item, TextDelta) and (struck := strikes.get(num_seen)):
                rank, number = struck
                os.kill(group.status()["rank_processes"][rank]["pid"], number)

        collected = {r.request_id: [] for r in requests()}

        def listener_of(request_id):
            def hear(item):
                collected[request_id].append(item)
                strike(item)

            return hear

        loop.start()
        for request in requests():
            loop.submit(request, listener_of(request.request_id))
        _wait_for_ends(collected)
        loop.stop()
        for request_id, items in collected.items():
            tokens[request_id] = [t for i in items if isinstance(i, TextDelta) for t in i.token_ids]
        engine.check_integrity()
        return tokens, group.status(), engine.stats()
    finally:
        group.close()


def _wait_for_ends(collected, timeout_s=90.0):
    deadline_s = time.monotonic() + timeout_s
    while not all(items and not isinstance(items[-1], TextDelta) for items in collected.values()):
        assert time.monotonic() < deadline_s, "answers did not end"
        time.sleep(0.02)


KILL_TWICE = {5: (1, signal.SIGKILL), 40: (1, signal.SIGKILL)}


@pytest.mark.parametrize(
    ("layout", "family", "more"),
    [
        ("tp2", "Llama", {}),
        ("tp2", "Llama", TIGHT),
        ("cp2->tp2", "Qwen3", {}),
        ("pp2", "Llama", {}),
        ("pp2->tp2", "Llama", {}),
        ("dp2", "Qwen3", {}),
        ("ep2", "Qwen3Moe", {}),
    ],
)
def test_two_ranks_go_on_with_the_same_tokens(model_folder, tmp_path, layout, family, more):
    settings = SETTINGS | {"model": str(model_folder(family))}
    expected = tokens_alone(EngineConfig(**settings))
    config = EngineConfig(**settings | more, layout=layout)
    tokens, status, stats = tokens_with_losses(config, 2, tmp_path, KILL_TWICE)
    assert tokens == expected
    assert status["ranks"]["restarts_total"] == 2
    if more:
        assert stats.copied_preemptions_total > 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2,pp2", "cp2,pp2->tp2,pp2"])
def test_four_ranks_join_the_groups_of_their_axes_anew(model_folder, tmp_path, layout):
    settings = SETTINGS | {"model": str(model_folder("Llama"))}
    expected = tokens_alone(EngineConfig(**settings))
    config = EngineConfig(**settings, layout=layout)
    tokens, status, _ = tokens_with_losses(config, 4, tmp_path, {9: (2, signal.SIGSTOP)})
    assert tokens == expected
    assert status["ranks"]["restarts_total"] == 1
    assert "rank 2" in status["rank_last_verdict"]


@pytest.mark.parametrize(
    ("layout", "more", "words"),
    [
        ("tp1", {}, "1 ranks, a group has 2 to 64"),
        ("tp2,pp40", {}, "80 ranks, a group has 2 to 64"),
        ("tp16", {}, "query heads"),
        ("tq2", {}, "no axis"),
        ("cp2->tp2", {"batch_invariant": True}, "take one layout for both"),
    ],
)
def test_what_cannot_be_is_refused_before_a_rank_is_started(model_folder, layout, more, words):
    settings = SETTINGS | more | {"model": str(model_folder("Llama"))}
    with pytest.raises(InvalidConfig, match=words):
        check_layout(EngineConfig(**settings, layout=layout))
