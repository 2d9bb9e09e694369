"""How a denoising step lies over ranks: parsed from text, in the planner's own terms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from video_engine.errors import InvalidLayout, MalformedLayout
from video_engine.plan.clip_layout import ClipLayout

Wire = Literal["exact", "int8"]
_AXES = ("cfg", "ulysses", "groups")
_PLANNED_ONLY = ("ring", "tp")
_HELP = (
    "write axes with their numbers, as in 'ulysses2', 'cfg2', 'cfg2,ulysses2' or 'ulysses4,groups2'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLayout:
    """Numbers of ranks along each axis.

    cfg: the two branches of guidance are computed by ranks of their own. ulysses: a clip's tokens
    are split and, inside attention, its heads. `groups` of heads hide the exchange of one under
    the attention of another; None leaves it to the engine. `wire`: how values travel to heads and
    back; int8 changes pixels.
    """

    cfg: int = 1
    ulysses: int = 1
    groups: int | None = None
    wire: Wire = "exact"

    def __post_init__(self) -> None:
        """Refuse what no group of ranks could carry out."""
        if self.cfg not in (1, 2):
            raise InvalidLayout(
                f"layout {self}: cfg is {self.cfg}, but guidance has two branches: take cfg2"
            )
        if self.ulysses == 1 and (self.groups is not None or self.wire != "exact"):
            raise InvalidLayout(
                f"layout {self}: groups and int8 are of the exchange between ulysses ranks: add "
                "ulysses2"
            )

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.clip.num_devices

    @property
    def clip(self) -> ClipLayout:
        """The same as the planner has it."""
        return ClipLayout(cfg=self.cfg, ulysses=self.ulysses, num_groups=self.groups or 1)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The layout of a text like 'cfg2,ulysses2'.

        Raises: InvalidLayout naming the part that is none.
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
        parts = [f"{axis}{n}" for axis in ("cfg", "ulysses") if (n := getattr(self, axis)) > 1]
        parts += [f"groups{self.groups}"] if self.groups is not None else []
        parts += [self.wire] if self.wire != "exact" else []
        return ",".join(parts) or "ulysses1"


def _parse_part(part: str, text: str) -> tuple[str, int | str]:
    if part == "int8":
        return "wire", part
    match = re.fullmatch(r"([a-z]+)([1-9]\d{0,3})", part)
    if match and match[1] in _PLANNED_ONLY:
        raise InvalidLayout(
            f"layout {text!r}: {match[1]} is planned by `lanewise plan`, but this engine divides "
            "branches and tokens alone: cfg and ulysses"
        )
    if match is None or match[1] not in _AXES:
        raise MalformedLayout(f"layout {text!r}: {part!r} is no axis; {_HELP}")
    return match[1], int(match[2])
