"""Motion fields between latent and frames: time course, smoothing, rigid part, freedom of folds.

Legend: F frames, T motion frames, G grid. Flows are (F, 2, G, G) in canvas units.
"""

from dataclasses import dataclass

import numpy as np

from video_engine.models.motion_small.arrays import FloatArray
from video_engine.models.motion_small.layout import node_coordinates
from video_engine.models.motion_small.resampling import cubic_matrix, smoothing_matrix

MIN_JACOBIAN = 0.1
_CHECKED_POINTS_PER_CELL = 4
_MAX_SMOOTHINGS = 16
_SHRINK = 0.85
_WOBBLE_RATIOS = (0.1, 0.22)


def frames_from_motion(flow_T2GG: FloatArray, num_frames: int) -> FloatArray:
    """Flows at evenly spaced moments, the zero flow of frame 0 included.

    Shapes: (T, 2, G, G) to (F, 2, G, G); frame 0 is exactly zero, frame F-1 is motion frame T.
    """
    motion_frames = flow_T2GG.shape[0]
    knots = np.concatenate([np.zeros_like(flow_T2GG[:1]), flow_T2GG])
    positions = np.linspace(0, motion_frames, num_frames)
    weights = cubic_matrix(positions, motion_frames + 1)
    return np.einsum("ft,tcyx->fcyx", weights, knots).astype(np.float32)


def smooth(flow_F2GG: FloatArray, sigma_nodes: float) -> FloatArray:
    """Gaussian smoothing over the grid; affine flows stay as they are."""
    matrix = smoothing_matrix(flow_F2GG.shape[-1], sigma_nodes)
    return np.asarray(matrix @ flow_F2GG @ matrix.T, np.float32)


def _basis(size: int) -> FloatArray:
    grid_x, grid_y = node_coordinates(size)
    return np.stack([np.ones_like(grid_x), grid_x, grid_y], -1).reshape(-1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineFit:
    """Least-squares fit f(p) = A p + b per frame: matrix A (F, 2, 2), shift b (F, 2)."""

    matrix: FloatArray
    shift: FloatArray

    def flow(self, size: int) -> FloatArray:
        """The fit as a flow (F, 2, G, G)."""
        coefficients = np.concatenate([self.shift[..., None], self.matrix], -1)
        values = np.einsum("fck,nk->fcn", coefficients, _basis(size))
        return values.reshape(*self.shift.shape, size, size).astype(np.float32)


def fit_affine(flow_F2GG: FloatArray, weight_GG: FloatArray | None = None) -> AffineFit:
    """Best affine fit of each frame over the nodes, weighted by ``weight_GG`` if given."""
    num_frames, _, size, _ = flow_F2GG.shape
    basis = _basis(size)
    weight = np.ones(len(basis)) if weight_GG is None else weight_GG.reshape(-1) + 1e-6
    weighted = basis * weight[:, None]
    projector = np.linalg.solve(weighted.T @ basis, weighted.T)
    coefficients = np.einsum("kn,fcn->fck", projector, flow_F2GG.reshape(num_frames, 2, -1))
    return AffineFit(
        matrix=coefficients[..., 1:].astype(np.float32),
        shift=coefficients[..., 0].astype(np.float32),
    )


def make_rigid(flow_F2GG: FloatArray) -> FloatArray:
    """Drops what an affine fit leaves over where that is under 10 % of the motion (rms).

    Camera moves are affine; what a network adds to them is wobble. Above 22 % all of it stays, in
    between a part.
    """
    fitted = fit_affine(flow_F2GG).flow(flow_F2GG.shape[-1])
    rest = flow_F2GG - fitted
    motion = max(float(np.square(flow_F2GG).sum()), 1e-12)
    ratio = (float(np.square(rest).sum()) / motion) ** 0.5
    low, high = _WOBBLE_RATIOS
    return fitted + rest * np.float32(min(max((ratio - low) / (high - low), 0.0), 1.0))


def jacobians(flow_F2GG: FloatArray) -> FloatArray:
    """Determinant of p + f(p) per cell, (F, G-1, G-1), by differences over cells."""
    step = 2.0 / (flow_F2GG.shape[-1] - 1)
    along_x = np.diff(flow_F2GG, axis=3) / step
    along_y = np.diff(flow_F2GG, axis=2) / step
    du = (along_x[:, :, 1:] + along_x[:, :, :-1]) / 2
    dv = (along_y[..., 1:] + along_y[..., :-1]) / 2
    return (1 + du[:, 0]) * (1 + dv[:, 1]) - du[:, 1] * dv[:, 0]


def smallest_jacobian(flow_F2GG: FloatArray, points_per_cell: int) -> float:
    """Smallest determinant of the upsampled map p + f(p), at so many points per grid cell."""
    size = flow_F2GG.shape[-1]
    positions = np.linspace(0, size - 1, (size - 1) * points_per_cell + 1)
    matrix = cubic_matrix(positions, size)
    return float(jacobians(matrix @ flow_F2GG @ matrix.T).min())


def unfold(flow_F2GG: FloatArray) -> FloatArray:
    """Smooths, and at last shrinks, a clip until nothing is folded: all Jacobians >= 0.1."""
    for _ in range(_MAX_SMOOTHINGS):
        if smallest_jacobian(flow_F2GG, _CHECKED_POINTS_PER_CELL) >= MIN_JACOBIAN:
            return flow_F2GG
        flow_F2GG = smooth(flow_F2GG, 1.0)
    while smallest_jacobian(flow_F2GG, _CHECKED_POINTS_PER_CELL) < MIN_JACOBIAN:
        flow_F2GG = flow_F2GG * np.float32(_SHRINK)
    return flow_F2GG
