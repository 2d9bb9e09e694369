"""One prompt alone: its steps, chunk after chunk over a growing context."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prediction import StepPrediction, StepSize
from llm_engine.plan.search.serving_plan import PromptTime

if TYPE_CHECKING:
    from llm_engine.plan.search.layout import Layout
    from llm_engine.plan.search.model_steps import ModelSteps

# Steps of a prompt that are predicted; the time of those between two is taken from a straight line.
_MOST_STEPS = 33


def prompt_steps(
    steps: ModelSteps, setting: Setting, layout: Layout, chunk: int, tokens: int, batch: int = 1
) -> tuple[StepPrediction, ...]:
    """Every step of `batch` equal prompts side by side, the last one with what is left."""
    return tuple(
        predict_step(steps, setting, layout, replace(size, rows=size.rows * batch, batch=batch))
        for size in _sizes(chunk, tokens)
    )


def prompt_time(
    steps: ModelSteps, setting: Setting, layout: Layout, chunk: int, tokens: int
) -> PromptTime:
    """A prompt alone; a pipeline fills once."""
    sizes = _sizes(chunk, tokens)
    whole, last = sizes[:-1], predict_step(steps, setting, layout, sizes[-1])
    seconds, low_s, high_s = last.seconds, last.low_s, last.high_s
    picked = [whole[i] for i in _spread(len(whole))]
    found = [predict_step(steps, setting, layout, size) for size in picked]
    for step, count in zip(found, _weights(_spread(len(whole))), strict=True):
        seconds += count * step.seconds
        low_s, high_s = low_s + count * step.low_s, high_s + count * step.high_s
    scale = 1 + last.fill_s / seconds
    return PromptTime(seconds=seconds * scale, low_s=low_s * scale, high_s=high_s * scale)


def _sizes(chunk: int, tokens: int) -> list[StepSize]:
    ends = (0, *range(chunk, tokens, chunk), tokens)
    return [
        StepSize(phase="prefill", rows=end - begin, context=end)
        for begin, end in itertools.pairwise(ends)
    ]


def _spread(count: int) -> list[int]:
    """At most so many of the first `count` numbers, both ends among them, evenly."""
    if count <= _MOST_STEPS:
        return list(range(count))
    return [round(i * (count - 1) / (_MOST_STEPS - 1)) for i in range(_MOST_STEPS)]


def _weights(picked: list[int]) -> list[float]:
    """How many steps each picked one stands for when values between two lie on a line."""
    weights = [1.0] * len(picked)
    for i, (before, after) in enumerate(itertools.pairwise(picked)):
        between = (after - before - 1) / 2
        weights[i] += between
        weights[i + 1] += between
    return weights
