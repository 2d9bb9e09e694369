"""Options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from service.commands.connection import url_option

Command = TypeVar("Command", bound=Callable[..., Any])


class _Size(click.ParamType):
    """A number of bytes: 4096, 512MiB, 2GiB."""

    name = "SIZE"
    _units: Mapping[str, int] = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of bytes."""
        match = re.fullmatch(r"([0-9]{1,12}) ?([a-z]*)", str(value).lower())
        if match is None or match[2] not in self._units:
            self.fail(f"{value!r} is not a size such as 512MiB, 2GiB or 4096.", param, ctx)
        return int(match[1]) * self._units[match[2]]


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which click's lets through, and infinities."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's hook
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


SIZE = _Size()


def service_options(command: Command) -> Command:
    """`--url`, `--key`, `--data`: which running service to talk to."""
    for option in (
        click.option(
            "--data",
            type=click.Path(file_okay=False, path_type=Path),
            help="Data folder of the service.  [default: ./lanewise-data]",
        ),
        click.option("--key", metavar="SK", help="API key.  [default: the folder's first key]"),
        click.option(
            "--url",
            metavar="URL",
            callback=url_option,
            help="Address of the service.  [default: the one of the data folder]",
        ),
    ):
        command = option(command)
    return command


def clip_options(command: Command) -> Command:
    """What may be chosen about a clip; what is left out is the model's own default."""
    for option in reversed(
        (
            click.option("--prompt", "-p", required=True, help="How the picture should move."),
            click.option("--seconds", type=FiniteRange(0, min_open=True), help="Length."),
            click.option("--fps", type=FiniteRange(0, min_open=True), help="Frame rate."),
            click.option("--size", metavar="WxH", help="Pixels.  [default: as the picture]"),
            click.option("--fit", type=click.Choice(["crop", "pad"]), help="How to fit."),
            click.option("--seed", type=click.IntRange(0), help="Same seed, same clip."),
            click.option("--steps", type=click.IntRange(1), help="Denoising steps."),
            click.option("--negative-prompt", metavar="TEXT", help="What to avoid."),
            click.option("--model", metavar="NAME", help="Video model."),
            click.option("--project", metavar="NAME", help="Project of the job."),
            click.option("--shot", metavar="NAME", help="Shot of the job."),
            click.option("--tag", "tags", multiple=True, metavar="WORD", help="May be repeated."),
            click.option("--priority", type=click.IntRange(-100, 100), help="Smaller runs first."),
        )
    ):
        command = option(command)
    return command
