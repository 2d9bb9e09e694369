"""Procedural pictures: landscapes, clouds, patterns and still lifes, from a generator alone."""

from collections.abc import Callable

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture

SIDE = 192


def _colour(rng: np.random.Generator) -> FloatArray:
    """One RGB colour in 0..1, hue uniform, saturation mostly moderate."""
    hsv = np.array([[[rng.uniform(0, 360), rng.beta(2, 2), rng.uniform(0.15, 1.0)]]], np.float32)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.float64)[0, 0]


def fractal_noise(rng: np.random.Generator, side: int = SIDE, decay: float = 0.55) -> FloatArray:
    """Sum of smooth noise octaves (side, side), scaled to 0..1."""
    total = np.zeros((side, side))
    for octave in range(1, 7):
        cells = 2**octave
        layer = rng.standard_normal((cells + 1, cells + 1))
        grown = np.asarray(cv2.resize(layer, (side, side), interpolation=cv2.INTER_CUBIC))
        total += decay**octave * grown
    return (total - total.min()) / max(float(np.ptp(total)), 1e-9)


def _mix(first: FloatArray, second: FloatArray, part: FloatArray) -> FloatArray:
    return first * (1 - part[..., None]) + second * part[..., None]


def _to_picture(image: FloatArray) -> Picture:
    return (image.clip(0, 1) * 255).round().astype(np.uint8)


def clouds(rng: np.random.Generator) -> Picture:
    """Two or three colours mixed by fractal noise."""
    image = _mix(_colour(rng), _colour(rng), fractal_noise(rng, decay=rng.uniform(0.4, 0.75)))
    return _to_picture(_mix(image, _colour(rng), fractal_noise(rng) ** 2))


def landscape(rng: np.random.Generator) -> Picture:
    """Sky gradient, a sun or moon, and two to four ridges that darken or brighten towards us."""
    y, x = np.mgrid[0 : 1 : SIDE * 1j, 0 : 1 : SIDE * 1j]
    image = _mix(_colour(rng), _colour(rng), y)
    sun = np.hypot(x - rng.uniform(0.1, 0.9), y - rng.uniform(0.1, 0.5)) < rng.uniform(0.04, 0.12)
    image = _mix(image, _colour(rng), sun.astype(float))
    for height in np.sort(rng.uniform(0.35, 0.9, rng.integers(2, 5))):
        steps = rng.standard_normal(rng.integers(4, 24))[None]
        ridge = np.asarray(cv2.resize(steps, (SIDE, 1), interpolation=cv2.INTER_CUBIC))[0]
        ground = (y > height + 0.06 * ridge[None]).astype(float)
        texture = fractal_noise(rng, decay=0.8)
        image = _mix(image, _mix(_colour(rng), _colour(rng), texture), ground)
    return _to_picture(image)


def pattern(rng: np.random.Generator) -> Picture:
    """Stripes, rings or a checkerboard of two colours under soft light."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    angle = rng.uniform(0, np.pi)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    pitch = rng.uniform(4, 25)
    waves = (
        np.sin(pitch * u),
        np.sin(pitch * np.hypot(u, v)),
        np.sin(pitch * u) * np.sin(pitch * v),
    )[rng.integers(3)]
    image = _mix(_colour(rng), _colour(rng), 1 / (1 + np.exp(-8 * waves)))
    return _to_picture(image * (0.6 + 0.4 * fractal_noise(rng, decay=0.3)[..., None]))


def still_life(rng: np.random.Generator) -> Picture:
    """One to four shaded ellipses or boxes before a soft ground."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    image = _mix(_colour(rng), _colour(rng), fractal_noise(rng, decay=rng.uniform(0.2, 0.6)))
    for _ in range(rng.integers(1, 5)):
        centre, radii = rng.uniform(-0.6, 0.6, 2), rng.uniform(0.12, 0.5, 2)
        u, v = (x - centre[0]) / radii[0], (y - centre[1]) / radii[1]
        power = rng.choice([2.0, 2.0, 8.0])
        inside = (np.abs(u) ** power + np.abs(v) ** power < 1).astype(float)
        shade = (0.65 + 0.25 * u - 0.25 * v).clip(0.2, 1.0)[..., None]
        image = _mix(image, _colour(rng) * shade + 0.1 * fractal_noise(rng)[..., None], inside)
    return _to_picture(image)


_PAINTERS: tuple[Callable[[np.random.Generator], Picture], ...] = (
    clouds,
    landscape,
    landscape,
    pattern,
    still_life,
    still_life,
)


def draw_picture(rng: np.random.Generator) -> Picture:
    """A random procedural picture (192, 192, 3)."""
    return _PAINTERS[rng.integers(len(_PAINTERS))](rng)
