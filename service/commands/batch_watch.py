"""A batch at work, as a table that keeps itself up to date."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.commands.connection import Connection
from service.commands.watching import TERMINAL
from service.terminal import CommandFailed, progress_text, state_text

_PERIOD_S = 0.7
_MOST_ROWS = 16
_ORDER = ("running", "cancelling", "failed", "dead", "queued", "cancelled", "succeeded")


def watch_batch(connection: Connection, batch_id: str, console: Console) -> dict[str, Any]:
    """Show the batch until nothing of it is left to do; the batch as it then is.

    Raises: CommandFailed on Ctrl-C; the batch itself goes on.
    """
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                batch: dict[str, Any] = connection.call("GET", f"/batches/{batch_id}")
                live.update(batch_table(batch), refresh=True)
                if is_over(batch):
                    return batch
                time.sleep(_PERIOD_S)
    except KeyboardInterrupt:
        raise CommandFailed(
            f"Interrupted; batch {batch_id} goes on without you.",
            hint=f"lanewise jobs watch --batch {batch_id}",
        ) from None


def is_over(batch: dict[str, Any]) -> bool:
    """Whether every job of the batch has ended or is gone."""
    return all(s["job"] is None or s["job"]["status"] in TERMINAL for s in batch["shots"])


def batch_table(batch: dict[str, Any]) -> Group:
    """Counts, a bar, and the shots that matter most now."""
    jobs = [shot["job"] for shot in batch["shots"] if shot["job"]]
    counts = Counter(job["status"] for job in jobs)
    over = sum(number for status, number in counts.items() if status in TERMINAL)
    words = ", ".join(f"{counts[s]} {s}" for s in reversed(_ORDER) if counts[s])
    table = Table(box=None, show_header=False, pad_edge=False)
    for job in sorted(jobs, key=lambda job: _ORDER.index(job["status"]))[:_MOST_ROWS]:
        table.add_row(
            escape(job["shot"] or job["id"]), f"[dim]{job['request']['seed']}[/dim]",
            state_text(job["status"]), escape(progress_text(job)),
        )  # fmt: skip
    more = len(jobs) - _MOST_ROWS
    return Group(
        Text.from_markup(f"[bold]{escape(batch['name'])}[/bold]  {words}"),
        ProgressBar(total=max(len(jobs), 1), completed=over, width=48),
        table,
        Text(f"and {more} more" if more > 0 else "", style="dim"),
    )
