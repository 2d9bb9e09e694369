"""Times of short pieces of computing on a machine that others use too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

# The share of a piece that its thread may be off the core before it counts as disturbed.
QUIET_RATIO = 0.02


def quiet_median_s(
    run: Callable[[], object],
    num_repeats: int,
    limit_s: float = 1.0,
    before: Callable[[], object] = lambda: None,
) -> float:
    """The median time of `num_repeats` undisturbed runs, after one that is not counted.

    `before` is called ahead of each run and not timed: it leaves the caches as a run finds them.
    A run is disturbed when its thread was off the core for more than 2 % of it: computing does
    not sleep, so another program had the core. Whether a run counts does not depend on how long
    it took. Where `limit_s` passes first, the least disturbed ones are taken.
    """
    run()
    found: list[tuple[float, float]] = []
    end_s = time.perf_counter() + limit_s
    num_quiet = 0
    while num_quiet < num_repeats and (time.perf_counter() < end_s or len(found) < num_repeats):
        before()
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        run()
        took_s = time.perf_counter() - begin_s
        off_ratio = 1 - (time.thread_time() - begin_cpu_s) / took_s
        num_quiet += off_ratio <= QUIET_RATIO
        found.append((off_ratio, took_s))
    quietest = sorted(found)[:num_repeats]
    if num_quiet >= num_repeats:
        quietest = [item for item in found if item[0] <= QUIET_RATIO]
    return statistics.median(took_s for _, took_s in quietest)


def spread_of(times_s: Sequence[float]) -> float:
    """How far times lie apart, as a share of their median.

    From four on without the least and the greatest: one interruption is no spread.
    """
    ordered = sorted(times_s)
    kept = ordered[1:-1] if len(ordered) >= 4 else ordered
    return (kept[-1] - kept[0]) / statistics.median(ordered) if kept else 0.0
