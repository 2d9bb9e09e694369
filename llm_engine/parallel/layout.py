"""How a model is laid over ranks, in each phase: parsed from text, checked against the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import lcm
from typing import Literal, Self, get_args

from llm_engine.errors import InvalidConfig

Exchange = Literal["auto", "heads", "gather"]
Dispatch = Literal["agrs", "a2a"]
_AXES = ("tp", "cp", "ep", "pp")
_HELP = (
    "write axes with their numbers of ranks, as in 'tp2', 'cp2', 'tp2,ep2', 'pp2', or one layout "
    "for each phase, as in 'cp2->tp2'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Numbers of ranks along each axis.

    tp: heads, channels and vocabulary are split. cp: a step's rows are split, weights are not.
    ep: experts are split, over the same ranks as tp and cp; where those are fewer than ep, the
    rest of the model is replicated. pp: layers are split. `exchange` is how cp ranks attend to
    each other's keys and values, `dispatch` how split rows reach split experts: gathered and
    scattered again (agrs), or each row sent to the ranks of its experts (a2a).
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    exchange: Exchange = "auto"
    dispatch: Dispatch = "agrs"

    def __post_init__(self) -> None:
        """Refuse numbers that make no grid of ranks."""
        for axis in _AXES:
            if getattr(self, axis) < 1:
                raise InvalidConfig(f"layout: {axis} is {getattr(self, axis)}, at least 1")
        if max(self.unit, self.ep) % min(self.unit, self.ep):
            raise InvalidConfig(
                f"layout {self}: ep{self.ep} and tp{self.tp} x cp{self.cp} ranks do not divide one "
                f"another: take ep {self.unit} or a divisor of it"
            )
        if self.exchange != "auto" and self.cp == 1:
            raise InvalidConfig(f"layout {self}: {self.exchange!r} is for cp ranks: add cp2")
        if self.dispatch == "a2a" and not (self.tp == 1 and self.cp == self.ep > 1):
            raise InvalidConfig(
                f"layout {self}: a2a needs rows and experts split over the same ranks: cp2,ep2,a2a"
            )

    @property
    def unit(self) -> int:
        """Ranks that share the heads of a layer: tp and cp together."""
        return self.tp * self.cp

    @property
    def stage(self) -> int:
        """Ranks that share a layer."""
        return max(self.unit, self.ep)

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.stage * self.pp

    @classmethod
    def parse(cls, text: str) -> Self:
        """The layout of a text like 'tp2,ep2'.

        Raises: InvalidConfig naming the part that is none.
        """
        found: dict[str, int | str] = {}
        for part in text.split(","):
            name, value = _parse_part(part.strip(), text)
            if name in found:
                raise InvalidConfig(f"layout {text!r} gives {name} twice")
            found[name] = value
        return cls(**found)  # type: ignore[arg-type]  # checked by _parse_part

    def __str__(self) -> str:
        """As `parse` reads it."""
        parts = [f"{axis}{n}" for axis in _AXES if (n := getattr(self, axis)) > 1]
        parts += [self.exchange] if self.exchange != "auto" else []
        parts += [self.dispatch] if self.dispatch != "agrs" else []
        return ",".join(parts) or "tp1"


@dataclass(frozen=True, slots=True)
class PhaseLayouts:
    """The layouts of steps that compute prompts and of those that only decode."""

    prefill: Layout
    decode: Layout

    def __post_init__(self) -> None:
        """Refuse pairs that one set of weights and one cache cannot serve."""
        first, second = self.prefill, self.decode
        for what, numbers in (
            ("pp", (first.pp, second.pp)),
            ("ep", (first.ep, second.ep)),
            ("tp x cp", (first.unit, second.unit)),
        ):
            if numbers[0] != numbers[1]:
                raise InvalidConfig(
                    f"layout {self}: {what} is {numbers[0]} for prefill and {numbers[1]} for "
                    "decode; keys, values and experts stay on the ranks that hold them, so it "
                    "must be the same: cp2->tp2"
                )
        if lcm(first.tp, second.tp) != max(first.tp, second.tp):
            raise InvalidConfig(f"layout {self}: one tp must divide the other: weights nest then")
        if first != second and "gather" in (first.exchange, second.exchange):
            raise InvalidConfig(
                f"layout {self}: 'gather' keeps all keys on every rank, the other phase its own "
                "heads: leave it out"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """One layout for both phases, or two with '->' between. Raises: InvalidConfig."""
        parts = text.split("->")
        if len(parts) > 2:
            raise InvalidConfig(f"layout {text!r} has more than two phases; {_HELP}")
        return cls(Layout.parse(parts[0]), Layout.parse(parts[-1]))

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.prefill == self.decode:
            return str(self.prefill)
        return f"{self.prefill}->{self.decode}"

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.prefill.num_ranks

    @property
    def is_hybrid(self) -> bool:
        """Whether the phases split the weights differently."""
        return self.prefill.tp != self.decode.tp

    @property
    def held_tp(self) -> int:
        """Into how many shares the weights are cut as they lie in memory."""
        return min(self.prefill.tp, self.decode.tp)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's coordinates; cp runs fastest, so that a tp share's ranks are neighbours."""

    pp: int
    replica: int
    tp: int
    cp: int

    @classmethod
    def of(cls, layout: Layout, rank: int) -> Self:
        """The place of a rank."""
        rest, cp = divmod(rank, layout.cp)
        rest, tp = divmod(rest, layout.tp)
        pp, replica = divmod(rest, layout.stage // layout.unit)
        return cls(pp, replica, tp, cp)


def _parse_part(part: str, text: str) -> tuple[str, int | str]:
    if part in get_args(Exchange)[1:]:
        return "exchange", part
    if part in get_args(Dispatch):
        return "dispatch", part
    match = re.fullmatch(rf"({'|'.join(_AXES)})([1-9]\d{{0,3}})", part)
    if match is None:
        raise InvalidConfig(f"layout {text!r}: {part!r} is no axis; {_HELP}")
    return match[1], int(match[2])
