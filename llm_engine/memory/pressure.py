"""Giving memory back when the machine runs short of it, and taking more when it has plenty."""

from dataclasses import dataclass

_GROW_SHARE = 0.5  # of what is to spare at once, since others may want it too


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The machine and the cache at one moment. Units: bytes and blocks of the cache."""

    available_bytes: int
    low_bytes: int  # below it, memory is given back
    high_bytes: int  # above it, more may be taken
    num_blocks: int
    min_blocks: int
    max_blocks: int
    block_bytes: int
    is_short: bool  # whether blocks were evicted or sequences preempted lately

    @property
    def missing_bytes(self) -> int:
        """What must be given back."""
        return max(0, self.low_bytes - self.available_bytes)


def blocks_to_serve(pressure: Pressure) -> int:
    """How many blocks should be in service now, within the bounds."""
    target = pressure.num_blocks
    if pressure.missing_bytes:
        target -= -(-pressure.missing_bytes // pressure.block_bytes)
    elif pressure.is_short and pressure.available_bytes > pressure.high_bytes:
        spare_bytes = pressure.available_bytes - pressure.high_bytes
        target += int(spare_bytes * _GROW_SHARE) // pressure.block_bytes
    return min(max(target, pressure.min_blocks), pressure.max_blocks)
