"""What can be wrong with a fact.

ValueError
└── HardwareError
    ├── UnknownName     a family, product, profile or machine that no table holds
    └── MalformedFile   a table whose key is unknown, missing, of the wrong kind or out of bounds
"""

from collections.abc import Iterable


class HardwareError(ValueError):
    """A request for a fact that cannot be met, or a table that does not hold one."""


class UnknownName(HardwareError):
    """A name that no table holds; the message lists those that exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(self.known)}")


class MalformedFile(HardwareError):
    """A table that breaks its schema; the message names file, key and bound."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        self.file = file
        self.key = key
        super().__init__(f"{file}: {key}: {problem}")
