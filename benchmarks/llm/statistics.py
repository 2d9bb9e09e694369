"""From token times to figures. Definitions stand in `DEFINITIONS` and go into every result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

DEFINITIONS: Mapping[str, str] = {
    "prefill": "prompt tokens ÷ (first token's time − send time); one request, cold, idle engine",
    "decode": "tokens of all sequences in the span in which all of them decode (from the last "
    "first token to the first last token) ÷ that span",
    "TTFT": "first token's time − send time (in an open trace: the time of arrival)",
    "ITL": "gaps between events of one request that brought tokens, pooled over requests",
    "TPOT": "(last token's time − TTFT − send time) ÷ (tokens − 1), per request",
    "throughput": "output tokens ÷ (last token's time − first arrival)",
    "vs_peer": "median over rounds of the ratio within a round; above 1 means ours is better",
    "of_limit": "how much of the measured limit is reached; 1 is the limit",
    "quality": "share of our greedy tokens before the first that differs from transformers'",
}

Answer = Mapping[str, Any]


def prefill_tok_s(prompt_tokens: int, answer: Answer) -> float:
    """Rate of a prompt until its first token."""
    return prompt_tokens / ttft_s(answer)


def ttft_s(answer: Answer) -> float:
    """Time to first token."""
    return answer["times"][0] - answer["sent"]


def tpot_s(answer: Answer) -> float:
    """Time per output token after the first; undefined (NaN) for one token."""
    times = answer["times"]
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else math.nan


def decode_tok_s(answers: Sequence[Answer]) -> float:
    """Rate while all sequences decode; NaN where there is no such span."""
    begin = max(answer["times"][0] for answer in answers)
    end = min(answer["times"][-1] for answer in answers)
    count = sum(1 for answer in answers for at in answer["times"] if begin < at <= end)
    return count / (end - begin) if end > begin else math.nan


def gaps_s(answers: Sequence[Answer]) -> list[float]:
    """Inter-token delays, pooled: tokens that came in one event are one event."""
    found: list[float] = []
    for answer in answers:
        events = sorted(set(answer["times"]))
        found += [later - earlier for earlier, later in pairwise(events)]
    return found


def throughput_tok_s(answers: Sequence[Answer]) -> float:
    """Output tokens from the first arrival to the last token."""
    count = sum(len(answer["tokens"]) for answer in answers)
    end = max(answer["times"][-1] for answer in answers)
    return count / (end - min(answer["sent"] for answer in answers))


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks. Raises: ValueError for no samples."""
    if not samples:
        raise ValueError("no samples: a percentile needs at least one")
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio_of_rounds(
    ours: Mapping[int, float], theirs: Mapping[int, float], *, higher_is_better: bool
) -> float | None:
    """Median over the rounds that both have; above 1 where ours is better."""
    shared = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[r], theirs[r]) for r in shared]
    ratios = [(o / t if higher_is_better else t / o) for o, t in pairs if o > 0 and t > 0]
    return statistics.median(ratios) if ratios else None


def agreement(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Mean share of tokens before the first difference, over the requests that both served."""
    shares: list[float] = []
    for left, right in zip(ours, theirs, strict=False):
        pairs = list(zip(left["tokens"], right["tokens"], strict=False))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        shares.append(same / max(len(pairs), 1))
    return statistics.fmean(shares)
