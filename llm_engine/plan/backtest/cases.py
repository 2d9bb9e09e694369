"""The back-tests as data: chains of stages, the inputs each one changes, and their basis."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_engine.plan.backtest.models import PREDICTORS

CASES = Path(__file__).parent / "cases.toml"
# Where a value comes from. "fitted": solved so that the stage meets its published figure.
BASES = ("published", "measured", "assumed", "fitted")


class MalformedCase(ValueError):
    """A back-test that cannot be evaluated; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a predictor: its value (None where it is fitted), its basis, the reason."""

    name: str
    value: float | str | None
    basis: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Inputs that change against the stage before it, or against the first one (`alone`).

    `published` is None where nobody published a figure: an ablation, or a limit.
    `range_to` is the upper end where a range was published; `published_gain` stands for
    `published` where only the factor over the base is known. `calibrated`: this very figure, or the
    measurement behind it, went into the tables or the inputs, so that meeting it proves nothing.
    """

    label: str
    factor: str
    inputs: tuple[Input, ...]
    published: float | None = None
    range_to: float | None = None
    published_gain: float | None = None
    alone: bool = False
    is_limit: bool = False
    calibrated: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Stages from a published base onwards, for hardware that was published or is assumed."""

    name: str
    title: str
    predictor: str
    unit: str
    source: str
    hardware: str
    forced: str
    stages: tuple[Stage, ...]
    lower_is_better: bool = False


def read_chains(file: Path = CASES) -> tuple[Chain, ...]:
    """All chains of a file.

    Raises: MalformedCase naming the chain, the stage and what is wrong.
    """
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(_chain(row) for row in table["chain"])


def _chain(row: dict[str, Any]) -> Chain:
    rest = {name: value for name, value in row.items() if name != "stage"}
    chain = Chain(**rest, stages=tuple(_stage(item, row["name"]) for item in row["stage"]))
    if chain.predictor not in PREDICTORS:
        raise MalformedCase(
            f"{chain.name}: no predictor {chain.predictor!r}; there are {', '.join(PREDICTORS)}"
        )
    return chain


def _stage(row: dict[str, Any], chain: str) -> Stage:
    rest = {name: value for name, value in row.items() if name != "input"}
    inputs = tuple(_input(item, f"{chain}, {row['label']}") for item in row.get("input", ()))
    stage = Stage(**rest, inputs=inputs)
    fitted = [item.name for item in inputs if item.basis == "fitted"]
    if len(fitted) > 1 or (fitted and stage.published is None):
        raise MalformedCase(
            f"{chain}, {stage.label}: {fitted} cannot be fitted; one input a stage at most, and "
            "only to a published figure"
        )
    return stage


def _input(row: dict[str, Any], where: str) -> Input:
    found = Input(name=row["name"], value=row.get("value"), basis=row["basis"], why=row["why"])
    if found.basis not in BASES or (found.basis == "fitted") != (found.value is None):
        raise MalformedCase(
            f"{where}: {found.name} has basis {found.basis!r} and value {found.value!r}; bases are "
            f"{', '.join(BASES)}, and a fitted input has no value"
        )
    return found
