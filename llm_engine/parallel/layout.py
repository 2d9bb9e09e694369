"""How a model is laid over ranks, in each phase: parsed from text, checked against the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal, Self, get_args

from llm_engine.errors import InvalidConfig, MalformedLayout

Phase = Literal["prefill", "decode"]
Exchange = Literal["auto", "heads", "gather", "ring"]
Dispatch = Literal["agrs", "a2a"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
_AXES = ("dp", "tp", "cp", "ep", "pp")
_HELP = (
    "write axes with their numbers of ranks, as in 'tp2', 'cp2', 'dp2,ep2', 'pp2', or one layout "
    "for each phase, as in 'cp2->tp2'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Numbers of ranks along each axis.

    tp: heads, channels and vocabulary are split. cp: a step's rows are split, weights are not.
    ep: experts are split, over the same ranks as tp and cp; where those are fewer than ep, the
    rest of the model is replicated. pp: layers are split. dp: sequences are split: a rank attends
    for its own with whole heads, or those of its tp share, and caches their keys; channels, experts
    and head are split over dp and tp ranks together, for all rows. Beside cp, the rows of its
    sequences are split over the cp ranks of its part.
    `exchange` is how cp ranks attend to each other's keys and values, `dispatch` how split rows
    reach split experts: gathered and scattered again (agrs), or each row sent to the ranks of its
    experts (a2a).
    `fold` is no axis and not written: the stages of the phase whose weights this one shares. The
    tp ranks of one that decodes take their turns by stage then, so that what each uses of a layer
    lies within what its stage's rank has of it.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    exchange: Exchange = "auto"
    dispatch: Dispatch = "agrs"
    fold: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that make no grid of ranks."""
        for axis in _AXES:
            if getattr(self, axis) < 1:
                raise InvalidConfig(f"layout: {axis} is {getattr(self, axis)}, at least 1")
        if max(self.width, self.ep) % min(self.width, self.ep):
            raise InvalidConfig(
                f"layout {self}: ep{self.ep} and tp{self.tp} x cp{self.cp} ranks do not divide one "
                f"another: take ep {self.width} or a divisor of it"
            )
        if self.dp > 1 and (self.pp > 1 or self.ep > self.width):
            raise InvalidConfig(
                f"layout {self}: sequences are split over the ranks of one stage, and experts over "
                "no more than those: leave pp out, as in dp2,tp2,ep4 or dp2,cp2,ep4"
            )
        if self.exchange != "auto" and self.cp == 1:
            raise InvalidConfig(f"layout {self}: {self.exchange!r} is for cp ranks: add cp2")
        if self.dispatch == "a2a" and not (self.tp == 1 and self.cp * self.dp == self.ep > 1):
            raise InvalidConfig(
                f"layout {self}: a2a needs rows and experts split over the same ranks: cp2,ep2,a2a "
                "or dp2,ep2,a2a"
            )

    @property
    def unit(self) -> int:
        """Ranks that share the heads of a layer: tp and cp together."""
        return self.tp * self.cp

    @property
    def width(self) -> int:
        """Ranks that share the channels of a layer: those of all units of other sequences too."""
        return self.unit * self.dp

    @property
    def grain(self) -> int:
        """Into how many shares the finer phase cuts a layer: those of both are whole ones."""
        return self.unit * (self.fold if self.pp > 1 else 1)

    @property
    def expert_grain(self) -> int:
        """As `grain`, of experts."""
        return self.ep * (self.fold if self.pp > 1 else 1)

    @property
    def head_grain(self) -> int:
        """As `grain`, of heads: cp ranks have the same ones where keys do not lie by head."""
        return self.tp if self.exchange in ("gather", "ring") else self.grain

    @property
    def stage(self) -> int:
        """Ranks that share a layer."""
        return max(self.width, self.ep)

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
                raise MalformedLayout(f"layout {text!r} gives {name} twice")
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
        self._check_exchange()
        if self.is_restaged:
            self._check_stages()
            return
        for what, numbers in (
            ("pp", (first.pp, second.pp)),
            ("dp", (first.dp, second.dp)),
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

    @classmethod
    def parse(cls, text: str) -> Self:
        """One layout for both phases, or two with '->' between. Raises: InvalidConfig."""
        parts = text.split("->")
        if len(parts) > 2:
            raise MalformedLayout(f"layout {text!r} has more than two phases; {_HELP}")
        first, second = Layout.parse(parts[0]), Layout.parse(parts[-1])
        if first.pp != second.pp:
            fold = max(first.pp, second.pp)
            first, second = replace(first, fold=fold), replace(second, fold=fold)
        return cls(first, second)

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.prefill == self.decode:
            return str(self.prefill)
        return f"{self.prefill}->{self.decode}"

    def of(self, phase: Phase) -> Layout:
        """The layout of a phase's steps."""
        return self.prefill if phase == "prefill" else self.decode

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.prefill.num_ranks

    @property
    def is_restaged(self) -> bool:
        """Whether prompts pass through stages and answers do not, so that keys have to move."""
        return self.prefill.pp != self.decode.pp

    @property
    def is_hybrid(self) -> bool:
        """Whether the phases split the weights differently."""
        return self.is_restaged or self.prefill.tp != self.decode.tp

    @property
    def held_tp(self) -> int:
        """Into how many shares the weights are cut as they lie in memory."""
        return min(self.prefill.tp, self.decode.tp)

    def _check_exchange(self) -> None:
        if self.prefill == self.decode:
            return
        for exchange, keeps in (
            ("gather", "all keys on every rank"),
            ("ring", "keys by their position"),
        ):
            if exchange in (self.prefill.exchange, self.decode.exchange):
                raise InvalidConfig(
                    f"layout {self}: {exchange!r} keeps {keeps}, the other phase its own "
                    "heads: leave it out"
                )

    def _check_stages(self) -> None:
        first, second = self.prefill, self.decode
        wanted = Layout(tp=first.num_ranks)
        if second.pp > 1:
            raise InvalidConfig(
                f"layout {self}: decoding in {second.pp} stages, of which one works at a time, "
                f"needs prompts in as many: pp2->tp2, or pp{second.pp} for both"
            )
        if (second.tp, second.cp, second.dp) != (wanted.tp, 1, 1):
            raise InvalidConfig(
                f"layout {self}: after {first.num_ranks} ranks in stages, each decodes with its "
                f"own heads of all layers: {first}->{wanted}"
            )
        if first.ep > first.width > 1:
            raise InvalidConfig(
                f"layout {self}: the {first.ep} ranks that share a stage's experts would have "
                f"copies of its heads, of which none holds what it decodes with: take "
                f"ep{first.width}"
            )
        shared_out = first.ep * first.pp
        if second.ep != shared_out and (first.ep, second.ep) != (1, 1):
            raise InvalidConfig(
                f"layout {self}: a rank decodes with some of its stage's own experts, {first.ep} "
                f"shares in each of {first.pp} stages: {first}->{wanted},ep{shared_out}"
            )


def _parse_part(part: str, text: str) -> tuple[str, int | str]:
    if part in get_args(Exchange)[1:]:
        return "exchange", part
    if part in get_args(Dispatch):
        return "dispatch", part
    match = re.fullmatch(rf"({'|'.join(_AXES)})([1-9]\d{{0,3}})", part)
    if match is None:
        raise MalformedLayout(f"layout {text!r}: {part!r} is no axis; {_HELP}")
    return match[1], int(match[2])
