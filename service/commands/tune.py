"""`lanewise tune`."""

from __future__ import annotations

import click

from service.commands.child import run_workers
from service.terminal import OptionValue


@click.command()
@click.option("--ranks", type=click.IntRange(2, 64), help="Ranks that will talk.  [default: 2]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Whose tensors.  [default: cpu]")
@click.option("--limit", type=float, metavar="SECONDS", help="At most so long.  [default: 60]")
@click.option("--data", metavar="FOLDER", help="Folder of all state.  [default: as set]")
@click.option("--explain", is_flag=True, help="Show every candidate, the floor and the guards.")
@click.option("--check", is_flag=True, help="Only say whether the table there is holds.")
@click.option("--again", is_flag=True, help="Measure anew, whatever there is.")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="End with 3 unless the table holds.")
@click.pass_context
def tune(ctx: click.Context, **options: OptionValue) -> None:
    """Measure how ranks of this machine talk fastest, and keep the table.

    Every algorithm is checked, then timed in processes of its own; the table says for each
    operation, contract and size what is taken and why, and belongs to this machine as it is. A
    table that is there is timed again in part; one that was ended by its limit is completed.
    """
    ctx.exit(run_workers("tune", (), options))
