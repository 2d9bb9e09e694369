"""Motion measured on rendered frames by optical flow, and compared with the motion asked for.

Legend: F frames, H height, W width, G grid. Flows are backward, in canvas units, as in ``flows``.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.fields import frames_from_motion
from video_engine.models.motion_small.layout import Layout
from video_engine.models.motion_small.warp import PixelGrid
from video_engine.train.flows import FLOWS, MotionDraw, make_flow

_ROBUST_ROUNDS = 6
_RMS_RADIUS = float(np.sqrt(2 / 3))
_MIN_GRADIENT = 4.0
_STILL_MOTION = 0.012
_BODY_RATIO = 0.6
_INSIDE = 0.98


def measure_flow(frames_FHW3: Picture, indices: list[int]) -> FloatArray:
    """Optical flow (N, 2, H, W) from the frames at ``indices`` back to frame 0.

    Source: Kroeger et al. 2016, dense inverse search (OpenCV's DIS, medium preset).
    """
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames_FHW3]
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    half_px = (max(grey[0].shape) - 1) / 2
    flows: list[FloatArray] = []
    for index in indices:
        middle = max(index // 2, 1)
        half_way = search.calc(grey[middle], grey[0], np.zeros((*grey[0].shape, 2), np.float32))
        seed = np.asarray(half_way, np.float32) * np.float32(index / middle)
        found = np.asarray(search.calc(grey[index], grey[0], seed), np.float32)
        flows.append(found.transpose(2, 0, 1) / np.float32(half_px))
    return np.stack(flows)


def usable_pixels(first_HW3: Picture, flow_N2HW: FloatArray) -> NDArray[np.bool_]:
    """Pixels (N, H, W) with texture whose flow ends inside the picture (square pictures)."""
    grey = np.asarray(cv2.cvtColor(first_HW3, cv2.COLOR_RGB2GRAY), np.float32)
    grad_y, grad_x = np.gradient(cv2.GaussianBlur(grey, (0, 0), 1.5))
    textured = np.asarray(cv2.blur(np.hypot(grad_x, grad_y), (9, 9))) > _MIN_GRADIENT / 4
    ends = pixel_points(flow_N2HW.shape[-1]) + flow_N2HW
    return textured & (np.abs(ends).max(axis=1) < _INSIDE)


def pixel_points(side: int) -> FloatArray:
    """Canvas coordinates (2, side, side) of the pixels of a square picture."""
    line = np.linspace(-1, 1, side, dtype=np.float32)
    return np.stack(np.meshgrid(line, line))


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraMotion:
    """Shift, scale and turn of the content: strengths are rms displacements in canvas units."""

    right: float
    down: float
    growth: float
    clockwise: float

    def dominant(self) -> str:
        """The kind of camera motion whose strength is the largest."""
        strengths = {
            "pan left": self.right,
            "pan right": -self.right,
            "pan up": self.down,
            "pan down": -self.down,
            "zoom in": self.growth,
            "zoom out": -self.growth,
            "rotate cw": self.clockwise,
            "rotate ccw": -self.clockwise,
        }
        return max(strengths, key=lambda kind: strengths[kind])


def fit_camera(flow_2HW: FloatArray, usable_HW: NDArray[np.bool_]) -> CameraMotion:
    """Robust affine fit of one measured flow (iteratively reweighted towards least absolutes)."""
    points = pixel_points(flow_2HW.shape[-1])[:, usable_HW]
    basis = np.stack([np.ones_like(points[0]), *points], -1).astype(np.float64)
    values = flow_2HW[:, usable_HW].T.astype(np.float64)
    weight, solution = np.ones(len(basis)), np.zeros((3, 2))
    for _ in range(_ROBUST_ROUNDS):
        weighted = basis * weight[:, None]
        solution = np.linalg.lstsq(weighted.T @ basis, weighted.T @ values, rcond=None)[0]
        weight = 1 / (np.hypot(*(values - basis @ solution).T) + 0.005)
    shift, along_x, along_y = solution
    return CameraMotion(
        right=-float(shift[0]),
        down=-float(shift[1]),
        growth=-float(along_x[0] + along_y[1]) / 2 * _RMS_RADIUS,
        clockwise=-float(along_x[1] - along_y[0]) / 2 * _RMS_RADIUS,
    )


def mean_motion(flow_N2HW: FloatArray, usable_NHW: NDArray[np.bool_]) -> float:
    """Mean displacement over usable pixels, in canvas units."""
    length = np.hypot(flow_N2HW[:, 0], flow_N2HW[:, 1])
    return float(length[usable_NHW].mean())


def intended_flow(
    kind: str, layout: Layout, num_frames: int, side: int, speed: str = "plain"
) -> FloatArray:
    """The data definition of a motion without its random part, per pixel (F, 2, H, W)."""
    flow = frames_from_motion(make_flow(kind, layout, MotionDraw(speed=speed)), num_frames)
    return PixelGrid.build(side, side, layout.mask.shape[0]).upsample(flow)


def amplitude_ratio(
    measured_N2HW: FloatArray, intended_N2HW: FloatArray, usable_NHW: NDArray[np.bool_], kind: str
) -> float:
    """Share of the intended motion found: <measured, intended> / <intended, intended>.

    For objects and floating only the body counts (over 60 % of the largest intended motion): a
    layered clip leaves the ground alone, as it should.
    """
    weight = usable_NHW.astype(np.float64)
    if kind.split()[0] in {"object", "float"}:
        length = np.hypot(intended_N2HW[:, 0], intended_N2HW[:, 1])
        weight = weight * (length > _BODY_RATIO * length.max(axis=(1, 2), keepdims=True))
    product = (measured_N2HW * intended_N2HW).sum(1) * weight
    return float(product.sum() / (np.square(intended_N2HW).sum(1) * weight).sum())


def best_explanation(
    measured_N2HW: FloatArray,
    usable_NHW: NDArray[np.bool_],
    candidates: dict[str, FloatArray],
) -> str:
    """The candidate with the largest cosine to the measured flow; "still" if little moves."""
    if mean_motion(measured_N2HW, usable_NHW) < _STILL_MOTION:
        return "still"
    weight = usable_NHW[:, None].astype(np.float32)

    def cosine(flow: FloatArray) -> float:
        norm = np.square(flow * weight).sum() * np.square(measured_N2HW * weight).sum()
        return float((measured_N2HW * flow * weight).sum() / np.sqrt(max(float(norm), 1e-12)))

    return max(candidates, key=lambda kind: cosine(candidates[kind]))


def same_family(kind: str, other: str) -> bool:
    """Whether two answers count as the same: zooms and dollies differ by depth alone."""
    return kind.replace("dolly", "zoom") == other.replace("dolly", "zoom")


def sharpness(frame_HW3: Picture) -> float:
    """Variance of the Laplacian of the grey picture."""
    grey = cv2.cvtColor(frame_HW3, cv2.COLOR_RGB2GRAY)
    return float(np.asarray(cv2.Laplacian(grey, cv2.CV_64F)).var())


def candidate_flows(
    layout: Layout, num_frames: int, side: int, indices: list[int], speed: str
) -> dict[str, FloatArray]:
    """Intended flows (N, 2, H, W) of every kind that has one (not shake, still, ambient)."""
    kinds = [kind for kind in FLOWS if kind not in {"shake", "still", "ambient"}]
    return {k: intended_flow(k, layout, num_frames, side, speed)[indices] for k in kinds}
