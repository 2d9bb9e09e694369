"""What can be refused of a layout before any rank is started and any weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.collectives.board import MAX_RANKS
from video_engine.errors import InvalidLayout
from video_engine.models.registry import find_model
from video_engine.parallel.families import FAMILIES, Family
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.needs import Needs, needs_of
from video_engine.parallel.place import runs

if TYPE_CHECKING:
    from video_engine.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLayout:
    """A layout that a model allows, with the facts that this rests on."""

    layout: VideoLayout
    family: Family
    needs: Needs

    @property
    def most_heads(self) -> int:
        """Heads that the fullest rank attends with."""
        return len(runs(self.needs.facts.heads, self.layout.ulysses)[0])


def check_layout(config: EngineConfig, num_devices: int | None = None) -> CheckedLayout:
    """The layout of `config.layout`, if the model can be laid so.

    `num_devices` is how many accelerators there are; None on a CPU.
    Raises: ModelNotFound, UnsupportedModel; InvalidLayout with the reason and the way out.
    """
    layout = VideoLayout.parse(config.layout)
    if not 2 <= layout.num_ranks <= MAX_RANKS:
        raise InvalidLayout(
            f"layout {layout} is for {layout.num_ranks} ranks, a group has 2 to {MAX_RANKS}: leave "
            "layout out for one rank"
        )
    if num_devices is not None and num_devices < layout.num_ranks:
        raise InvalidLayout(
            f"layout {layout} has {layout.num_ranks} ranks, but there are {num_devices} devices: "
            "give each rank one"
        )
    found = find_model(config)
    family = FAMILIES.get(found.kind)
    if family is None:
        raise InvalidLayout(
            f"layout {layout}: a {found.kind} is computed on one rank; divided are "
            f"{', '.join(sorted(FAMILIES))}: leave layout out"
        )
    if layout.cfg > family.branches:
        raise InvalidLayout(
            f"layout {layout}: {config.model} has no guidance, so its steps have no second branch: "
            f"take ulysses{layout.num_ranks}"
        )
    checked = CheckedLayout(layout=layout, family=family, needs=needs_of(found))
    _check_heads(checked)
    return checked


def check_memory(checked: CheckedLayout, config: EngineConfig, available_bytes: int) -> None:
    """Refuse ranks of one host whose weights it cannot hold: each has a whole transformer.

    What else is loaded is not counted, so a layout that passes may still be too large.
    Raises: InvalidLayout with both numbers.
    """
    layout, is_short = checked.layout, config.dtype in ("bfloat16", "float16")
    each = checked.needs.weight_bytes(layout.clip) * (1 if is_short else 2)
    if layout.num_ranks * each <= available_bytes:
        return
    most = int(available_bytes // each)
    way_out = f"take ulysses{most}" if most > 1 else "leave layout out for one rank"
    raise InvalidLayout(
        f"layout {layout}: each of {layout.num_ranks} ranks holds a transformer of "
        f"{each / 1e9:.3g} GB, and {available_bytes / 1e9:.3g} GB of memory are available: "
        f"{way_out}, or free memory"
    )


def _check_heads(checked: CheckedLayout) -> None:
    layout, heads = checked.layout, checked.needs.facts.heads
    if layout.groups is not None and layout.groups > checked.most_heads:
        raise InvalidLayout(
            f"layout {layout}: {heads} heads over {layout.ulysses} ranks are at most "
            f"{checked.most_heads} on a rank, too few for {layout.groups} groups: take "
            f"groups{checked.most_heads} or fewer"
        )
