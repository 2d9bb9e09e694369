"""Write the pages of docs/ that are made from the code; `--check` fails when one is stale."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from llm_engine.plan.backtest.table import page_with_tables
from service.cli import main as command_line
from workers.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("service", "workers", "llm_engine", "video_engine", "kernels")


def settings_page() -> str:
    """The table of all settings."""
    lines = [
        "# Settings",
        "",
        "Made from `workers/settings.py` by `make docs`. Command-line flags win over these.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for name, setting in Settings.model_fields.items():
        default = f"`{setting.default}`" if str(setting.default) else "–"
        lines.append(f"| `{PREFIX}{name.upper()}` | {default} | {setting.description or ''} |")
    return "\n".join(lines) + "\n"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and everything below it, depth first."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from commands(below, f"{path} {name}")


def command_page() -> str:
    """The help text of every command."""
    parts = ["# Command line\n\nMade from `lanewise --help` and its commands by `make docs`.\n"]
    for path, command in commands(command_line, "lanewise"):
        context = click.Context(command, info_name=path, max_content_width=92, terminal_width=92)
        parts.append(f"## {path}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def module_page() -> str:
    """One line a module: the first of its docstring."""
    parts = ["# Modules\n\nMade from the first line of every module by `make docs`.\n"]
    for room in ROOMS:
        parts.append(f"## {room}\n\n| module | its job |\n|---|---|")
        for path in sorted((ROOT / room).rglob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            name = path.relative_to(ROOT).as_posix()
            parts.append(f"| `{name}` | {docstring.partition(chr(10))[0]} |")
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Write or check; returns the exit code."""
    pages = {
        "docs/settings.md": settings_page(),
        "docs/commands.md": command_page(),
        "docs/modules.md": module_page(),
        "docs/planning.md": page_with_tables((ROOT / "docs" / "planning.md").read_text()),
    }
    stale = [
        name
        for name, text in pages.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    ]
    if "--check" in sys.argv:
        for name in stale:
            print(f"{name} is stale: run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(pages[name])
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
