"""What an adapter raises when its library does not cover a case."""

from __future__ import annotations


class PeerAbsent(Exception):
    """The library has no form of this case; the message says what is missing."""


def require(holds: bool, otherwise: str) -> None:
    """Refuse a case.

    Raises:
        PeerAbsent: `otherwise`, where `holds` is false.
    """
    if not holds:
        raise PeerAbsent(otherwise)
