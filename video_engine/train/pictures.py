"""The photographs motion-small learns from and is tested on, each with its author and licence.

Only CC0, public-domain and CC-BY pictures that the scikit-image and scikit-learn wheels carry.
No training crop comes from a test picture.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """One picture file of an installed package."""

    name: str
    package: str
    path: str
    author: str
    licence: str

    def read(self) -> Picture:
        """RGB pixels (H, W, 3)."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(
                f"picture {self.name} comes with {self.package}, which is not installed"
            )
        file = Path(spec.origin).parent / self.path
        pixels = cv2.imread(str(file), cv2.IMREAD_COLOR)
        if pixels is None:
            raise FileNotFoundError(f"{self.package} does not hold a picture at {file}")
        return np.ascontiguousarray(pixels[..., ::-1]).astype(np.uint8)


def _skimage(name: str, file: str, author: str, licence: str) -> Photo:
    return Photo(name=name, package="skimage", path=f"data/{file}", author=author, licence=licence)


def _sklearn(name: str, file: str, author: str) -> Photo:
    path = f"datasets/images/{file}"
    return Photo(name=name, package="sklearn", path=path, author=author, licence="CC-BY-2.0")


TRAINING_PHOTOS: tuple[Photo, ...] = (
    _skimage("hubble", "hubble_deep_field.jpg", "NASA, ESA (HubbleSite)", "public domain"),
    _skimage("retina", "retina.jpg", "Mikael Häggström", "CC0-1.0"),
    _skimage("brick", "brick.png", "CC0Textures (Bricks25)", "CC0-1.0"),
    _skimage("grass", "grass.png", "linolafett", "CC0-1.0"),
    _skimage("gravel", "gravel.png", "CC0Textures (Gravel04)", "CC0-1.0"),
    _skimage("cell", "cell.png", "Paul Müller and others", "CC0-1.0"),
    _skimage("clock", "clock_motion.png", "Stefan van der Walt", "public domain"),
    _skimage("horse", "horse.png", "Andreas Preuss (marauder)", "CC0-1.0"),
)

TEST_PHOTOS: tuple[Photo, ...] = (
    _skimage("astronaut", "astronaut.png", "NASA", "public domain"),
    _skimage("coffee", "coffee.png", "Rachel Michetti, Pikolo Espresso Bar", "CC0-1.0"),
    _skimage("cat", "chelsea.png", "Stefan van der Walt", "CC0-1.0"),
    _skimage("rocket", "rocket.jpg", "SpaceX", "public domain"),
    _sklearn("pagoda", "china.jpg", "danielbuechele"),
    _sklearn("flower", "flower.jpg", "vultilion"),
    _skimage("camera", "camera.png", "Lav Varshney", "CC0-1.0"),
    _skimage("coins", "coins.png", "Brooklyn Museum", "no known copyright restrictions"),
)
