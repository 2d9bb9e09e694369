"""The analytic motions that motion-small learns: one function per kind of motion.

Every flow is backward: frame u at point p shows the picture at p + f_u(p). Points and flows are in
canvas units (half the picture's longer side), y points down. Legend: T motion frames, G grid.

Directions follow the camera: "pan left" turns the camera left, so the content moves right.
Objects follow the picture: "the cat moves left" moves the cat left.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray
from video_engine.models.motion_small.layout import Layout, node_coordinates, soften

NUM_MOTION_FRAMES = 16
SPEEDS = {"slow": 0.5, "plain": 1.0, "fast": 1.7}
_CYCLES = {"slow": 0.6, "plain": 1.0, "fast": 1.6}
_OBJECT_REACH = 0.22
_DIRECTIONS = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionDraw:
    """The random part of a clip; the defaults are the expected values, used as the intent.

    ``gain`` scales the amplitude; ``easing`` 0 is a linear, 1 a smooth course; ``offset`` moves the
    zoom centre and gives ambient motion its drift; ``shake`` holds amplitude and phase of three
    sinusoids per axis, (2, 3, 2).
    """

    speed: str = "plain"
    gain: float = 1.0
    easing: float = 0.7
    offset: tuple[float, float] = (0.0, 0.0)
    shake: FloatArray = field(default_factory=lambda: np.zeros((2, 3, 2), np.float32))

    @classmethod
    def sample(cls, rng: np.random.Generator, speed: str) -> "MotionDraw":
        """Draws gain, easing, centre and shake of one clip."""
        shake = np.stack([rng.normal(0, 0.016, (2, 3)), rng.uniform(0, 2 * np.pi, (2, 3))], -1)
        return cls(
            speed=speed,
            gain=float(rng.uniform(0.92, 1.08)),
            easing=float(rng.uniform(0.4, 1.0)),
            offset=(float(rng.normal(0, 0.12)), float(rng.normal(0, 0.12))),
            shake=shake.astype(np.float32),
        )


def _times() -> FloatArray:
    return np.arange(1, NUM_MOTION_FRAMES + 1) / NUM_MOTION_FRAMES


def _course(draw: MotionDraw) -> FloatArray:
    """Distance travelled per frame (T, 1, 1): speed times an eased course of time."""
    u = _times()
    eased = (1 - draw.easing) * u + draw.easing * u * u * (3 - 2 * u)
    return (SPEEDS[draw.speed] * draw.gain * eased)[:, None, None]


def _phase(draw: MotionDraw) -> FloatArray:
    """Phase of the oscillations per frame (T, 1, 1): one cycle a clip at plain speed."""
    return (2 * np.pi * _CYCLES[draw.speed] * _times())[:, None, None]


def _onset() -> FloatArray:
    ramp = (_times() / 0.2).clip(0, 1)
    return (ramp * ramp * (3 - 2 * ramp))[:, None, None]


def _stack(dx: FloatArray, dy: FloatArray, layout: Layout) -> FloatArray:
    shape = (NUM_MOTION_FRAMES, *layout.mask.shape)
    parts = [np.broadcast_to(dx, shape), np.broadcast_to(dy, shape)]
    return np.stack(parts, 1).astype(np.float32)


def _pan(direction: str) -> Callable[[Layout, MotionDraw], FloatArray]:
    sign_x, sign_y = _DIRECTIONS[direction]

    def flow(layout: Layout, draw: MotionDraw) -> FloatArray:
        reach = 0.22 * _course(draw)
        return _stack(sign_x * layout.extent[0] * reach, sign_y * layout.extent[1] * reach, layout)

    return flow


def _scale_about(layout: Layout, centre: tuple[float, float], rate: FloatArray) -> FloatArray:
    grid_x, grid_y = node_coordinates(layout.mask.shape[0])
    factor = np.exp(rate) - 1
    return _stack((grid_x - centre[0]) * factor, (grid_y - centre[1]) * factor, layout)


def _zoom_in(layout: Layout, draw: MotionDraw) -> FloatArray:
    centre = tuple(0.6 * c + o for c, o in zip(layout.centre, draw.offset, strict=True))
    return _scale_about(layout, (centre[0], centre[1]), -0.32 * _course(draw))


def _zoom_out(layout: Layout, draw: MotionDraw) -> FloatArray:
    return _scale_about(layout, (0.0, 0.0), 0.24 * _course(draw))


def _dolly(rate: float) -> Callable[[Layout, MotionDraw], FloatArray]:
    def flow(layout: Layout, draw: MotionDraw) -> FloatArray:
        centre = (0.3 * layout.centre[0], 0.3 * layout.centre[1])
        return _scale_about(layout, centre, rate * _course(draw) * (0.3 + layout.depth))

    return flow


def _rotate(sign: float) -> Callable[[Layout, MotionDraw], FloatArray]:
    def flow(layout: Layout, draw: MotionDraw) -> FloatArray:
        grid_x, grid_y = node_coordinates(layout.mask.shape[0])
        angle = sign * 0.24 * _course(draw)
        cos, sin = np.cos(angle) - 1, np.sin(angle)
        return _stack(cos * grid_x - sin * grid_y, sin * grid_x + cos * grid_y, layout)

    return flow


def _sway(layout: Layout, draw: MotionDraw) -> FloatArray:
    lever = ((1 - layout.picture_xy[1]) / 2) ** 1.5
    return _stack(draw.gain * 0.12 * lever * np.sin(_phase(draw)), np.zeros(1), layout)


def _wave(layout: Layout, draw: MotionDraw) -> FloatArray:
    grid_x, grid_y = node_coordinates(layout.mask.shape[0])
    swing = draw.gain * _onset()
    dx = 0.07 * swing * np.sin(6 * grid_y + _phase(draw))
    return _stack(dx, 0.04 * swing * np.sin(6 * grid_x + _phase(draw)), layout)


def _ripple(layout: Layout, draw: MotionDraw) -> FloatArray:
    y = layout.picture_xy[1]
    surface = draw.gain * _onset() / (1 + np.exp(-12 * (y - 0.1)))
    wave = np.sin(9 * y - _phase(draw))
    return _stack(0.07 * surface * wave, 0.024 * surface * wave, layout)


def _breathe(layout: Layout, draw: MotionDraw) -> FloatArray:
    grid_x, grid_y = node_coordinates(layout.mask.shape[0])
    swell = -0.17 * draw.gain * np.sin(_phase(draw)) * layout.soft
    return _stack((grid_x - layout.centre[0]) * swell, (grid_y - layout.centre[1]) * swell, layout)


def _float(layout: Layout, draw: MotionDraw) -> FloatArray:
    lift = draw.gain * np.sin(_phase(draw)) * layout.soft
    return _stack(0.03 * lift, 0.14 * lift, layout)


def _shake(layout: Layout, draw: MotionDraw) -> FloatArray:
    swing, phase = draw.shake[..., 0], draw.shake[..., 1]
    strength = 0.5 + 0.5 * SPEEDS[draw.speed]
    cycles = np.array([1.5, 2.5, 3.5])
    angle = 2 * np.pi * cycles * _times()[:, None, None]
    axes = strength * (swing * (np.sin(angle + phase) - np.sin(phase))).sum(-1)
    return _stack(axes[:, 0, None, None], axes[:, 1, None, None], layout)


def _parallax(layout: Layout, draw: MotionDraw) -> FloatArray:
    shift = 0.26 * draw.gain * (layout.depth - 0.4) * np.sin(_phase(draw))
    return _stack(shift, np.zeros(1), layout)


def _object(direction: str) -> Callable[[Layout, MotionDraw], FloatArray]:
    """The object travels; where it came from, half the motion remains, like a rubber band."""
    sign_x, sign_y = _DIRECTIONS[direction]

    def flow(layout: Layout, draw: MotionDraw) -> FloatArray:
        reach = _OBJECT_REACH * _course(draw)[:, 0, 0]
        soft = soften(layout.mask, 1.8 * max(1.0, float(reach[-1]) / 0.2))
        nodes = reach * (layout.mask.shape[0] - 1) / 2
        moved = np.stack([_shifted(soft, sign_x * n, sign_y * n) for n in nodes])
        weight = -reach[:, None, None] * np.maximum(moved, 0.5 * soft)
        return _stack(sign_x * weight, sign_y * weight, layout)

    return flow


def _shifted(field_GG: FloatArray, dx_nodes: float, dy_nodes: float) -> FloatArray:
    matrix = np.array([[1, 0, dx_nodes], [0, 1, dy_nodes]], np.float32)
    size = (field_GG.shape[1], field_GG.shape[0])
    return np.asarray(cv2.warpAffine(field_GG, matrix, size, borderMode=cv2.BORDER_REPLICATE))


def _still(layout: Layout, draw: MotionDraw) -> FloatArray:
    return _stack(np.zeros(1), np.zeros(1), layout)


def _ambient(layout: Layout, draw: MotionDraw) -> FloatArray:
    course = _course(draw)
    drift = _scale_about(layout, (0.0, 0.0), -0.10 * course * (0.3 + layout.depth))
    dx, dy = (0.3 * o * course for o in draw.offset)
    return drift + _stack(dx, dy, layout)


FLOWS: dict[str, Callable[[Layout, MotionDraw], FloatArray]] = {
    **{f"pan {d}": _pan(d) for d in _DIRECTIONS},
    "zoom in": _zoom_in,
    "zoom out": _zoom_out,
    "rotate cw": _rotate(-1.0),
    "rotate ccw": _rotate(1.0),
    "dolly in": _dolly(-0.32),
    "dolly out": _dolly(0.24),
    "sway": _sway,
    "wave": _wave,
    "ripple": _ripple,
    "breathe": _breathe,
    "float": _float,
    "shake": _shake,
    "parallax": _parallax,
    **{f"object {d}": _object(d) for d in _DIRECTIONS},
    "still": _still,
    "ambient": _ambient,
}
CAMERA_KINDS = tuple(
    kind for kind in FLOWS if kind.split()[0] in {"pan", "zoom", "rotate", "dolly"}
)
OBJECT_KINDS = tuple(kind for kind in FLOWS if kind.startswith("object"))


def make_flow(kind: str, layout: Layout, draw: MotionDraw) -> FloatArray:
    """Flow (T, 2, G, G) of one kind of motion over one picture's layout."""
    return FLOWS[kind](layout, draw)
