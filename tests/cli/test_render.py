"""`lanewise render` against the stub: a shot list from the file to the saved clips."""

from __future__ import annotations

import io

import pytest
from PIL import Image

LIST = """\
project,shot,image,prompt,seeds,seconds
sea,010,pictures/teal.png,waves,"1,2",1
sea,020,pictures/same teal.png,pan left,3,1
sea,030,pictures/navy.png,zoom in,4,2
"""


@pytest.fixture
def shots(tmp_path):
    folder = tmp_path / "show one"
    (folder / "pictures").mkdir(parents=True)
    for name, colour in (("teal", "teal"), ("same teal", "teal"), ("navy", "navy")):
        buffer = io.BytesIO()
        Image.new("RGB", (48, 32), colour).save(buffer, "PNG")
        (folder / "pictures" / f"{name}.png").write_bytes(buffer.getvalue())
    path = folder / "reel.csv"
    path.write_text(LIST)
    return path


def test_every_shot_lands_under_its_name_with_one_sheet(lanewise, shots, stub, tmp_path):
    out = tmp_path / "out"
    result = lanewise("render", str(shots), "-o", str(out))
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in out.iterdir())
    assert names == [
        "reel_contact_sheet.png", "sea_010_1.mp4", "sea_010_2.mp4", "sea_020_3.mp4",
        "sea_030_4.mp4",
    ]  # fmt: skip
    assert stub.state.uploads == 2  # three names, two different pictures


def test_the_same_list_again_renders_and_saves_nothing(lanewise, shots, stub, tmp_path):
    out = tmp_path / "out"
    lanewise("render", str(shots), "-o", str(out))
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = lanewise("render", str(shots), "-o", str(out))
    assert again.exit_code == 0, again.output
    assert "0 of 4 clips queued, 4 unchanged and kept" in again.output
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert (len(stub.state.jobs), stub.state.uploads) == (4, 2)


def test_only_what_changed_or_failed_runs_again(lanewise, shots, stub, tmp_path):
    shots.write_text(LIST.replace("zoom in", stub.state.failing_prompt))
    failed = lanewise("render", str(shots), "-o", str(tmp_path / "out"))
    assert failed.exit_code == 1
    assert "1 of 4 clips are missing" in failed.output
    assert "it broke" in failed.output
    stub.state.failing_prompt = "nothing fails now"
    again = lanewise("render", str(shots), "-o", str(tmp_path / "out"))
    assert again.exit_code == 0, again.output
    assert "1 of 4 clips queued" in again.output
    shots.write_text(shots.read_text().replace("pan left", "pan right"))
    changed = lanewise("render", str(shots), "-o", str(tmp_path / "out"))
    assert "1 of 4 clips queued" in changed.output


def test_a_file_that_is_there_is_never_overwritten(lanewise, shots, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "sea_010_1.mp4").write_bytes(b"mine")
    assert lanewise("render", str(shots), "-o", str(out)).exit_code == 0
    assert (out / "sea_010_1.mp4").read_bytes() == b"mine"
    assert (out / "sea_010_1_2.mp4").exists()


def test_a_dry_run_queues_nothing(lanewise, shots, stub):
    result = lanewise("render", str(shots), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "4 of 4 clips would be rendered" in result.output
    assert stub.state.jobs == {}


def test_mistakes_are_named_by_their_line_and_nothing_is_sent(lanewise, shots, stub):
    shots.write_text(LIST + "sea,040,pictures/none.png,zoom,5,1\nsea,050,pictures/navy.png,,6,x\n")
    result = lanewise("render", str(shots))
    assert result.exit_code == 2
    assert f"{shots}:5: image: the picture 'pictures/none.png' is missing" in result.output
    assert f"{shots}:6: seconds:" in result.output
    assert f"{shots}:6: prompt:" in result.output
    assert stub.state.seen == []


def test_what_the_service_refuses_has_the_line_of_the_file(lanewise, shots):
    shots.write_text(LIST.replace("zoom in,4,2", "zoom in,4,99"))
    result = lanewise("render", str(shots))
    assert result.exit_code == 2
    assert f"{shots}:4, seconds: too long" in result.output


def test_a_naming_template_may_make_folders_and_is_checked(lanewise, shots, tmp_path):
    out = tmp_path / "out"
    named = lanewise(
        "render", str(shots), "-o", str(out), "--template", "{project}/{shot}_{seed}.mp4"
    )
    assert named.exit_code == 0, named.output
    assert (out / "sea" / "010_1.mp4").exists()
    wrong = lanewise("render", str(shots), "-o", str(out), "--template", "{colour}.mp4")
    assert wrong.exit_code == 1
    assert "{project}" in wrong.output


def test_without_watching_the_id_of_the_batch_is_printed(lanewise, shots):
    result = lanewise("render", str(shots), "--name", "reel v2")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == "batch_0"
