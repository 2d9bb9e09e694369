"""H.264 in MP4 through the ffmpeg binary: exact size, exact rate, right colours, sound, comment."""

# F frames, H height, W width

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from video_engine.errors import WriteFailed
from video_engine.stop import StopCheck, never, stop_if

if TYPE_CHECKING:
    from video_engine.types import Audio, Clip

CRF = 16
AUDIO_RATE_HZ = 48_000
AUDIO_BITRATE = "192k"
# RGB is full range; players expect BT.709 studio range and read the tags to know it.
_FILTERS = (
    "scale=out_color_matrix=bt709:out_range=tv:flags=bicubic+accurate_rnd+full_chroma_int,"
    "format=yuv420p,"
    "setparams=color_primaries=bt709:color_trc=bt709:colorspace=bt709:range=tv"
)


def encode_mp4(
    clip: Clip, fps: Fraction, comment: str, path: Path, *, should_stop: StopCheck = never
) -> None:
    """Encode a clip; `comment` goes into the container's comment tag. Sides must be even.

    Numerics: x264 at a fixed quality (CRF 16), 8-bit 4:2:0, BT.709, studio range; the same clip
    gives the same bytes. Sound is AAC at 48 kHz, cut or padded to the length of the pictures.

    Raises: WriteFailed with ffmpeg's last lines; Interrupted. Either way no file is left.
    """
    num_frames, height, width, _ = clip.frames.shape
    if height % 2 or width % 2:
        raise WriteFailed(f"{width}x{height}: 4:2:0 video needs even sides")
    with tempfile.TemporaryDirectory(prefix=".encode-", dir=path.parent) as scratch:
        target = Path(scratch) / "clip.mp4"
        command = [*_video_input(width, height, fps)]
        if clip.audio is not None:
            sound = Path(scratch) / "sound.f32"
            sound.write_bytes(_interleaved(clip.audio))
            command += [*_audio_input(clip.audio, sound), "-af", _length_filter(num_frames / fps)]
        command += ["-vf", _FILTERS, *_output(comment, has_audio=clip.audio is not None)]
        _run_ffmpeg([*command, f"file:{target}"], clip.frames, should_stop)
        target.replace(path)


def read_comment(path: Path) -> str | None:
    """The comment tag of an MP4, None if it has none.

    Raises: WriteFailed if ffmpeg cannot read the file.
    """
    # Only as MP4, and only this file: a playlist under this name must not open others.
    source = ["-protocol_whitelist", "file", "-f", "mov", "-i", f"file:{path}"]
    command = [ffmpeg_exe(), "-v", "error", *source, "-f", "ffmetadata", "-"]
    found = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if found.returncode:
        raise WriteFailed(f"{path} cannot be read: {found.stderr.strip()[-500:]}")
    line = re.search(r"^comment=(.*)$", found.stdout, re.MULTILINE)
    return re.sub(r"\\(.)", r"\1", line[1]) if line else None


def ffmpeg_exe() -> str:
    """The ffmpeg binary that imageio-ffmpeg carries."""
    import imageio_ffmpeg  # pyright: ignore[reportMissingTypeStubs]

    return imageio_ffmpeg.get_ffmpeg_exe()


def _video_input(width: int, height: int, fps: Fraction) -> list[str]:
    rate = f"{fps.numerator}/{fps.denominator}"
    return [
        ffmpeg_exe(), "-y", "-v", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-framerate", rate,
        "-i", "-",
    ]  # fmt: skip


def _audio_input(audio: Audio, path: Path) -> list[str]:
    channels = str(audio.samples.shape[0])
    return ["-f", "f32le", "-ar", str(audio.rate_hz), "-ac", channels, "-i", f"file:{path}"]


def _output(comment: str, *, has_audio: bool) -> list[str]:
    sound = ["-c:a", "aac", "-b:a", AUDIO_BITRATE, "-ar", str(AUDIO_RATE_HZ)]
    return [
        "-map", "0:v", "-c:v", "libx264", "-preset", "medium", "-crf", str(CRF),
        "-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709",
        "-color_range", "tv",
        *(["-map", "1:a", *sound] if has_audio else ["-an"]),
        "-map_metadata", "-1", "-metadata", f"comment={comment}",
        "-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact",
        "-movflags", "+faststart", "-f", "mp4",
    ]  # fmt: skip


def _length_filter(seconds: Fraction) -> str:
    length = f"{float(seconds):.9f}"
    return f"aresample={AUDIO_RATE_HZ},apad=whole_dur={length},atrim=end={length}"


def _interleaved(audio: Audio) -> bytes:
    samples = np.nan_to_num(audio.samples).clip(-1.0, 1.0)
    return np.ascontiguousarray(samples.T, dtype="<f4").tobytes()


def _run_ffmpeg(command: list[str], frames_FHWC: np.ndarray, should_stop: StopCheck) -> None:
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages
        )
        assert process.stdin is not None
        try:
            _feed(process.stdin, frames_FHWC, should_stop)
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()
        if process.returncode:
            messages.seek(0)
            words = messages.read().decode(errors="replace").strip()[-800:]
            raise WriteFailed(f"ffmpeg ended with code {process.returncode}: {words}")


def _feed(pipe: IO[bytes], frames_FHWC: np.ndarray, should_stop: StopCheck) -> None:
    try:
        for index, frame_HWC in enumerate(frames_FHWC):
            stop_if(should_stop, f"while encoding frame {index} of {len(frames_FHWC)}")
            pipe.write(np.ascontiguousarray(frame_HWC).data)
        pipe.close()
    except BrokenPipeError:
        return  # ffmpeg has ended early: its exit code and its words are read by the caller
