"""Each stage predicted from its inputs; what is fitted is solved for and says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_engine.plan.backtest.cases import Chain, MalformedCase, Stage
from llm_engine.plan.backtest.models import PREDICTORS

# Ends between which an input is fitted, and how near to the published figure it must come.
_FIT_RANGES: Mapping[str, tuple[float, float]] = {
    "card_tflops": (0.1, 5000.0),
    "product_tflops": (0.1, 5000.0),
    "memory_gb": (0.1, 200.0),
    "prompt_tokens": (1000.0, 180_000.0),
}
_FIT_TOLERANCE = 0.01
_FIT_WIDTH = 1e-6  # of the logarithm, where halving ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A stage with what was predicted. `error` is predicted over published, less one.

    Where a range was published, the error is the distance to its nearer end. `kind` is "fit",
    "prediction", "calibrated", "ablation" (no published figure) or "limit"; `gain` is over the
    chain's base.
    """

    stage: Stage
    kind: str
    predicted: float
    gain: float
    fitted: Mapping[str, float]
    error: float | None


def evaluate(chain: Chain) -> tuple[Outcome, ...]:
    """Every stage of a chain in its order.

    Raises: MalformedCase where inputs do not fit the predictor, or nothing meets a fitted figure.
    """
    outcomes: list[Outcome] = []
    first: dict[str, Any] = {}
    current: dict[str, Any] = {}
    for stage in chain.stages:
        known = dict(first if stage.alone else current)
        known |= {item.name: item.value for item in stage.inputs if item.value is not None}
        fitted = {
            item.name: _fit(chain, stage, known, item.name)
            for item in stage.inputs
            if item.basis == "fitted"
        }
        known |= fitted
        if not stage.alone:
            current = known
        first = first or known
        predicted = _figure(chain, stage, known)
        gain = predicted / (outcomes[0].predicted if outcomes else predicted)
        gain = 1 / gain if chain.lower_is_better else gain
        outcomes.append(
            Outcome(
                stage=stage,
                kind=_kind(stage, is_fit=bool(fitted)),
                predicted=predicted,
                gain=gain,
                fitted=fitted,
                error=_error(stage, predicted, gain),
            )
        )
    return tuple(outcomes)


def _kind(stage: Stage, *, is_fit: bool) -> str:
    if stage.is_limit:
        return "limit"
    if stage.published is None and stage.published_gain is None:
        return "ablation"
    if stage.calibrated:
        return "calibrated"
    return "fit" if is_fit else "prediction"


def _error(stage: Stage, predicted: float, gain: float) -> float | None:
    if stage.published_gain is not None:
        return gain / stage.published_gain - 1
    if stage.published is None:
        return None
    nearest = min(max(predicted, stage.published), stage.range_to or stage.published)
    return predicted / nearest - 1


def _figure(chain: Chain, stage: Stage, inputs: Mapping[str, Any]) -> float:
    try:
        return PREDICTORS[chain.predictor](**inputs).figure
    except (TypeError, ValueError) as error:
        raise MalformedCase(f"{chain.name}, {stage.label}: {error}") from error


def _fit(chain: Chain, stage: Stage, known: Mapping[str, Any], name: str) -> float:
    """The value of one input that gives the published figure, by halving in its logarithm."""
    if name not in _FIT_RANGES or stage.published is None:
        raise MalformedCase(f"{chain.name}, {stage.label}: {name} is no input that can be fitted")

    def miss(logarithm: float) -> float:
        return _figure(chain, stage, {**known, name: math.exp(logarithm)}) - (stage.published or 0)

    low, high = (math.log(end) for end in _FIT_RANGES[name])
    value = math.exp(_root(miss, low, high))
    found = _figure(chain, stage, {**known, name: value})
    if abs(found / stage.published - 1) > _FIT_TOLERANCE:
        raise MalformedCase(
            f"{chain.name}, {stage.label}: no {name} gives {stage.published:g}; the nearest, "
            f"{value:g}, gives {found:g}"
        )
    return value


def _root(miss: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that grows becomes zero."""
    while high - low > _FIT_WIDTH:
        middle = (low + high) / 2
        if miss(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
