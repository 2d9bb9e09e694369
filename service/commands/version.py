"""`lanewise version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

PACKAGES = ("torch", "diffusers", "transformers", "celery", "fastapi")


@click.command()
def version() -> None:
    """Show the version, and those of the libraries that matter for a report."""
    click.echo(f"lanewise {_version_of('lanewise')}")
    click.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        click.echo(f"{name} {_version_of(name)}")


def _version_of(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"
