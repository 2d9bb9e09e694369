"""`lanewise` itself: quick, complete, and clear about mistakes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from service.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
HELP_LIMIT_S = 0.3


def run_lanewise(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_help_answers_at_once():
    """Processor time, so that what else the machine does counts little."""
    times = []
    for _ in range(5):
        start = processor_time_of_children_s()
        assert run_lanewise("--help").returncode == 0
        times.append(processor_time_of_children_s() - start)
    assert min(times) < HELP_LIMIT_S


def processor_time_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_names_every_command_and_the_exit_codes():
    text = run_lanewise("--help").stdout
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "3 refused by --strict" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_short_help_is_what_the_command_says_of_itself():
    for name in COMMANDS:
        command = main.get_command(main.make_context("lanewise", ["version"]), name)
        assert command is not None
        assert command.name == name


def test_a_misspelt_command_is_named_and_corrected():
    result = CliRunner().invoke(main, ["jbos"])
    assert result.exit_code == 2
    assert "Did you mean 'jobs'?" in result.output


@pytest.mark.parametrize("command", ["jobs", "chat"])
def test_no_running_service_says_how_to_start_one(command, tmp_path):
    arguments = [command, *(["hello"] if command == "chat" else []), "--data", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert str(tmp_path) in result.output
    assert f"lanewise serve --data {tmp_path}" in result.output


def test_a_service_that_is_gone_is_told_from_one_that_never_was(tmp_path):
    (tmp_path / "run").mkdir()
    endpoint = '{"url": "http://127.0.0.1:9", "pid": 1, "key_file": null}'
    (tmp_path / "run" / "endpoint.json").write_text(endpoint)
    result = CliRunner().invoke(main, ["jobs", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "Nothing answers at http://127.0.0.1:9" in result.output


def test_an_address_without_a_scheme_is_wrong_usage():
    result = CliRunner().invoke(main, ["jobs", "--url", "127.0.0.1:8000"])
    assert result.exit_code == 2
    assert "http://" in result.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--url", "http://[::1"], "http://[::1"),
        (["--url", "http://127.0.0.1:9", "--key", "sk-é"], "key"),
        (["--url", "http://127.0.0.1:9", "--key", "sk-a\nb"], "key"),
    ],
)
def test_what_can_be_no_address_or_key_is_wrong_usage(options, named):
    result = CliRunner().invoke(main, ["jobs", *options])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert named in result.output


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--llm-devices", "a-b", "llm_devices"),
        ("--port", "70000", "--port"),
        ("--dtype", "float8", "--dtype"),
    ],
)
def test_serve_refuses_what_cannot_be(option, value, named, tmp_path):
    result = CliRunner().invoke(main, ["serve", "--data", str(tmp_path), option, value])
    assert result.exit_code == 2
    assert named in result.output


def test_serve_hands_its_options_to_the_supervisor_over_the_environment(monkeypatch, tmp_path):
    from workers.deployment import supervisor

    seen = []

    class Recorder:
        def __init__(self, settings):
            seen.append(settings)

        def run(self):
            return 3

    monkeypatch.setattr(supervisor, "Supervisor", Recorder)
    monkeypatch.setenv("LANEWISE_PORT", "1234")
    monkeypatch.setenv("LANEWISE_AUTH", "off")
    result = CliRunner().invoke(
        main, ["serve", "--data", str(tmp_path), "--port", "0", "--model", "none"]
    )
    assert result.exit_code == 3
    (settings,) = seen
    assert (settings.port, settings.auth, settings.llm_model) == (0, "off", "none")
    assert settings.data_dir == tmp_path


def test_version_says_what_is_installed():
    result = CliRunner().invoke(main, ["version"])
    assert result.exit_code == 0
    assert result.output.startswith("lanewise ")
    assert "torch" in result.output
