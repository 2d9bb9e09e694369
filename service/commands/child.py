"""Commands that a process of their own answers: the gateway's side never loads an engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from service.terminal import OptionValue


def run_workers(
    command: str, arguments: tuple[str, ...], options: Mapping[str, OptionValue]
) -> int:
    """Run `python -m workers COMMAND …` on the same terminal; its exit code."""
    words = [sys.executable, "-m", "workers", command, *arguments, *option_words(options)]
    return subprocess.run(words, check=False).returncode


def option_words(options: Mapping[str, OptionValue]) -> list[str]:
    """Options as words; those that are off or were not given are left out."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words
