"""How long an exchange takes, from the constants of its links: pure formulas, no measurement.

`S` is the message in bytes, `N` the ranks. A latency is a start plus a flag; a rate counts one
direction of one rank. The formulas reproduce published crossovers (tests); they leave out
imbalance and what else uses the links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# 128 values of one byte and a float32 scale, against 256 bytes.
INT8_RATIO = 132 / 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCosts:
    """Constants of the links that one transport uses.

    Units: seconds; bytes per second. `ring_bytes_s` (B) is the rate to a neighbour,
    `fan_bytes_s` (Bc) that of a rank which talks to all others; `cross_*` between islands.
    `host_*` are for messages staged in host memory, which all ranks share at `dram_bytes_s`.
    `codec_bytes_s` is the memory rate of whoever encodes and decodes int8.
    """

    latency_s: float
    ring_bytes_s: float
    fan_bytes_s: float
    cross_latency_s: float = 0.0
    cross_bytes_s: float = math.inf
    host_latency_s: float = math.inf
    host_bytes_s: float = math.inf
    dram_bytes_s: float = math.inf
    codec_bytes_s: float = math.inf


def one_shot_s(S: float, N: int, c: LinkCosts) -> float:
    """Everything to everyone: a + (N-1) S/Bc."""
    return c.latency_s + (N - 1) * S / c.fan_bytes_s


def two_shot_s(S: float, N: int, c: LinkCosts) -> float:
    """Direct reduce-scatter and all-gather: 2a + 2 (N-1)/N S/Bc."""
    return 2 * c.latency_s + 2 * (N - 1) / N * S / c.fan_bytes_s


def ring_s(S: float, N: int, c: LinkCosts) -> float:
    """Ring reduce-scatter and all-gather: 2 (N-1) a + 2 (N-1)/N S/B."""
    return 2 * (N - 1) * c.latency_s + 2 * (N - 1) / N * S / c.ring_bytes_s


def island_s(S: float, N: int, c: LinkCosts) -> float:
    """Two islands of m = N/2: 2 ((m-1) a + (m-1)/m S/B) + ax + (S/m)/Bx."""
    m = N // 2
    inside_s = (m - 1) * c.latency_s + (m - 1) / m * S / c.ring_bytes_s
    return 2 * inside_s + c.cross_latency_s + S / m / c.cross_bytes_s


def exact_island_s(S: float, N: int, c: LinkCosts, widening: float = 2.0) -> float:
    """The island form in the order of the ranks: the sum crosses in float32, the result back.

    `widening` is float32's bytes over those of the dtype.
    """
    m = N // 2
    inside_s = (m - 1) * c.latency_s + (m - 1) / m * S / c.ring_bytes_s
    return 2 * (inside_s + c.cross_latency_s) + (1 + widening) * S / m / c.cross_bytes_s


def chain_s(
    S: float, N: int, c: LinkCosts, widening: float = 2.0, chunk_bytes: float = 131072
) -> float:
    """Up and down in k chunks on links of two directions: (2N-3+k) (a + widening S/(k B))."""
    k = max(1, math.ceil(S / chunk_bytes))
    return (2 * N - 3 + k) * (c.latency_s + widening * S / k / c.ring_bytes_s)


def host_staged_s(S: float, N: int, c: LinkCosts) -> float:
    """Two-shot through pinned host memory: 3 a_h + the slower of a rank's link and the memory.

    Down S + S/N, up 2 (N-1)/N S, both at once; all ranks together move N (3 - 1/N) S.
    """
    link_s = max(S + S / N, 2 * (N - 1) / N * S) / c.host_bytes_s
    return 3 * c.host_latency_s + max(link_s, (3 * N - 1) * S / c.dram_bytes_s)


def gather_sum_s(S: float, N: int, c: LinkCosts) -> float:
    """All gathered around a ring, everyone adds all: (N-1) a + (N-1) S/B."""
    return (N - 1) * c.latency_s + (N - 1) * S / c.ring_bytes_s


def half_ring_s(S: float, N: int, c: LinkCosts) -> float:
    """A ring all-gather or reduce-scatter of S in all: (N-1) a + (N-1)/N S/B."""
    return (N - 1) * c.latency_s + (N - 1) / N * S / c.ring_bytes_s


def half_direct_s(S: float, N: int, c: LinkCosts) -> float:
    """A direct all-gather or reduce-scatter of S in all: a + (N-1)/N S/Bc."""
    return c.latency_s + (N - 1) / N * S / c.fan_bytes_s


def all_to_all_s(S: float, N: int, c: LinkCosts) -> float:
    """Pairwise rounds of a rank's S bytes: (N-1) a + (N-1)/N S/Bc."""
    return (N - 1) * c.latency_s + (N - 1) / N * S / c.fan_bytes_s


def broadcast_s(S: float, N: int, c: LinkCosts) -> float:
    """Doubling rounds: ceil(log2 N) (a + S/B)."""
    return math.ceil(math.log2(N)) * (c.latency_s + S / c.ring_bytes_s)


def direct_broadcast_s(S: float, N: int, c: LinkCosts) -> float:
    """Written once, read by all at the same time: a + S/Bc."""
    return c.latency_s + S / c.fan_bytes_s


CostFormula = Callable[[float, int, LinkCosts], float]


def quantised(formula: CostFormula) -> CostFormula:
    """The same exchange with int8 blocks: fewer bytes, and three passes to encode and decode."""

    def cost_s(S: float, N: int, c: LinkCosts) -> float:
        return formula(S * INT8_RATIO, N, c) + 3 * S / c.codec_bytes_s

    return cost_s


def one_to_two_shot_bytes(N: int, c: LinkCosts) -> float:
    """The size from which two-shot wins over one-shot: a Bc / ((N-1)(1-2/N)); never for N = 2."""
    if N == 2:
        return math.inf
    return c.latency_s * c.fan_bytes_s / ((N - 1) * (1 - 2 / N))


def two_shot_to_ring_bytes(N: int, c: LinkCosts) -> float:
    """The size from which the ring wins over two-shot; never where fanning out costs nothing."""
    gain_s_per_byte = 2 * (N - 1) / N * (1 / c.fan_bytes_s - 1 / c.ring_bytes_s)
    if gain_s_per_byte <= 0:
        return math.inf
    return 2 * (N - 2) * c.latency_s / gain_s_per_byte


# Gen4 cards behind a root complex, modelled. Nothing was measured between devices, so no transport
# is preferred to another for its constants.
_BETWEEN_DEVICES = LinkCosts(
    latency_s=20e-6,
    ring_bytes_s=12e9,
    fan_bytes_s=6e9,
    cross_latency_s=20e-6,
    cross_bytes_s=10e9,
    codec_bytes_s=500e9,
)
# Before anything is measured. Two processes of one host: a flag and a copy for shared memory, a
# socket for the library; the order of the two is what a seed has to get right.
SEEDS: Mapping[str, LinkCosts] = {
    "shm": LinkCosts(
        latency_s=15e-6,
        ring_bytes_s=4e9,
        fan_bytes_s=4e9,
        cross_latency_s=15e-6,
        cross_bytes_s=4e9,
        codec_bytes_s=2e9,
    ),
    "tcp": LinkCosts(
        latency_s=100e-6,
        ring_bytes_s=1.5e9,
        fan_bytes_s=1.5e9,
        cross_latency_s=100e-6,
        cross_bytes_s=1.5e9,
        codec_bytes_s=2e9,
    ),
    "nccl": _BETWEEN_DEVICES,
    "peer": _BETWEEN_DEVICES,
    "push": _BETWEEN_DEVICES,
    "flashinfer": _BETWEEN_DEVICES,
    "staged": LinkCosts(
        latency_s=40e-6,
        ring_bytes_s=4e9,
        fan_bytes_s=4e9,
        host_latency_s=40e-6,
        host_bytes_s=20e9,
        dram_bytes_s=100e9,
    ),
    "gloo": LinkCosts(
        latency_s=300e-6,
        ring_bytes_s=1.2e9,
        fan_bytes_s=1.2e9,
        cross_latency_s=300e-6,
        cross_bytes_s=1.2e9,
        codec_bytes_s=2e9,
    ),
}
