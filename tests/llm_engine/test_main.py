"""The command line streams an answer, and errors are one readable line."""

from pathlib import Path

import pytest

from llm_engine.__main__ import main


def test_it_prints_the_answer(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["hi", "--model", str(tiny_folder), "--dtype", "float32", "--max-tokens", "5"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.endswith("\n")


def test_errors_are_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hi", "--model", "nothing-here"]) == 1
    assert capsys.readouterr().err.startswith("error: no model 'nothing-here'")
