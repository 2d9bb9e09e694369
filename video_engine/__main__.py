"""`python -m video_engine PICTURE --prompt "slow zoom in" -o out.mp4`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from PIL import Image, UnidentifiedImageError

from video_engine.config import DType, EngineConfig
from video_engine.engine import VideoEngine
from video_engine.errors import InvalidVideoRequest, VideoError
from video_engine.picture import default_size
from video_engine.recipe import request_from_recipe
from video_engine.stages.write import read_recipe, write_clip, write_mp4
from video_engine.types import Fit, Progress, VideoRequest, VideoResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from video_engine.types import VideoLimits


_UNREADABLE = (UnidentifiedImageError, FileNotFoundError, Image.DecompressionBombError)


def main(arguments: list[str] | None = None) -> int:
    """Render one clip; the exit code is 0, 2 for a bad request, 1 for anything else."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        config = EngineConfig(
            model=options.model,
            device=options.device,
            dtype=options.dtype,
            num_threads=options.threads,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        image = Image.open(options.image)
        engine = VideoEngine.load(config)
        request = _request(options, image, engine.limits)
        result = _watched(engine.generate(request))
        for path in _written(result, options.output):
            print(path)
    except (InvalidVideoRequest, *_UNREADABLE) as error:
        print(f"video_engine: {error}", file=sys.stderr)
        return 2
    except VideoError as error:
        print(f"video_engine: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m video_engine", description=__doc__)
    parser.add_argument("image", type=Path, help="the picture to set in motion")
    parser.add_argument("--prompt", default="", help='what happens, e.g. "slow zoom in"')
    parser.add_argument("--negative-prompt", default="")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("out.mp4"), help="an .mp4 file, or a folder"
    )
    parser.add_argument(
        "--recipe", type=Path, help="render again from a recipe.json or an MP4 of this engine"
    )
    parser.add_argument(
        "--model", default="motion-small", help="built-in name, diffusers folder or hub id"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=get_args(DType))
    parser.add_argument("--threads", type=int, help="CPU threads for torch")
    parser.add_argument("--width", type=int, help="default: the picture's own proportions")
    parser.add_argument("--height", type=int)
    parser.add_argument("--fit", default="crop", choices=get_args(Fit))
    parser.add_argument("--seconds", type=float, help="rounded to the nearest legal frame count")
    parser.add_argument("--fps", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guidance-scale", type=float)
    return parser


def _request(options: argparse.Namespace, image: Image.Image, limits: VideoLimits) -> VideoRequest:
    if options.recipe is not None:
        return request_from_recipe(read_recipe(options.recipe), image)
    width, height = default_size(image.size, limits)
    fps = limits.default_fps if options.fps is None else options.fps
    seconds = limits.default_seconds if options.seconds is None else options.seconds
    return VideoRequest(
        image=image,
        prompt=options.prompt,
        negative_prompt=options.negative_prompt,
        width=width if options.width is None else options.width,
        height=height if options.height is None else options.height,
        num_frames=limits.nearest_frames(seconds, fps),
        fps=fps,
        steps=limits.default_steps if options.steps is None else options.steps,
        seed=options.seed,
        fit=options.fit,
        guidance_scale=options.guidance_scale,
    )


def _watched(events: Iterator[Progress | VideoResult]) -> VideoResult:
    for event in events:
        if isinstance(event, VideoResult):
            print(file=sys.stderr)
            return event
        line = f"\r{event.percent:5.1f} %  {event.stage} {event.step}/{event.steps}"
        print(f"{line:<40}", end="", file=sys.stderr, flush=True)
    raise AssertionError("a render ends with its result")


def _written(result: VideoResult, output: Path) -> list[Path]:
    if output.suffix.lower() != ".mp4":
        return write_clip(result, output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(result, output)
    return [output]


if __name__ == "__main__":
    raise SystemExit(main())
