"""Interpolation as small matrices, exact for affine data: out = W @ in along one axis.

Beyond both ends the data continue as a straight line (odd extension), so an affine flow passes
through smoothing and upsampling unchanged up to its very rim.

Legend: N output positions, K knots.
"""

import numpy as np

from video_engine.models.motion_small.arrays import FloatArray


def _fold_ghosts(padded_NP: FloatArray, reach: int) -> FloatArray:
    """Expresses ghost knots by inner ones: p(-i) = 2 p(0) - p(i), and alike at the other end."""
    inner = padded_NP[:, reach:-reach].copy()
    last = inner.shape[1] - 1
    for i in range(1, reach + 1):
        near, far = padded_NP[:, reach - i], padded_NP[:, reach + last + i]
        inner[:, 0] += 2 * near
        inner[:, min(i, last)] -= near
        inner[:, last] += 2 * far
        inner[:, max(last - i, 0)] -= far
    return inner.astype(np.float32)


def cubic_matrix(positions_N: FloatArray, num_knots: int) -> FloatArray:
    """Catmull-Rom weights (N, K) for positions in knot units, 0..K-1.

    Source: Keys 1981, cubic convolution with a = -1/2: exact for quadratics inside, affine at ends.
    """
    positions = np.asarray(positions_N, np.float64).clip(0, num_knots - 1)
    cell = np.minimum(np.floor(positions), num_knots - 2).astype(int)
    s = positions - cell
    weights = np.stack(
        [
            ((2 - s) * s - 1) * s / 2,
            ((3 * s - 5) * s * s + 2) / 2,
            ((4 - 3 * s) * s + 1) * s / 2,
            (s - 1) * s * s / 2,
        ]
    )
    padded = np.zeros((len(positions), num_knots + 2))
    rows = np.arange(len(positions))
    for tap in range(4):
        padded[rows, cell + tap] = weights[tap]
    return _fold_ghosts(padded, 1)


def smoothing_matrix(num_knots: int, sigma_knots: float) -> FloatArray:
    """Gaussian smoothing (K, K) that leaves affine data as they are."""
    reach = max(1, int(np.ceil(3 * sigma_knots)))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma_knots) ** 2)
    padded = np.zeros((num_knots, num_knots + 2 * reach))
    for row in range(num_knots):
        padded[row, row : row + 2 * reach + 1] = kernel / kernel.sum()
    return _fold_ghosts(padded, reach)
