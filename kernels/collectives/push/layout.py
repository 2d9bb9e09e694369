"""Where flags and payloads lie in a rank's inbox, and how a message is cut into rounds.

An inbox holds, for every channel, a flag of each rank and two turns of a slot from each rank:
flags [CHANNELS, ranks] of 8 bytes, then slots [2, CHANNELS, ranks, slot_bytes].
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Programs that exchange at the same time, each with flags and slots of its own. Few enough that
# all are resident on every family's device: a channel waits for the same channel of the others.
CHANNELS = 16
NUM_TURNS = 2
# Ranks whose values one program adds up in a loop that is unrolled.
MAX_RANKS = 8
# A channel of less than this costs more in flags than it gains.
LEAST_PIECE_BYTES = 4096
_FLAG_BYTES = 8
_PAGE_BYTES = 4096
_ALIGNED_BYTES = 16
_WIDEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Sizes of an inbox, alike on all ranks.

    Units: bytes. Raises: ValueError for a slot that 16 does not divide.
    """

    num_ranks: int
    slot_bytes: int

    def __post_init__(self) -> None:
        if self.slot_bytes < _ALIGNED_BYTES or self.slot_bytes % _ALIGNED_BYTES:
            raise ValueError(f"slot of {self.slot_bytes} B: a multiple of {_ALIGNED_BYTES} above 0")

    @property
    def first_slot(self) -> int:
        """The offset of the slots behind the flags."""
        flags = CHANNELS * self.num_ranks * _FLAG_BYTES
        return -(-flags // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return self.first_slot + NUM_TURNS * CHANNELS * self.num_ranks * self.slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How channels go through a message: round k of channel c has piece k · channels + c."""

    num_channels: int
    num_rounds: int
    piece_bytes: int


def rounds_of(longest_bytes: int, slot_bytes: int) -> Rounds:
    """The rounds of the longest message between any two ranks, so the same on all ranks."""
    num_channels = min(CHANNELS, max(1, math.ceil(longest_bytes / LEAST_PIECE_BYTES)))
    share = math.ceil(longest_bytes / num_channels)
    piece_bytes = min(slot_bytes, max(1, math.ceil(share / _ALIGNED_BYTES)) * _ALIGNED_BYTES)
    num_rounds = math.ceil(longest_bytes / (num_channels * piece_bytes))
    return Rounds(num_channels=num_channels, num_rounds=num_rounds, piece_bytes=piece_bytes)


def word_bytes(numbers: Iterable[int]) -> int:
    """The widest word, of 1 to 8 bytes, that divides all addresses and sizes."""
    return math.gcd(_WIDEST_BYTES, *numbers)
