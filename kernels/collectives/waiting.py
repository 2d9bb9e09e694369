"""Waiting for other ranks: spin while it pays, then sleep, and never without an end."""

from __future__ import annotations

import time
from collections.abc import Callable

# A flag in a neighbour's cache arrives within microseconds; beyond that, the core is worth more
# to someone else, and a sleep of the shortest kind costs about 50 us.
SPIN_S = 30e-6
YIELD_S = 400e-6
NAP_S = 50e-6
LONGEST_NAP_S = 1e-3
LOOK_EVERY_S = 10e-3


def wait_until(
    is_ready: Callable[[], bool],
    timeout_s: float,
    look_around: Callable[[], None],
    give_up: Callable[[float], Exception],
) -> None:
    """Return when `is_ready`.

    `look_around` is called every 10 ms and raises when waiting has become pointless (a rank is
    gone). After `timeout_s` the exception of `give_up(waited_s)` is raised.
    Raises: what those two say.
    """
    if is_ready():
        return
    begin_s = time.monotonic()
    next_look_s, nap_s = LOOK_EVERY_S, NAP_S
    while not is_ready():
        waited_s = time.monotonic() - begin_s
        if waited_s < SPIN_S:
            continue
        if waited_s < YIELD_S:
            time.sleep(0)
            continue
        if waited_s > next_look_s:
            next_look_s = waited_s + LOOK_EVERY_S
            look_around()
        if waited_s > timeout_s:
            raise give_up(waited_s)
        time.sleep(nap_s)
        nap_s = min(nap_s * 1.2, LONGEST_NAP_S)
