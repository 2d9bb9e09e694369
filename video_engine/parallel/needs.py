"""What a layout needs of memory and links, from the planner's description of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from video_engine.plan.clip_layout import ClipFacts, ClipLayout, clip_facts, exchanged_heads
from video_engine.plan.clip_time import denoiser_bytes
from video_engine.plan.families import SHIPPED, describe, read_folder
from video_engine.plan.request import ClipRequest

if TYPE_CHECKING:
    from kernels.layer_groups import ModelShape
    from video_engine.models.registry import FoundModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """A model's denoising step for its family's usual clip, in 16-bit values."""

    shape: ModelShape
    facts: ClipFacts

    def weight_bytes(self, layout: ClipLayout) -> float:
        """Weights of one transformer on a rank."""
        return denoiser_bytes(self.shape, layout)

    def sent_bytes(self, layout: ClipLayout) -> float:
        """What leaves a rank in one forward for its heads to meet all tokens."""
        return exchanged_heads(self.facts, layout).sent_bytes


def needs_of(found: FoundModel) -> Needs:
    """Of a model whose folder was found; weights are not read.

    Raises: UnsupportedModel where a config lacks what a description needs.
    """
    folder = found.folder or SHIPPED[found.kind]
    shape = describe(read_folder(folder), ClipRequest(), name=found.name)
    return Needs(shape=shape, facts=clip_facts(shape))
