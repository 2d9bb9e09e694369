"""From a stored job to the engine's request: fetch the picture, count the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from video_engine.errors import InvalidVideoRequest
from video_engine.types import VideoLimits, VideoRequest

if TYPE_CHECKING:
    from workers.protocol import VideoJobRequest
    from workers.store.files import FileStore


def video_request(job: VideoJobRequest, files: FileStore, limits: VideoLimits) -> VideoRequest:
    """The engine's form of a job.

    Raises: FileNotFound when the picture is gone, InvalidVideoRequest when it cannot be read.
    """
    return VideoRequest(
        image=_picture(job.image, files),
        prompt=job.prompt,
        width=job.width,
        height=job.height,
        num_frames=limits.nearest_frames(job.seconds, job.fps),
        fps=job.fps,
        steps=job.steps,
        seed=job.seed,
        fit=job.fit,
        negative_prompt=job.negative_prompt,
        guidance_scale=job.guidance_scale,
    )


def _picture(file_id: str, files: FileStore) -> Image.Image:
    with files.open(file_id) as stream:
        try:
            image = Image.open(stream)
            image.load()
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise InvalidVideoRequest(
                f"the picture {file_id} cannot be read: {error}", param="image"
            ) from error
    return image
