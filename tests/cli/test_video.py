"""`lanewise video` against the stub."""

from __future__ import annotations

import pytest


def test_a_picture_becomes_a_clip_with_its_contact_sheet(lanewise, picture, tmp_path):
    output = tmp_path / "new folder" / "wave.mp4"
    result = lanewise("video", str(picture), "--prompt", "waves", "--seed", "3", "-o", str(output))
    assert result.exit_code == 0, result.output
    assert b"ftyp" in output.read_bytes()
    assert (output.parent / "wave_contact_sheet.png").exists()
    assert [path.name for path in output.parent.iterdir() if path.name.startswith(".")] == []
    assert "seed 3" in result.stdout


def test_every_choice_reaches_the_service(lanewise, picture, stub):
    result = lanewise(
        "video", str(picture), "--prompt", "p", "--seconds", "1.5", "--fps", "12", "--size",
        "64x48", "--fit", "pad", "--steps", "9", "--project", "sea", "--tag", "a", "--tag", "b",
        "--no-wait",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (job,) = stub.state.jobs.values()
    assert result.stdout.strip() == job["id"]
    request = job["request"]
    assert (request["seconds"], request["fps"], request["steps"]) == (1.5, 12.0, 9)
    assert (request["width"], request["height"], request["fit"]) == (64, 48, "pad")
    assert (job["project"], job["tags"]) == ("sea", ["a", "b"])


def test_a_failed_job_is_an_error_that_says_how_to_retry(lanewise, picture, stub):
    result = lanewise("video", str(picture), "--prompt", stub.state.failing_prompt)
    assert result.exit_code == 1
    assert "it broke" in result.output
    assert "lanewise jobs retry job_" in result.output


def test_a_clip_that_does_not_fit_has_its_own_exit_code(lanewise, picture, stub, monkeypatch):
    from service.terminal import ExitCode, exit_code_for

    assert exit_code_for("out_of_memory") is ExitCode.DOES_NOT_FIT
    monkeypatch.setattr(
        type(stub.state), "finish",
        lambda _self, job: job.update(
            status="failed", error={"code": "out_of_memory", "message": "too large"}
        ),
    )  # fmt: skip
    result = lanewise("video", str(picture), "--prompt", "p")
    assert result.exit_code == 4
    assert "--size" in result.output


def test_ctrl_c_cancels_the_job_and_says_so(lanewise, picture, stub, monkeypatch):
    from service.commands import watching

    def interrupt(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupt)
    stub.state.polls_to_finish = 100
    result = lanewise("video", str(picture), "--prompt", "p")
    assert result.exit_code == 1
    assert "is cancelled" in result.output
    assert len(stub.state.cancelled) == 1


def test_damaged_bytes_are_never_saved(lanewise, picture, stub, tmp_path, monkeypatch):
    finish = type(stub.state).finish

    def damage(self, job):
        finish(self, job)
        job["artifacts"][0]["sha256"] = "0" * 64

    monkeypatch.setattr(type(stub.state), "finish", damage)
    output = tmp_path / "out.mp4"
    output.write_bytes(b"before")
    result = lanewise("video", str(picture), "--prompt", "p", "-o", str(output))
    assert result.exit_code == 1
    assert "damaged" in result.output
    assert output.read_bytes() == b"before"


@pytest.mark.parametrize("missing", ["--prompt", "IMAGE"])
def test_what_is_missing_is_named(lanewise, picture, missing):
    arguments = [str(picture)] if missing == "--prompt" else ["--prompt", "p"]
    result = lanewise("video", *arguments)
    assert result.exit_code == 2
    assert missing in result.output


@pytest.mark.parametrize(
    ("option", "value"), [("--seconds", "nan"), ("--seconds", "inf"), ("--fps", "inf")]
)
def test_lengths_that_are_no_number_are_wrong_usage(lanewise, picture, option, value):
    result = lanewise("video", str(picture), "--prompt", "p", option, value)
    assert result.exit_code == 2
    assert option in result.output


def test_a_prompt_that_is_no_utf8_is_wrong_usage(lanewise, picture, stub):
    result = lanewise("video", str(picture), "--prompt", "caf\udce9")
    assert result.exit_code == 2
    assert "UTF-8" in result.output
    assert not stub.state.jobs
