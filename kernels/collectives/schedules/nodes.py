"""The nodes that builders put together: of rank 0, until they are made for all ranks."""

from __future__ import annotations

from kernels.collectives.schedules.graph import Node


def compute(name: str, duration_s: float, *after: str) -> Node:
    """Computation of so long on a rank's one stream for it, after these nodes."""
    return Node(
        name=name, rank=0, stream="compute", kind="compute", duration_s=duration_s, after=after
    )


def collective(
    name: str, operation: str, size_bytes: float, *after: str, stream: str = "wire"
) -> Node:
    """An exchange of all ranks, as fast as the resource that its stream stands for."""
    return Node(
        name=name,
        rank=0,
        stream=stream,
        kind="collective",
        operation=operation,
        size_bytes=round(size_bytes),
        after=after,
        resource=stream,
    )
