"""The files: exact size and rate, right colours, recipe inside, all or nothing."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import zipfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from video_engine.errors import Interrupted, InvalidVideoRequest, WriteFailed
from video_engine.output import mp4
from video_engine.output.stills import spaced_indices, timecode
from video_engine.recipe import rational_fps
from video_engine.stages.write import read_recipe, recipe_of, write_clip, write_mp4
from video_engine.types import Audio, Clip, VideoResult

NAMES = ["motion.mp4", "contact_sheet.png", "thumbnail.webp", "recipe.json"]
AWKWARD = 'a = "b"; #c \\n \\\\ \n\r\t 報告 🚀 é %s {x} comment=y'


def make_result(
    width: int = 64, height: int = 48, frames: int = 5, fps: float = 24.0, **fields: Any
) -> VideoResult:
    """A grey slope that moves, so that frames differ and compress."""
    slope = np.add.outer(np.arange(frames) * 8, np.arange(width) * 2) % 256
    pixels = np.broadcast_to(slope[:, None, :, None], (frames, height, width, 3))
    recipe = {"schema": "test", "request": {"prompt": AWKWARD, "fps": fps}}
    clip = Clip(frames=pixels.astype(np.uint8), audio=fields.pop("audio", None))
    return VideoResult(clip=clip, fps=fps, recipe=recipe, **fields)


def tone(seconds: float, rate_hz: int) -> Audio:
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate_hz)) / rate_hz)
    return Audio(samples=np.stack([wave, 0.5 * wave]).astype(np.float32), rate_hz=rate_hz)


def described(path: Path) -> str:
    """What ffmpeg says about a file."""
    command = [mp4.ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def decoded(path: Path, pixel_format: str, *options: str) -> bytes:
    command = [mp4.ffmpeg_exe(), "-v", "error", "-i", str(path), *options]
    command += ["-f", "rawvideo", "-pix_fmt", pixel_format, "-"]
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.parametrize(("width", "height"), [(250, 250), (2, 2), (322, 178), (64, 36)])
def test_size_and_frame_count_are_the_ones_asked_for(
    tmp_path: Path, width: int, height: int
) -> None:
    path = tmp_path / "clip.mp4"
    write_mp4(make_result(width, height, frames=7), path)
    assert re.search(rf"Video: h264 .*yuv420p\(tv, bt709, progressive\), {width}x{height}[, ]",
                     described(path))  # fmt: skip
    assert len(decoded(path, "rgb24", "-fps_mode", "passthrough")) == 7 * width * height * 3


@pytest.mark.parametrize(
    ("fps", "fraction", "shown"),
    [
        (24.0, Fraction(24), "24 fps"),
        (23.976, Fraction(24000, 1001), "23.98 fps"),
        (29.97, Fraction(30000, 1001), "29.97 fps"),
        (59.94, Fraction(60000, 1001), "59.94 fps"),
        (12.5, Fraction(25, 2), "12.50 fps"),
        (16.0, Fraction(16), "16 fps"),
    ],
)
def test_rate_is_exact(tmp_path: Path, fps: float, fraction: Fraction, shown: str) -> None:
    assert rational_fps(fps) == fraction
    path = tmp_path / "clip.mp4"
    write_mp4(make_result(frames=12, fps=fps), path)
    assert shown in described(path)
    times = stream_times(path)
    assert times == [(Fraction(index) / fraction) for index in range(12)]


def stream_times(path: Path) -> list[Fraction]:
    """Presentation times of the frames, exact, from ffmpeg's own packet list."""
    command = [mp4.ffmpeg_exe(), "-v", "error", "-i", str(path), "-map", "0:v", "-c", "copy"]
    lines = subprocess.run(
        [*command, "-f", "framecrc", "-"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    base = next(line.split()[-1] for line in lines if line.startswith("#tb 0:"))
    return sorted(
        int(line.split(",")[2]) * Fraction(base) for line in lines if not line.startswith("#")
    )


@pytest.mark.parametrize(
    "colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0,) * 3]
)
def test_colours_follow_bt709_in_studio_range(tmp_path: Path, colour: tuple[int, ...]) -> None:
    frames = np.full((3, 32, 32, 3), colour, np.uint8)
    path = tmp_path / "clip.mp4"
    write_mp4(VideoResult(clip=Clip(frames=frames), fps=24.0, recipe={}), path)
    red, green, blue = (channel / 255 for channel in colour)
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    expected = (
        16 + 219 * luma,
        128 + 224 * (blue - luma) / 1.8556,
        128 + 224 * (red - luma) / 1.5748,
    )
    raw = np.frombuffer(decoded(path, "yuv420p", "-frames:v", "1"), np.uint8)
    found = (raw[:1024].mean(), raw[1024:1280].mean(), raw[1280:].mean())
    assert found == pytest.approx(expected, abs=1.6)


def test_picture_survives_encoding(tmp_path: Path) -> None:
    result = make_result(128, 96, frames=5)
    path = tmp_path / "clip.mp4"
    write_mp4(result, path)
    shown = np.frombuffer(decoded(path, "rgb24"), np.uint8).reshape(result.clip.frames.shape)
    error = shown.astype(np.float64) - result.clip.frames
    assert 10 * np.log10(255**2 / (error**2).mean()) > 34


def test_index_comes_before_the_data(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write_mp4(make_result(), path)
    content, kinds, place = path.read_bytes(), [], 0
    while place < len(content):
        kinds.append(content[place + 4 : place + 8].decode())
        place += int.from_bytes(content[place : place + 4], "big")
    assert kinds.index("moov") < kinds.index("mdat")


def test_same_clip_same_bytes(tmp_path: Path) -> None:
    result = make_result(audio=tone(0.3, 32_000))
    for name in ("a", "b"):
        write_clip(result, tmp_path / name, save_frames=True)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_recipe_is_in_both_files(tmp_path: Path) -> None:
    result = make_result()
    write_clip(result, tmp_path)
    for name in ("motion.mp4", "recipe.json"):
        assert read_recipe(tmp_path / name) == recipe_of(result)
    recipe = recipe_of(result)
    assert recipe["request"]["prompt"] == AWKWARD
    assert recipe["output"]["pixel_format"] == "yuv420p"


def test_recipe_of_a_large_model_fits(tmp_path: Path) -> None:
    weights = {f"transformer/part-{n:05d}.safetensors": "sha256:" + "0" * 64 for n in range(500)}
    result = replace(make_result(), recipe={"weights": weights})
    write_mp4(result, tmp_path / "clip.mp4")
    assert read_recipe(tmp_path / "clip.mp4")["weights"] == weights


@pytest.mark.parametrize(
    "content", [b"", b"not a film", b"\x00" * 100, b"#EXTM3U\n#EXTINF:1,\na.mp4"]
)
@pytest.mark.parametrize("suffix", [".json", ".mp4"])
def test_files_without_a_recipe_are_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(InvalidVideoRequest, match="holds no recipe"):
        read_recipe(path)
    with pytest.raises(InvalidVideoRequest, match="holds no recipe"):
        read_recipe(tmp_path / f"absent{suffix}")


@pytest.mark.parametrize(("rate_hz", "seconds"), [(160, 0.925), (32_000, 2.0), (48_000, 0.1)])
def test_sound_is_as_long_as_the_pictures(tmp_path: Path, rate_hz: int, seconds: float) -> None:
    path = tmp_path / "clip.mp4"
    write_mp4(make_result(frames=22, audio=tone(seconds, rate_hz)), path)
    words = described(path)
    assert re.search(r"Audio: aac .*48000 Hz, stereo", words)
    assert re.search(r"Duration: 00:00:00\.9[12]", words)
    command = [mp4.ffmpeg_exe(), "-v", "error", "-i", str(path), "-map", "0:a"]
    raw = subprocess.run([*command, "-f", "f32le", "-"], capture_output=True, check=True).stdout
    samples = np.frombuffer(raw, "<f4").reshape(-1, 2)
    assert len(samples) / 48_000 == pytest.approx(22 / 24, abs=0.025)  # one AAC frame is 21 ms
    if rate_hz == 32_000:  # the left channel is twice the right one, and neither is silent
        left, right = samples[2000:40_000].std(axis=0)
        assert left == pytest.approx(0.354, abs=0.01)
        assert left / right == pytest.approx(2.0, abs=0.03)


def test_sound_with_bad_samples_is_made_harmless(tmp_path: Path) -> None:
    audio = tone(0.2, 32_000)
    audio.samples[:, 100] = np.nan
    audio.samples[:, 200] = 1e9
    write_mp4(make_result(audio=audio), tmp_path / "clip.mp4")
    assert "Audio: aac" in described(tmp_path / "clip.mp4")


def test_all_files(tmp_path: Path) -> None:
    result = make_result(640, 360, frames=30)
    paths = write_clip(result, tmp_path / "new" / "folder", stem="shot_010", save_frames=True)
    names = ["shot_010.mp4", *NAMES[1:], "frames.zip"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(names)
    thumbnail = Image.open(paths[2])
    assert (thumbnail.format, thumbnail.size) == ("WEBP", (512, 288))
    sheet = Image.open(paths[1])
    assert sheet.format == "PNG"
    assert sheet.size == (4 * 328 + 8, 3 * (180 + 20 + 8) + 8)
    with zipfile.ZipFile(paths[4]) as archive:
        assert archive.namelist()[0] == "frames/shot_010.1001.png"
        assert len(archive.namelist()) == 30
        last = Image.open(io.BytesIO(archive.read("frames/shot_010.1030.png")))
        np.testing.assert_array_equal(np.asarray(last), result.clip.frames[-1])
    assert json.loads(paths[3].read_text("utf-8"))["schema"] == "test"


@pytest.mark.parametrize("stem", ["", "../up", "a/b", "..", "/x"])
def test_stem_that_is_a_path_is_refused(tmp_path: Path, stem: str) -> None:
    with pytest.raises(InvalidVideoRequest, match="plain file name"):
        write_clip(make_result(), tmp_path, stem=stem)
    assert list(tmp_path.iterdir()) == []


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_clip(make_result(64, 48), tmp_path)
    write_clip(make_result(32, 32), tmp_path)
    assert "32x32" in described(tmp_path / "motion.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_stopped_at_every_border_leaves_nothing(tmp_path: Path) -> None:
    result, border = make_result(frames=3), 0
    for border in itertools.count():
        polls = itertools.count()
        folder = tmp_path / str(border)
        try:
            write_clip(
                result, folder, save_frames=True,
                should_stop=lambda n=border, p=polls: next(p) == n,
            )  # fmt: skip
        except Interrupted:
            assert list(folder.iterdir()) == []
        else:
            break
    assert border >= 7  # three frames encoded, three saved, one before renaming


def test_failure_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mp4, "CRF", "no-number")
    with pytest.raises(WriteFailed, match="no-number"):
        write_clip(make_result(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tag_that_comes_back_changed_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mp4, "read_comment", lambda path: "{}")
    with pytest.raises(WriteFailed, match="came back changed"):
        write_clip(make_result(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_odd_sides_are_not_rounded_but_refused(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="63x48"):
        write_mp4(make_result(63, 48), tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


@given(st.integers(1, 500), st.integers(1, 12))
def test_spaced_indices(num_frames: int, most: int) -> None:
    indices = spaced_indices(num_frames, most)
    assert len(indices) == min(num_frames, most)
    assert indices == sorted(set(indices))
    assert indices[0] == 0
    assert most == 1 or indices[-1] == num_frames - 1
    if len(indices) > 2:
        gaps = np.diff(indices)
        assert gaps.max() - gaps.min() <= 1


def test_timecode() -> None:
    assert timecode(30, Fraction(24)) == "0:01.250 #30"
    assert timecode(24000, Fraction(24000, 1001)) == "16:41.000 #24000"


@given(st.floats(1.0, 240.0))
def test_rational_rate_is_near_the_decimal_one(fps: float) -> None:
    assert float(rational_fps(fps)) == pytest.approx(fps, abs=1.1e-3)
