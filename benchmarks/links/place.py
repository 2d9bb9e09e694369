"""Where two ranks run: on the kernel's slow link, on one inside the processes, or unlimited."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.links.namespaces import KernelLink, NoNamespaces, kernel_link


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A link of two ranks. `kind`: "kernel", "in-process" or "unlimited"; `note`: why this one."""

    kind: str
    note: str
    link: KernelLink | None = None

    def prefix(self, rank: int) -> list[str]:
        """Words before a rank's command."""
        return self.link.prefix(rank) if self.link else []

    def interface(self, rank: int) -> str:
        """The network device that a rank's sockets are bound to; loopback for none."""
        return self.link.interface(rank) if self.link else ""

    def limit(self, rate_bytes_s: float) -> float:
        """Slow the link to a rate; the rate that the ranks' own messages must keep to."""
        if self.link is None:
            return rate_bytes_s
        self.link.limit(rate_bytes_s)
        return math.inf


UNLIMITED = Place(kind="unlimited", note="no limit: memory and loopback of one machine")


@contextmanager
def slow_place() -> Generator[Place]:
    """The kernel's link where it is allowed, else the one inside the processes, and why."""
    with ExitStack() as stack:
        try:
            link = stack.enter_context(kernel_link())
        except NoNamespaces as error:
            note = f"each message sleeps for what is left of its time; no namespaces: {error}"
            yield Place(kind="in-process", note=note)
            return
        yield Place(kind="kernel", note="two network namespaces, veth, token bucket", link=link)
