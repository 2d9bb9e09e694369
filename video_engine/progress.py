"""How far a render is: stages weighted by their usual share of the time, never going back."""

from __future__ import annotations

from video_engine.types import Progress, Stage

WEIGHTS = {
    Stage.ENCODE: 8.0,
    Stage.PREPARE: 2.0,
    Stage.DENOISE: 70.0,
    Stage.DECODE: 15.0,
    Stage.WRITE: 5.0,
}


def progress(stage: Stage, step: int, steps: int) -> Progress:
    """The event "`step` of `steps` of `stage` are done", with its percentage of the whole."""
    before = 0.0
    for earlier, weight in WEIGHTS.items():
        if earlier is stage:
            break
        before += weight
    percent = before + WEIGHTS[stage] * (step / steps)
    return Progress(stage=stage, step=step, steps=steps, percent=round(percent, 3))
