"""Clips of motion-small for the motion suite, and what is recorded of each."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from video_engine.models.motion_small.arrays import Picture
from video_engine.models.motion_small.fields import jacobians
from video_engine.models.motion_small.latents import unpack
from video_engine.models.motion_small.layout import Layout, picture_layout
from video_engine.models.motion_small.model import MotionSmall
from video_engine.models.motion_small.render import clean_motion, render
from video_engine.models.motion_small.warp import PixelGrid
from video_engine.output.mp4 import encode_mp4
from video_engine.picture import fit_picture
from video_engine.train.evaluate import sharpness
from video_engine.train.flows import MotionDraw, make_flow
from video_engine.train.pictures import TEST_PHOTOS
from video_engine.types import Conditioning, Latents, VideoRequest

_JACOBIAN_SIDE = 128
_PSNR_CAP_DB = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A test picture, square, with its layout."""

    name: str
    picture: Picture
    layout: Layout

    def request(self, prompt: str, num_frames: int, seed: int = 0) -> VideoRequest:
        """A request of the model's default settings."""
        height, width = self.picture.shape[:2]
        return VideoRequest(
            image=Image.fromarray(self.picture),
            prompt=prompt,
            width=width,
            height=height,
            num_frames=num_frames,
            fps=24.0,
            steps=6,
            seed=seed,
        )

    def analytic_clip(self, kind: str, num_frames: int) -> Picture:
        """Frames rendered from the data definition of a motion."""
        flow = make_flow(kind, self.layout, MotionDraw())
        return render(self.picture, flow, self.layout, num_frames)


def load_subjects(side: int, grid: int) -> list[Subject]:
    """Every test picture, cropped to a square of ``side`` pixels."""
    subjects: list[Subject] = []
    for photo in TEST_PHOTOS:
        picture = fit_picture(Image.fromarray(photo.read()), side, side, "crop")
        subjects.append(
            Subject(name=photo.name, picture=picture, layout=picture_layout(picture, grid))
        )
    return subjects


def run_steps(model: MotionSmall, request: VideoRequest, conditioning: Conditioning) -> Latents:
    """Latents after the last step."""
    latents = model.prepare(request, conditioning)
    for _ in range(latents.steps):
        latents = model.step(conditioning, latents)
    return latents


def clip_of(
    model: MotionSmall,
    subject: Subject,
    prompt: str,
    num_frames: int,
    quality: dict[str, list[float]],
    *,
    seed: int = 0,
) -> Picture:
    """Frames of one clip; its sharpness, frame 0 and smallest Jacobian are added to ``quality``."""
    request = subject.request(prompt, num_frames, seed)
    conditioning = model.encode(request)
    latents = run_steps(model, request, conditioning)
    frames = model.decode(request, conditioning, latents).frames
    first = sharpness(subject.picture)
    ratios = [sharpness(frame) / first for frame in frames[1:]]
    quality["sharpness"].append(float(np.median(ratios)))
    quality["first_frame_psnr_db"].append(psnr_db(frames[0], subject.picture))
    quality["jacobian"].append(smallest_jacobian(model, latents, num_frames))
    return frames


def psnr_db(first_HW3: Picture, second_HW3: Picture) -> float:
    """Peak signal-to-noise ratio, capped at 99 dB for identical pictures."""
    error = float(np.square(first_HW3.astype(np.float64) - second_HW3).mean())
    return _PSNR_CAP_DB if error == 0 else min(float(10 * np.log10(255**2 / error)), _PSNR_CAP_DB)


def smallest_jacobian(model: MotionSmall, latents: Latents, num_frames: int) -> float:
    """Smallest determinant of the map that the decoder samples by, on 128 x 128 points."""
    flow = unpack(latents.tensors["motion"].float(), model.config)[0].numpy()
    cleaned = clean_motion(flow, num_frames)
    dense = PixelGrid.build(_JACOBIAN_SIDE, _JACOBIAN_SIDE, cleaned.shape[-1]).upsample(cleaned)
    return float(jacobians(dense).min())


def encoded_clip_seconds(model: MotionSmall, rounds: int = 3) -> dict[str, float]:
    """Wall time of 25 frames of 512 x 512 by part: the quickest of three rounds."""
    subject = load_subjects(512, model.config.grid)[0]
    found: list[dict[str, float]] = []
    for seed in range(rounds):
        request = subject.request("zoom in", 25, seed)
        marks = [time.perf_counter()]
        conditioning = model.encode(request)
        latents = run_steps(model, request, conditioning)
        marks.append(time.perf_counter())
        clip = model.decode(request, conditioning, latents)
        marks.append(time.perf_counter())
        with tempfile.TemporaryDirectory() as folder:
            encode_mp4(clip, Fraction(24), "", Path(folder) / "clip.mp4")
        marks.append(time.perf_counter())
        parts = [later - earlier for earlier, later in pairwise(marks)]
        names = ("sampling", "decoding", "encoding")
        found.append({"total": sum(parts), **dict(zip(names, parts, strict=True))})
    return min(found, key=lambda parts: parts["total"])
