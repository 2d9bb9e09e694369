"""The back-tests as text for docs/planning.md: a summary, then a table for each chain."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from llm_engine.plan.backtest.cases import CASES, Chain, Input, read_chains
from llm_engine.plan.backtest.evaluate import Outcome, evaluate

BEGIN = "<!-- back-tests, made by `make docs` -->"
END = "<!-- end of back-tests -->"
_STEP_PROMISE, _TAIL_PROMISE = 0.10, 0.25
_HEADER = (
    "| stage | factor | changed inputs | published | predicted | error | gain | row is a |",
    "|---|---|---|---|---|---|---|---|",
)


def page_with_tables(page: str) -> str:
    """The page with what stands between its two marks made anew.

    Raises: ValueError where the marks are missing.
    """
    before, has_begin, rest = page.partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not (has_begin and has_end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{back_tests()}\n{END}{after}"


def back_tests() -> str:
    """Summary and tables in Markdown."""
    results = [(chain, evaluate(chain)) for chain in read_chains(CASES)]
    tables = [_chain_text(chain, outcomes) for chain, outcomes in results]
    return "\n".join([_summary(results), *tables])


def _summary(results: Sequence[tuple[Chain, tuple[Outcome, ...]]]) -> str:
    outcomes = [(chain, outcome) for chain, found in results for outcome in found]
    fits = [(chain, o) for chain, o in outcomes if o.fitted]
    errors = [
        (abs(o.error), promise_of(chain))
        for chain, o in outcomes
        if o.kind == "prediction" and o.error is not None
    ]
    kept = sum(error <= promise for error, promise in errors)
    names = ", ".join(f"`{name}` ({chain.name})" for chain, o in fits for name in o.fitted)
    assumed = sum(
        item.basis == "assumed"
        for _, o in outcomes
        if not o.stage.is_limit
        for item in o.stage.inputs
    )
    return (
        f"{len(errors)} predictions, {kept} of them within the promised error (10 %, TTFT 25 %); "
        f"median error {statistics.median(e for e, _ in errors):.1%}, largest "
        f"{max(e for e, _ in errors):.0%}. {len(fits)} rows are fits with one fitted input each: "
        f"{names}. {assumed} inputs are assumed.\n"
    )


def promise_of(chain: Chain) -> float:
    """The relative error that a prediction of this chain may have: TTFT's is wider."""
    return _TAIL_PROMISE if chain.predictor == "tail" else _STEP_PROMISE


def _chain_text(chain: Chain, outcomes: Iterable[Outcome]) -> str:
    found = tuple(outcomes)
    rows = [_row(chain, outcome) for outcome in found]
    lines = [
        f"#### {chain.title}",
        "",
        f"Source: {chain.source}. Hardware: {chain.hardware}. Forced: {chain.forced}.",
        "",
        *_HEADER,
        *rows,
        "",
    ]
    distance = _distance(chain, found)
    lines += [distance, ""] if distance else []
    return "\n".join([*lines, _reasons(found), ""])


def _row(chain: Chain, outcome: Outcome) -> str:
    stage = outcome.stage
    label = f"{stage.label} (on the base)" if stage.alone else stage.label
    source = f" ({stage.source})" if stage.source else ""
    cells = (
        label + source,
        stage.factor,
        "; ".join(_input_text(item, outcome) for item in stage.inputs) or "none",
        _published(outcome, chain.unit),
        f"{_number(outcome.predicted)} {chain.unit}",
        "" if outcome.error is None else _per_cent(outcome.error),
        f"{outcome.gain:.2f}x",
        outcome.kind,
    )
    return f"| {' | '.join(cells)} |"


def _input_text(item: Input, outcome: Outcome) -> str:
    value = outcome.fitted.get(item.name, item.value)
    text = _number(value) if isinstance(value, float) else str(value)
    return f"{item.name} {text} *{item.basis}*"


def _reasons(outcomes: Iterable[Outcome]) -> str:
    """Why each input has its value, each reason once."""
    lines = dict.fromkeys(
        f"{item.name}{'' if item.value is None else f' {item.value}'}: {item.why}"
        for outcome in outcomes
        for item in outcome.stage.inputs
    )
    return f"Inputs: {'; '.join(lines)}."


def _per_cent(error: float) -> str:
    return f"{error if abs(error) >= 0.0005 else 0.0:+.1%}"


def _published(outcome: Outcome, unit: str) -> str:
    stage = outcome.stage
    if stage.published_gain is not None:
        return f"{stage.published_gain:g}x"
    if stage.published is None:
        return ""
    upper = f" to {_number(stage.range_to)}" if stage.range_to else ""
    return f"{_number(stage.published)}{upper} {unit}"


def _distance(chain: Chain, outcomes: Sequence[Outcome]) -> str:
    """How far the last published figure is from the limit of the chain."""
    limits = [o for o in outcomes if o.kind == "limit"]
    known = [o for o in outcomes if o.error is not None]
    if not limits or not known:
        return ""
    last, limit = known[-1].stage, limits[-1]
    reached = last.published / limit.predicted if last.published else 0.0
    if last.published_gain is not None:
        reached = last.published_gain / limit.gain
    return f"Remaining: the last published figure is {reached:.0%} of the limit's row."


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
