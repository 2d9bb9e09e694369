"""Layouts that cannot be had: one line with the way out, the exit code, no rank started."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.processes import llm_worker, video_worker
from workers.settings import Settings


@pytest.mark.parametrize(
    ("engine", "layout", "code", "words"),
    [
        ("video", "tp2", 4, "tp is planned by `lanewise plan`"),
        ("video", "ulysses1", 4, "leave layout out for one rank"),
        ("video", "ulysses2,groups9", 4, "too few for 9 groups: take groups2 or fewer"),
        ("video", "ulyssesx", 2, "'ulyssesx' is no axis; write axes with their numbers"),
        ("llm", "tpx", 2, "'tpx' is no axis; write axes with their numbers"),
        ("llm", "tp2,tp2", 2, "gives tp twice"),
        ("llm", "cp3->tp2", 4, "must be the same"),
    ],
)
def test_refused_before_anything_is_loaded(
    engine: str,
    layout: str,
    code: int,
    words: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = llm_worker if engine == "llm" else video_worker
    settings = Settings(
        data_dir=tmp_path, redis_url="redis://localhost:1", **{f"{engine}_layout": layout}
    )
    assert worker.main(settings) == code
    (said,) = [r for r in caplog.records if r.name == worker.__name__]
    assert words in said.getMessage()
    assert said.exc_info is None
    assert not (tmp_path / "run").exists()
