"""`python -m video_engine`, called in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from video_engine.__main__ import main
from video_engine.output import mp4
from video_engine.stages.write import read_recipe


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.effect_noise((90, 60), 60).save(path)
    return path


def options(folder: Path) -> list[str]:
    return [
        "--model", str(folder), "--width", "32", "--height", "48", "--seconds", "0.4",
        "--steps", "2", "--prompt", "slow zoom in",
    ]  # fmt: skip


def test_picture_to_mp4_and_again_from_it(
    picture: Path,
    tmp_path: Path,
    tiny_folder: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = tmp_path / "deep" / "first.mp4", tmp_path / "second.mp4"
    model = tiny_folder("wan2.2")
    assert main([str(picture), "-o", str(first), *options(model)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{first}\n"
    percents = [float(found) for found in re.findall(r"([\d.]+) %", printed.err)]
    assert percents == sorted(percents)
    recipe = read_recipe(first)
    assert recipe["request"]["num_frames"] == 5
    assert recipe["request"]["prompt"] == "slow zoom in"

    again = ["--recipe", str(first), "--model", str(model), "-o", str(second)]
    assert main([str(picture), *again]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert mp4.read_comment(second) is not None


def test_folder_gets_every_file(
    picture: Path, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    out = tmp_path / "out"
    assert main([str(picture), "-o", str(out), *options(tiny_folder("wan2.2"))]) == 0
    assert {path.name for path in out.iterdir()} == {
        "motion.mp4", "contact_sheet.png", "thumbnail.webp", "recipe.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--width", "33"], 2, "use 32 or 48"),
        (["--steps", "0"], 2, "steps 0"),
        (["--model", "nowhere-at-all"], 1, "no model 'nowhere-at-all'"),
    ],
)
def test_refusals(
    extra: list[str],
    code: int,
    words: str,
    picture: Path,
    tmp_path: Path,
    tiny_folder: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "clip.mp4"
    found = main([str(picture), "-o", str(out), *options(tiny_folder("wan2.2")), *extra])
    assert found == code
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_file_that_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picture.png"
    path.write_text("not a picture")
    assert main([str(path)]) == 2
    assert main([str(tmp_path / "absent.png")]) == 2
    assert "cannot identify" in capsys.readouterr().err
