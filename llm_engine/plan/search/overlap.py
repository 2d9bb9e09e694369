"""A step in chunks, run in virtual time: the schedule of one rank, as its executors order it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.collectives.schedules.graph import Node, Schedule
from kernels.collectives.schedules.virtual_time import simulate

_SIMULATED_LAYERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a layer for one chunk of its rows, and the exchange behind it.

    Units: seconds; 0 where nothing is exchanged.
    """

    name: str
    compute_s: float
    wire_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """A step in chunks against the same step in one piece. Units: seconds.

    `cut_s` is what computing and starting the chunks takes longer than the whole.
    """

    num_chunks: int
    serial_s: float
    virtual_s: float
    cut_s: float

    @property
    def pays(self) -> bool:
        """Whether the chunks end before the step in one piece."""
        return self.virtual_s < self.serial_s

    @property
    def hidden_s(self) -> float:
        """What overlapping saves; 0 below its break-even."""
        return max(0.0, self.serial_s - self.virtual_s)

    def __str__(self) -> str:
        times = (
            f"{self.num_chunks} chunks take {self.virtual_s * 1e3:.2f} ms in virtual time, one "
            f"piece {self.serial_s * 1e3:.2f} ms; cutting alone costs {self.cut_s * 1e3:.2f} ms"
        )
        return f"overlap on: {times}" if self.pays else f"overlap off, below break-even: {times}"


def virtual_s(parts: Sequence[Part], num_layers: int, num_chunks: int) -> float:
    """When the last node of equal layers ends. Units: seconds.

    Every rank has the same work, so one rank's schedule is everybody's. Streams keep their order,
    so a layer does not see those behind it, and after a few the same pattern repeats: the last of
    eight simulated layers stands for all further ones.
    """
    wires_s = {part.name: part.wire_s for part in parts}
    simulated = min(num_layers, _SIMULATED_LAYERS)
    schedule = layers_in_chunks(parts, simulated, num_chunks)
    timeline = simulate(schedule, lambda node: wires_s[_part_of(node)])
    ends_s = [0.0] * simulated
    for span in timeline.spans:
        layer = int(span.node.name.split(".")[1])
        ends_s[layer] = max(ends_s[layer], span.end_s)
    each_s = ends_s[-1] - ends_s[-2] if simulated > 1 else ends_s[-1]
    return ends_s[-1] + (num_layers - simulated) * each_s


def layers_in_chunks(parts: Sequence[Part], num_layers: int, num_chunks: int) -> Schedule:
    """Each part of a layer chunk by chunk; a chunk computes while those before are on the wire."""
    joined = _joined(parts)
    nodes: list[Node] = []
    last = [""] * num_chunks  # of each chunk: the node that its next part waits for
    for layer in range(num_layers):
        for part in joined:
            for chunk in range(num_chunks):
                made = list(_nodes(part, f"{layer}.{chunk}", last[chunk]))
                nodes += made
                last[chunk] = made[-1].name
    return Schedule(name="layers in chunks", nodes=tuple(nodes))


def _nodes(part: Part, where: str, after: str) -> Iterator[Node]:
    name = f"{part.name}.{where}"
    yield Node(
        name=name,
        rank=0,
        stream="compute",
        kind="compute",
        duration_s=part.compute_s,
        after=(after,) if after else (),
    )
    if part.wire_s:
        yield Node(name=f"wire {name}", rank=0, stream="wire", kind="collective", after=(name,))


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts without an exchange behind them run together with the next one."""
    found: list[Part] = []
    waiting_s = 0.0
    for part in parts:
        waiting_s += part.compute_s
        if part.wire_s or part is parts[-1]:
            found.append(Part(name=part.name, compute_s=waiting_s, wire_s=part.wire_s))
            waiting_s = 0.0
    return tuple(found)


def _part_of(node: Node) -> str:
    return node.name.removeprefix("wire ").partition(".")[0]
