"""`lanewise chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from service.commands.connection import Connection, connect
from service.commands.options import FiniteRange, service_options
from service.terminal import CommandFailed, OptionValue


@dataclass
class Conversation:
    """The turns so far, and what each answer is asked with."""

    connection: Connection
    model: str
    params: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def ask(self, text: str) -> Iterator[str]:
        """The answer to `text`, piece by piece; both are kept for the next turn.

        Raises: CommandFailed when the answer breaks off; the turn is then forgotten.
        """
        body = {
            "model": self.model,
            "messages": [*self.messages, {"role": "user", "content": text}],
            "stream": True,
            **self.params,
        }
        pieces: list[str] = []
        for piece in _pieces(self.connection.stream_events("/v1/chat/completions", body)):
            pieces.append(piece)
            yield piece
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": "".join(pieces)})


@click.command()
@click.argument("message", required=False)
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--temperature", type=FiniteRange(0, 2), help="0 is greedy.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer."
)
@click.option("--model", metavar="NAME", help="Language model.  [default: the service's]")
@service_options
def chat(
    message: str | None,
    system: str | None,
    model: str | None,
    url: str | None,
    key: str | None,
    data: Path | None,
    **sampling: OptionValue,
) -> None:
    """Ask the language model MESSAGE, or talk to it when there is none.

    With MESSAGE - or a pipe, the text is read from standard input.
    """
    with connect(url, key, data) as connection:
        params = {name: value for name, value in sampling.items() if value is not None}
        turns = [{"role": "system", "content": system}] if system else []
        talk = Conversation(connection, model or first_llm(connection), params, turns)
        if message is None and not sys.stdin.isatty():
            message = "-"
        if message is None:
            _interact(talk)
            return
        text = sys.stdin.read() if message == "-" else message
        if not text.strip():
            raise click.UsageError("The message is empty.")
        _answer(talk, text)


def first_llm(connection: Connection) -> str:
    """The language model that the service has.

    Raises: CommandFailed when it has none.
    """
    models = connection.call("GET", "/v1/models")["data"]
    for entry in models:
        if entry.get("role", "llm") == "llm":
            return str(entry["id"])
    raise CommandFailed("The service has no language model.", hint="lanewise serve --model NAME")


def _interact(talk: Conversation) -> None:
    click.secho(f"{talk.model}. An empty line or Ctrl-D ends.", dim=True, err=True)
    while True:
        try:
            text = click.prompt("you", prompt_suffix="> ", default="", show_default=False)
        except (click.Abort, EOFError):
            click.echo(err=True)
            return
        if not text.strip():
            return
        try:
            _answer(talk, text)
        except CommandFailed as error:
            error.show()
        except KeyboardInterrupt:
            click.secho(" (stopped)", dim=True, err=True)


def _answer(talk: Conversation, text: str) -> None:
    for piece in talk.ask(text):
        click.echo(piece, nl=False)
    click.echo()


def _pieces(events: Iterator[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        if event.get("error"):
            raise CommandFailed(f"The answer broke off: {event['error'].get('message')}")
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield text
