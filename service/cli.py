"""`lanewise …`: the composition root of the command line. Each command is imported when it runs."""

from __future__ import annotations

import importlib
from typing import Any

import click

# name -> (module, attribute, short help); `--help` reads this table and imports nothing.
COMMANDS = {
    "serve": ("service.commands.serve", "serve", "Run the service: gateway, workers, queue."),
    "chat": ("service.commands.chat", "chat", "Ask the language model."),
    "video": ("service.commands.video", "video", "Turn a picture into a clip."),
    "render": ("service.commands.render", "render", "Render every line of a shot list."),
    "jobs": ("service.commands.jobs", "jobs", "List, watch, cancel, retry, delete jobs."),
    "keys": ("service.commands.keys", "keys", "Make, list and revoke API keys."),
    "doctor": ("service.commands.doctor", "doctor", "Show this machine and what runs on it."),
    "plan": ("service.commands.plan", "plan", "Show what would serve a model, and why."),
    "tune": ("service.commands.tune", "tune", "Measure how ranks of this machine talk fastest."),
    "version": ("service.commands.version", "version", "Show the version."),
}
EXIT_CODES = """\b
Exit codes: 0 done, 2 wrong usage, 3 refused by --strict, 4 does not fit,
1 anything else."""


class LazyGroup(click.Group):
    """A group that imports a command only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None lets click say that there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a word about what was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if close := get_close_matches(args[0], COMMANDS, n=1):
                text = f"{error.message} Did you mean {close[0]!r}?"
                raise click.UsageError(text, ctx) from None
            raise


class _Main(LazyGroup):
    """Turns an interrupt and a broken pipe into a quiet exit instead of a traceback."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().main(*args, **extra)
        except BrokenPipeError:
            raise SystemExit(1) from None


@click.group(
    cls=_Main,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Chat and image-to-video on your own machine.

    Start the service with `lanewise serve`; the other commands talk to it.
    """


if __name__ == "__main__":
    main()
