"""`lanewise doctor`."""

from __future__ import annotations

import click

from service.commands.child import run_workers
from service.terminal import OptionValue


@click.command()
@click.option("--machine", metavar="NAME|FILE", help="A described machine.  [default: this one]")
@click.option("--model", metavar="NAME", help="Also plan this model.")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="End with 3 when something lies below the floor.")
@click.option("--floor", type=click.Choice(["fused", "vendor"]), help="[default: fused]")
@click.pass_context
def doctor(ctx: click.Context, **options: OptionValue) -> None:
    """Show this machine, and what would run on it, and why.

    Devices and links, the vendor's profile, the implementation of every op with its tier and
    evidence, why better ones were passed over, and what else is needed.
    """
    ctx.exit(run_workers("doctor", (), options))
