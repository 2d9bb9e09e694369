"""How long ranks of a machine take to exchange, by the algorithm that its links favour.

Modelled from the formulas of kernels/collectives/costs.py and the links of a machine file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kernels.collectives import costs
from kernels.collectives.costs import INT8_RATIO, LinkCosts

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "ring"]
# A start and a flag of a kernel that writes to peers, on top of the bus's own latency.
_PEER_START_S = 5e-6
_PEER_LATENCY_S = 1e-6
_STAGED_LATENCY_S = 12e-6
# One flow of a ring that crosses between sockets: 20.75 of 25.4 GB/s on gen4 cards, 49.6 of 52.3
# on gen5 ones (FlashInfer #4870); the lower share where nobody has told.
_RING_OVER_SOCKETS = {"pcie-gen5-x16": 0.95, "pcie-gen5-x8": 0.95}
_SLOWER_RING = 0.82
_FAN_SHARE = 0.5  # writing to all peers at once against to one neighbour
_UNKNOWN_STAGED_BYTES_S = 6e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The links among the devices of a machine, as the cost formulas take them.

    `island_size` is the largest run of devices without a crossing; `crossing_bytes_s` the rate of
    one device when all send across at once. `is_staged`: every byte goes through host memory.
    `assumed` says in words what nobody told; `has_assumed_rate`: a rate is among it.
    """

    inside: LinkCosts
    over: LinkCosts
    island_size: int
    is_staged: bool
    staged_bytes_s: float
    assumed: tuple[str, ...] = ()
    has_assumed_rate: bool = False

    def scaled(self, factor: float) -> Exchange:
        """All rates times a factor; latencies stay."""
        return replace(
            self,
            inside=_scaled(self.inside, factor),
            over=_scaled(self.over, factor),
            staged_bytes_s=self.staged_bytes_s * factor,
        )

    def seconds(self, operation: Operation, size_bytes: float, n: int) -> float:
        """Of one exchange among n ranks.

        `size_bytes`: the whole tensor of a reduction, gathering or scattering; what a rank sends
        in all (its own share included) of an all-to-all; the message of a send; what all ranks
        have together of a ring, in which every share passes every rank.
        """
        return self.fastest(operation, size_bytes, n)[0]

    def fastest(self, operation: Operation, size_bytes: float, n: int) -> tuple[float, str]:
        """Seconds, and the algorithm that takes them."""
        if n < 2 or size_bytes <= 0:
            return 0.0, "none"
        if self.is_staged:
            return self._staged_s(operation, size_bytes, n), "host-staged"
        c = self.inside if n <= self.island_size else self.over
        match operation:
            case "all_reduce":
                found = {
                    "one-shot": costs.one_shot_s(size_bytes, n, c),
                    "two-shot": costs.two_shot_s(size_bytes, n, c),
                    "ring": costs.ring_s(size_bytes, n, c),
                }
                if n > self.island_size and n == 2 * self.island_size:
                    found["island"] = costs.island_s(size_bytes, n, self._across())
            case "all_gather" | "reduce_scatter":
                found = {
                    "direct": costs.half_direct_s(size_bytes, n, c),
                    "ring": costs.half_ring_s(size_bytes, n, c),
                }
            case "ring":  # a share at a time: it is attended to while the next one is on the way
                found = {"ring": costs.half_ring_s(size_bytes, n, c)}
            case "all_to_all":
                found = {"pairwise": costs.all_to_all_s(size_bytes, n, c)}
            case "send":
                found = {"copy": c.latency_s + size_bytes / c.ring_bytes_s}
        name = min(found, key=lambda key: found[key])
        return found[name], name

    def strided(self, stride: int) -> Exchange:
        """What the ranks of a group have whose neighbours lie `stride` devices apart.

        Fewer of them share an island, and as many groups cross at the same time: together they
        have the rate of all devices of an island that send across at once.
        """
        if stride == 1:
            return self
        size = max(1, self.island_size // stride)
        crossing = self.over.cross_bytes_s * self.island_size / stride
        over = replace(self.over, ring_bytes_s=min(self.over.ring_bytes_s, crossing))
        return replace(self, island_size=size, over=over)

    def latency_s(self, n: int) -> float:
        """Of the smallest all-reduce among n ranks."""
        return self.seconds("all_reduce", 1.0, n)

    def _across(self) -> LinkCosts:
        return replace(
            self.inside,
            cross_latency_s=self.over.cross_latency_s,
            cross_bytes_s=self.over.cross_bytes_s,
        )

    def _staged_s(self, operation: Operation, size_bytes: float, n: int) -> float:
        c = self.over
        if operation == "all_reduce":
            told_s = 3 * c.host_latency_s + 2 * (n - 1) / n * size_bytes / self.staged_bytes_s
            return max(told_s, costs.host_staged_s(size_bytes, n, c))
        if operation == "send":
            return 2 * c.host_latency_s + size_bytes / self.staged_bytes_s
        if operation == "ring":
            return (n - 1) * (2 * c.host_latency_s + size_bytes / n / self.staged_bytes_s)
        return 2 * c.host_latency_s + (n - 1) / n * size_bytes / self.staged_bytes_s


def exchange_of(machine: Machine) -> Exchange:
    """The exchange among a machine's devices; what nobody told is assumed and named."""
    links = machine.links
    assumed: list[str] = []
    island_size = max(len(island) for island in links.islands)
    hop = links.hop_bytes_s
    if links.p2p != "yes" or not hop:
        return _staged(machine, island_size)
    latency_s = _PEER_START_S + (links.latency_s or _PEER_LATENCY_S)
    if not links.latency_s:
        assumed.append("latency between peers")
    inside = LinkCosts(latency_s=latency_s, ring_bytes_s=hop, fan_bytes_s=hop * _FAN_SHARE)
    crossing = links.cross_socket_bytes_s or hop * _FAN_SHARE
    n, m = machine.num_devices, island_size
    fan_s_per_byte = (m - 1) / (n - 1) / inside.fan_bytes_s + (n - m) / (n - 1) / crossing
    over = LinkCosts(
        latency_s=latency_s,
        ring_bytes_s=hop * _RING_OVER_SOCKETS.get(links.link_class, _SLOWER_RING),
        fan_bytes_s=1 / fan_s_per_byte,
        cross_latency_s=latency_s,
        cross_bytes_s=crossing,
    )
    return Exchange(
        inside=inside,
        over=over if n > m else inside,
        island_size=m,
        is_staged=False,
        staged_bytes_s=hop,
        assumed=tuple(assumed),
    )


def _staged(machine: Machine, island_size: int) -> Exchange:
    links = machine.links
    assumed: list[str] = []
    rate = links.staged_bytes_s or (links.host_bytes_s or 0) / 2
    if not links.staged_bytes_s and machine.num_devices > 1:
        assumed.append(
            f"rate through host memory ({(rate or _UNKNOWN_STAGED_BYTES_S) / 1e9:.0f} GB/s)"
        )
    rate = rate or _UNKNOWN_STAGED_BYTES_S
    latency_s = max(_STAGED_LATENCY_S, links.latency_s or 0.0)
    c = LinkCosts(
        latency_s=latency_s,
        ring_bytes_s=rate,
        fan_bytes_s=rate,
        host_latency_s=latency_s,
        host_bytes_s=links.host_bytes_s or 2 * rate,
        dram_bytes_s=machine.host.memory_bandwidth_bytes_s or float("inf"),
    )
    return Exchange(
        inside=c,
        over=c,
        island_size=island_size,
        is_staged=True,
        staged_bytes_s=rate,
        assumed=tuple(assumed),
        has_assumed_rate=bool(assumed),
    )


def bus_exchange(
    ring_bytes_s: float, *, fan_share: float = _FAN_SHARE, latency_s: float = 0.0
) -> Exchange:
    """One bus that all devices share out evenly: for figures of unknown hardware."""
    c = LinkCosts(
        latency_s=latency_s, ring_bytes_s=ring_bytes_s, fan_bytes_s=ring_bytes_s * fan_share
    )
    return Exchange(
        inside=c, over=c, island_size=1024, is_staged=False, staged_bytes_s=ring_bytes_s
    )


def wire_ratio(wire: str) -> float:
    """Bytes on the wire against bf16."""
    return INT8_RATIO if wire == "int8" else 1.0


def _scaled(c: LinkCosts, factor: float) -> LinkCosts:
    return replace(
        c,
        ring_bytes_s=c.ring_bytes_s * factor,
        fan_bytes_s=c.fan_bytes_s * factor,
        cross_bytes_s=c.cross_bytes_s * factor,
        host_bytes_s=c.host_bytes_s * factor,
        dram_bytes_s=c.dram_bytes_s * factor,
    )
