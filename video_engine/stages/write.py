"""Stage 5: the files of a clip, complete or not there at all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from video_engine.errors import InvalidVideoRequest, WriteFailed
from video_engine.output import mp4, stills
from video_engine.recipe import rational_fps
from video_engine.stop import StopCheck, never, stop_if

if TYPE_CHECKING:
    from video_engine.types import VideoResult


def write_clip(
    result: VideoResult,
    folder: Path,
    *,
    stem: str = "motion",
    save_frames: bool = False,
    should_stop: StopCheck = never,
) -> list[Path]:
    """Write STEM.mp4, contact_sheet.png, thumbnail.webp, recipe.json, and frames.zip if asked.

    Everything is made in a scratch folder beside the target and renamed when all of it is there;
    an existing file of the same name is replaced.

    Raises: InvalidVideoRequest if `stem` is no plain file name; WriteFailed, Interrupted. All of
    them leave nothing behind.
    """
    if stem.startswith(".") or Path(stem).name != stem or not stem:
        raise InvalidVideoRequest(
            f"stem {stem!r} is not a plain file name: leave folders out of it", param="stem"
        )
    folder.mkdir(parents=True, exist_ok=True)
    fps, recipe = rational_fps(result.fps), recipe_of(result)
    with tempfile.TemporaryDirectory(prefix=".write-", dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        paths = [scratch / f"{stem}.mp4"]
        write_mp4(result, paths[0], should_stop=should_stop)
        paths += [scratch / "contact_sheet.png", scratch / "thumbnail.webp"]
        stills.write_contact_sheet(result.clip, fps, paths[1])
        stills.write_thumbnail(result.clip, paths[2])
        paths.append(scratch / "recipe.json")
        text = json.dumps(recipe, indent=2, ensure_ascii=False, allow_nan=False)
        paths[-1].write_text(text + "\n", encoding="utf-8")
        if save_frames:
            paths.append(scratch / "frames.zip")
            stills.write_frames_zip(result.clip, stem, paths[-1], should_stop=should_stop)
        stop_if(should_stop, "before the files were put in place")
        return [path.replace(folder / path.name) for path in paths]


def write_mp4(result: VideoResult, path: Path, *, should_stop: StopCheck = never) -> None:
    """Write only the MP4, with the recipe in its comment tag, and read the tag back.

    Raises: WriteFailed, Interrupted; both leave no file.
    """
    comment = json.dumps(recipe_of(result), allow_nan=False)
    with tempfile.TemporaryDirectory(prefix=".write-", dir=path.parent) as scratch:
        target = Path(scratch) / "clip.mp4"
        fps = rational_fps(result.fps)
        mp4.encode_mp4(result.clip, fps, comment, target, should_stop=should_stop)
        if mp4.read_comment(target) != comment:
            raise WriteFailed(f"{path.name}: the recipe in the comment tag came back changed")
        target.replace(path)


def recipe_of(result: VideoResult) -> dict[str, Any]:
    """The recipe as it is written: the render's, and how the file was encoded."""
    output: dict[str, Any] = {
        "video": "h264",
        "crf": mp4.CRF,
        "pixel_format": "yuv420p",
        "colour": "bt709, studio range",
    }
    if result.clip.audio is not None:
        output |= {"audio": "aac", "audio_rate_hz": mp4.AUDIO_RATE_HZ}
    return {**result.recipe, "output": output}


def read_recipe(path: Path) -> Mapping[str, Any]:
    """The recipe in a recipe.json or in the comment tag of an MP4.

    Raises: InvalidVideoRequest if there is none.
    """
    try:
        text = path.read_text("utf-8") if path.suffix == ".json" else mp4.read_comment(path)
        recipe = json.loads(text or "null")
    except (OSError, ValueError, WriteFailed) as error:
        raise InvalidVideoRequest(f"{path} holds no recipe: {error}", param="recipe") from error
    if not isinstance(recipe, dict):
        raise InvalidVideoRequest(
            f"{path} holds no recipe: give a recipe.json or an MP4 of this engine", param="recipe"
        )
    return recipe
