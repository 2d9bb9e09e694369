"""The check that a GPU will run, on a CPU: it finds equal tokens, and wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engine_check
from benchmarks.engine_check import Bench, model_folder
from llm_engine.types import TextDelta, TokenLogprob


@pytest.mark.slow
def test_equal_tokens_pass_and_times_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("BATCHES", (1, 3)), ("PROMPT_TOKENS", 40), ("NUM_TOKENS", 8)):
        monkeypatch.setattr(engine_check, name, value)
    bench = Bench(model_folder(tmp_path, 1), "cpu")
    row = bench.check(2)
    assert (row["passed"], row["prompts"], row["equal"]) == (True, 2, 2)
    rows = list(bench.times(float("inf")))
    assert [row["time"] for row in rows] == ["prefill", "decode 1", "decode 3"]
    assert all(row["tokens_s"] > 0 for row in rows)


def delta(token_id: int, gap: float) -> TextDelta:
    top = tuple(TokenLogprob("x", value, ()) for value in (-0.5, -0.5 - gap))
    return TextDelta(0, "", (token_id,), (TokenLogprob("x", -0.5, (), top),), None)


@pytest.mark.parametrize(("gap", "agrees"), [(1e-5, True), (0.5, False)])
def test_another_token_is_wrong_unless_the_two_likeliest_tie(gap: float, agrees: bool) -> None:
    expected: list[Any] = [delta(3, 1.0), delta(4, gap)]
    found = [expected[0], replace(expected[1], token_ids=(9,))]
    assert engine_check._agree(expected, expected)
    assert engine_check._agree(expected, found) is agrees
