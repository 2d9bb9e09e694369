"""motion-small: a Wan transformer over the patches of a motion field; frames come from warping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.layer_groups import ModelShape, total_parameters, total_weight_bytes
from video_engine.plan.blocks import Rows, phase
from video_engine.plan.request import ClipRequest
from video_engine.plan.wan import transformer_groups


def describe(components: Mapping[str, Any], clip: ClipRequest) -> ModelShape:
    """The denoising stage; its size does not depend on the clip's."""
    del clip
    model, motion = components["transformer"], components["motion"]
    across = int(motion["grid"]) // int(model["patch_size"][1])
    frames = int(motion["num_motion_frames"]) // int(motion["frames_per_latent"])
    rows = Rows(frames * across * across, "fp32")
    groups = transformer_groups(model, rows, int(motion["text"]["max_words"]))
    return ModelShape(
        name="",
        family="motion_small",
        phases=(phase("denoise", rows.count, groups),),
        rows=(),
        parameters=total_parameters(groups),
        weight_bytes=total_weight_bytes(groups),
        notes=("frames are the picture warped on the processor: no kernel of ours",),
    )
