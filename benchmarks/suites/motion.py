"""How well motion-small does what the prompt asks, measured on rendered frames.

Optical flow is computed on the frames, never taken from the model. The pictures are the test
pictures of ``video_engine.train.pictures``; no training crop comes from them.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from typing import Any

from benchmarks.report import print_table, save_json
from benchmarks.suites.motion_clips import (
    Subject,
    clip_of,
    encoded_clip_seconds,
    load_subjects,
)
from benchmarks.suites.motion_sheet import save_contact_sheet
from video_engine.models.motion_small.model import MotionSmall
from video_engine.train.evaluate import (
    amplitude_ratio,
    best_explanation,
    candidate_flows,
    fit_camera,
    intended_flow,
    mean_motion,
    measure_flow,
    same_family,
    usable_pixels,
)
from video_engine.train.flows import CAMERA_KINDS
from video_engine.train.free_prompts import FREE_PROMPTS, FreePrompt

Row = dict[str, Any]

SIDE_PX = 256
NUM_FRAMES = 13
INDICES = [2, 4, 6, 8, 10, 12]
CAMERA_PROMPTS = {
    **{kind: kind for kind in CAMERA_KINDS},
    "rotate cw": "rotate clockwise",
    "rotate ccw": "rotate counterclockwise",
}
SPEED_PROMPTS = {"slow": "slow {}", "plain": "{}", "fast": "fast {}"}
AMPLITUDE_PROMPTS = {
    "sway": "swaying in the wind",
    "float": "the object floats",
    "parallax": "parallax effect",
    "object left": "the object moves left",
    "object right": "the object moves right",
    "object up": "the object moves up",
    "object down": "the object moves down",
    "wave": "waving flag",
    "ripple": "water ripples",
    "breathe": "breathing",
}
FREEDOM_PROMPTS = ("shaky handheld camera", "zoom in", "a beautiful evening")


def _row(
    name: str, ours: float, unit: str, limit: float, *, at_most: bool = False, **more: object
) -> Row:
    """A row whose limit is the acceptance threshold: a minimum, or with ``at_most`` a maximum."""
    ratio: Row = {"passed": ours <= limit if at_most else ours >= limit}
    if limit:
        ratio["of_limit"] = ours / limit
    return (
        {"suite": "motion", "row": name, "ours": ours, "unit": unit, "limit": limit} | ratio | more
    )


def camera_rows(
    model: MotionSmall, subjects: list[Subject], quality: dict[str, list[float]]
) -> list[Row]:
    """Direction of every camera clip, and slow < plain < fast for every picture and kind."""
    right: list[bool] = []
    ordered: list[bool] = []
    wrong: list[str] = []
    for subject in subjects:
        for kind, phrase in CAMERA_PROMPTS.items():
            motions: list[float] = []
            for speed, form in SPEED_PROMPTS.items():
                frames = clip_of(model, subject, form.format(phrase), NUM_FRAMES, quality)
                flow = measure_flow(frames, [NUM_FRAMES - 1])
                usable = usable_pixels(frames[0], flow)
                found = fit_camera(flow[0], usable[0]).dominant()
                right.append(same_family(found, kind))
                if not right[-1]:
                    wrong.append(f"{subject.name}: {speed} {kind} seen as {found}")
                motions.append(mean_motion(flow, usable))
            ordered.append(motions[0] < motions[1] < motions[2])
            if not ordered[-1]:
                wrong.append(f"{subject.name}: {kind} speeds {[round(m, 3) for m in motions]}")
    return [
        _row(
            "camera direction right",
            sum(right) / len(right),
            "ratio",
            0.98,
            clips=len(right),
            wrong=wrong,
        ),
        _row("slow < plain < fast", sum(ordered) / len(ordered), "ratio", 0.98, clips=len(ordered)),
    ]


def amplitude_rows(
    model: MotionSmall, subjects: list[Subject], quality: dict[str, list[float]]
) -> list[Row]:
    """Mean share of the intended motion per kind; ``reference`` is the same for a perfect model.

    The perfect model's clip is rendered from the analytic flow, so it shows what the estimator and
    the decoder leave of a motion that is right.
    """
    rows: list[Row] = []
    for kind, prompt in AMPLITUDE_PROMPTS.items():
        ours: list[float] = []
        reference: list[float] = []
        for subject in subjects:
            intended = intended_flow(kind, subject.layout, NUM_FRAMES, SIDE_PX)[INDICES]
            frames = clip_of(model, subject, prompt, NUM_FRAMES, quality)
            for clip, results in (
                (frames, ours),
                (subject.analytic_clip(kind, NUM_FRAMES), reference),
            ):
                flow = measure_flow(clip, INDICES)
                usable = usable_pixels(clip[0], flow)
                results.append(amplitude_ratio(flow, intended, usable, kind))
        rows.append(
            _row(
                f"amplitude {kind}",
                statistics.fmean(ours),
                "of intended",
                0.7,
                worst=min(ours),
                reference=statistics.fmean(reference),
                per_picture=dict(zip([s.name for s in subjects], ours, strict=True)),
            )
        )
    return rows


def _is_right(
    model: MotionSmall, subject: Subject, free: FreePrompt, quality: dict[str, list[float]]
) -> str:
    """The explanation found for a free prompt's clip."""
    frames = clip_of(model, subject, free.text, NUM_FRAMES, quality)
    flow = measure_flow(frames, INDICES)
    candidates = candidate_flows(subject.layout, NUM_FRAMES, SIDE_PX, INDICES, free.speed)
    if len(free.kinds) > 1:
        candidates["+".join(free.kinds)] = sum(
            (candidates[kind] for kind in free.kinds[1:]), candidates[free.kinds[0]]
        )
    return best_explanation(flow, usable_pixels(frames[0], flow), candidates)


def free_prompt_row(
    model: MotionSmall, subjects: list[Subject], quality: dict[str, list[float]]
) -> Row:
    """Share of clips of free prompts that the asked-for motion explains best of all kinds."""
    right: list[bool] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    for free in FREE_PROMPTS:
        asked = "+".join(free.kinds)
        for subject in subjects:
            found = _is_right(model, subject, free, quality)
            right.append(same_family(found, asked))
            if not right[-1]:
                wrong[free.text].append(f"{subject.name}: {found}")
    ratio = sum(right) / len(right)
    return _row(
        "free prompts right",
        ratio,
        "ratio",
        0.9,
        clips=len(right),
        prompts=len(FREE_PROMPTS),
        wrong=dict(wrong),
    )


def freedom_row(
    model: MotionSmall, subjects: list[Subject], quality: dict[str, list[float]]
) -> Row:
    """Smallest mean motion between two seeds' clips, where the prompt leaves freedom."""
    differences: list[float] = []
    for prompt in FREEDOM_PROMPTS:
        for subject in subjects[:3]:
            flows = [
                measure_flow(
                    clip_of(model, subject, prompt, NUM_FRAMES, quality, seed=seed), INDICES
                )
                for seed in (0, 1)
            ]
            differences.append(float(abs(flows[0] - flows[1]).mean()) * SIDE_PX / 2)
    return _row(
        "two seeds differ",
        min(differences),
        f"px of {SIDE_PX}",
        0.5,
        mean=statistics.fmean(differences),
    )


def quality_rows(quality: dict[str, list[float]]) -> list[Row]:
    """Frame 0, sharpness and folds over every clip rendered so far."""
    sharp = sorted(quality["sharpness"])
    return [
        _row("frame 0 PSNR (99 = identical)", min(quality["first_frame_psnr_db"]), "dB", 38.0),
        _row(
            "sharpness, median of clips",
            statistics.median(sharp),
            "of input",
            0.8,
            p20=sharp[len(sharp) // 5],
            worst=sharp[0],
            clips=len(sharp),
        ),
        _row("smallest Jacobian", min(quality["jacobian"]), "det", 0.0),
    ]


def run(quick: bool = False) -> list[Row]:
    """All rows; ``quick`` takes two pictures and leaves out the contact sheet."""
    model = MotionSmall.load(device="cpu", dtype="auto")
    subjects = load_subjects(SIDE_PX, model.config.grid)[: 2 if quick else None]
    quality: dict[str, list[float]] = defaultdict(list)
    rows = camera_rows(model, subjects, quality)
    rows += amplitude_rows(model, subjects, quality)
    rows.append(free_prompt_row(model, subjects[:: 1 if quick else 2], quality))
    rows.append(freedom_row(model, subjects, quality))
    rows += quality_rows(quality)
    seconds = encoded_clip_seconds(model)
    rows.append(
        _row(
            "25 frames at 512x512, encoded", seconds["total"], "s", 4.0, at_most=True, parts=seconds
        )
    )
    if not quick:
        rows[-1]["sheet"] = str(save_contact_sheet(model))
    return rows


def main() -> None:
    """Prints and saves the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.motion", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pictures, no contact sheet")
    rows = run(parser.parse_args().quick)
    print_table(rows)
    print(f"saved {save_json('motion', rows)}")


if __name__ == "__main__":
    main()
