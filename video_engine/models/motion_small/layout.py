"""What the network is told about a picture: thumbnail, coordinates, main object, rough depth.

The picture lies in the middle of a square canvas [-1, 1]^2 whose side is its longer side, so that
rotations stay rotations at any aspect. Grid nodes are corner-aligned: linspace(-1, 1, G).
"""

from dataclasses import dataclass

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.saliency import object_mask

_DILATION = np.ones((5, 5), np.uint8)
SOFT_SIGMA_NODES = 1.8
_DEPTH_SIGMA_NODES = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Conditioning of one picture on a G x G grid.

    Shapes: rgb (3, G, G) in -1..1; mask, soft, depth (G, G) in 0..1; picture_xy (2, G, G), the
    coordinates within the picture (-1..1, clamped outside it); extent = half width and half height
    of the picture on the canvas; centre = centroid of the mask.
    """

    rgb: FloatArray
    mask: FloatArray
    soft: FloatArray
    depth: FloatArray
    picture_xy: FloatArray
    extent: tuple[float, float]
    centre: tuple[float, float]

    def condition(self) -> FloatArray:
        """The network's condition channels (7, G, G): rgb, coordinates, soft mask, depth."""
        maps = np.stack([self.soft * 2 - 1, self.depth * 2 - 1])
        return np.concatenate([self.rgb, self.picture_xy, maps]).astype(np.float32)


def node_coordinates(size: int) -> tuple[FloatArray, FloatArray]:
    """x and y of every node of the canvas, each (G, G)."""
    line = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    grid_x, grid_y = np.meshgrid(line, line)
    return grid_x, grid_y


def blur_nodes(field: FloatArray, sigma_nodes: float) -> FloatArray:
    """Gaussian blur of a map with replicated rim."""
    blurred = cv2.GaussianBlur(field, (0, 0), sigma_nodes, borderType=cv2.BORDER_REPLICATE)
    return np.asarray(blurred, np.float32)


def soften(mask: FloatArray, sigma_nodes: float = SOFT_SIGMA_NODES) -> FloatArray:
    """The mask, grown by two nodes and blurred: the region that follows an object's motion."""
    return blur_nodes(np.asarray(cv2.dilate(mask, _DILATION), np.float32), sigma_nodes)


def build_layout(rgb: FloatArray, mask: FloatArray, extent: tuple[float, float]) -> Layout:
    """Derives soft mask, depth and centre from a thumbnail (3, G, G) and its object mask (G, G)."""
    grid_x, grid_y = node_coordinates(mask.shape[0])
    xy = np.stack([grid_x / extent[0], grid_y / extent[1]]).clip(-1, 1)
    total = float(mask.sum())
    centre = (0.0, 0.0)
    if total > 0:
        centre = (float((grid_x * mask).sum()) / total, float((grid_y * mask).sum()) / total)
    depth = 0.25 + 0.35 * xy[1] + 0.5 * blur_nodes(mask, _DEPTH_SIGMA_NODES)
    return Layout(
        rgb=rgb.astype(np.float32),
        mask=mask.astype(np.float32),
        soft=soften(mask),
        depth=depth.clip(0, 1).astype(np.float32),
        picture_xy=xy.astype(np.float32),
        extent=extent,
        centre=centre,
    )


def picture_layout(picture_HW3: Picture, grid: int) -> Layout:
    """Layout of an RGB picture of any size; rows or columns outside it mirror its thumbnail."""
    height, width = picture_HW3.shape[:2]
    extent = (width / max(width, height), height / max(width, height))
    cols, rows = (max(4, round(grid * part)) for part in extent)
    small = np.asarray(cv2.resize(picture_HW3, (cols, rows), interpolation=cv2.INTER_AREA))
    mask = object_mask(picture_HW3, (cols, rows))
    left, top = (grid - cols) // 2, (grid - rows) // 2
    margins = (top, grid - rows - top, left, grid - cols - left)
    small = cv2.copyMakeBorder(small, *margins, cv2.BORDER_REFLECT)
    mask = cv2.copyMakeBorder(mask, *margins, cv2.BORDER_REPLICATE)
    rgb = np.asarray(small, np.float32).transpose(2, 0, 1) / 127.5 - 1.0
    return build_layout(rgb, np.asarray(mask, np.float32), extent)
