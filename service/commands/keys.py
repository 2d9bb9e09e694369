"""`lanewise keys`: works on the store itself, so that it needs no running service."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from service.commands.serve import settings_from
from service.terminal import CommandFailed
from workers.errors import LanewiseError

if TYPE_CHECKING:
    from workers.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
SCOPES = ("chat", "video", "read", "admin")
DEFAULT_SCOPES = ("chat", "video", "read")


def store_options(command: Command) -> Command:
    """`--data`, `--database-url`: which store to open."""
    data = click.option(
        "--data", type=click.Path(file_okay=False, path_type=Path), help="Data folder."
    )
    return data(click.option("--database-url", metavar="URL", help="Database.")(command))


@contextmanager
def open_keys(data: Path | None, database_url: str | None) -> Generator[Store]:
    """The store, closed again at the end; its refusals become messages."""
    from workers.store import open_store

    settings = settings_from({"data": data, "database_url": database_url})
    if not settings.database_url:
        settings.resolved_data_dir.mkdir(parents=True, exist_ok=True)
    try:
        store = open_store(settings.resolved_database_url, settings.resolved_artifact_url)
        try:
            yield store
        finally:
            store.close()
    except LanewiseError as error:
        raise CommandFailed(str(error)) from error


@click.group()
def keys() -> None:
    """Make, list and revoke API keys, on the machine that has the data."""


@keys.command()
@click.argument("name", default="key")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), default=DEFAULT_SCOPES,
    show_default=True, help="What the key may do; may be repeated.",
)  # fmt: skip
@store_options
def create(name: str, scopes: tuple[str, ...], data: Path | None, database_url: str | None) -> None:
    """Make a key called NAME and print it, once."""
    with open_keys(data, database_url) as store:
        key, secret = store.keys.create(name, scopes)
    click.echo(secret)
    click.echo(f"{key.id} ({', '.join(key.scopes)}). It is shown only this once.", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@store_options
def list_keys(as_json: bool, data: Path | None, database_url: str | None) -> None:
    """List all keys; no secret is kept, so none is shown."""
    with open_keys(data, database_url) as store:
        rows = store.keys.list()
    if as_json:
        click.echo(json.dumps([_as_json(key) for key in rows], indent=2))
        return
    if not rows:
        click.echo("There is no key yet. Make one with: lanewise keys create NAME")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True, min_width=30)
    for name in ("name", "begins", "scopes", "made", "last used", "state"):
        table.add_column(name)
    for key in rows:
        state = "revoked" if key.revoked_at else "active"
        table.add_row(
            key.id, key.name, key.prefix, " ".join(key.scopes), _day(key.created_at),
            _day(key.last_used_at), state,
        )  # fmt: skip
    Console().print(table)


@keys.command()
@click.argument("key_id")
@store_options
def revoke(key_id: str, data: Path | None, database_url: str | None) -> None:
    """End the key KEY_ID for ever; a running gateway knows within a second."""
    with open_keys(data, database_url) as store:
        key = store.keys.revoke(key_id)
    click.echo(f"{key.id} ({key.name}) is revoked.")


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d}"


def _as_json(key: Any) -> dict[str, Any]:  # noqa: ANN401 - the store's ApiKey
    times = ("created_at", "last_used_at", "revoked_at")
    row = {name: getattr(key, name) for name in ("id", "name", "prefix")}
    row["scopes"] = list(key.scopes)
    return row | {t: v.isoformat() if (v := getattr(key, t)) else None for t in times}
