"""A video layout that cannot be had: one line with the way out, exit code 4, no rank started."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.processes import video_worker
from workers.settings import Settings


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("tp2", "tp is planned by `lanewise plan`"),
        ("ulysses1", "leave layout out for one rank"),
        ("ulysses2,groups9", "too few for 9 groups: take groups2 or fewer"),
    ],
)
def test_refused_before_anything_is_loaded(
    layout: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path, video_layout=layout, redis_url="redis://localhost:1")
    assert video_worker.main(settings) == 4
    (said,) = [r for r in caplog.records if r.name == video_worker.__name__]
    assert words in said.getMessage()
    assert said.exc_info is None
    assert not (tmp_path / "run").exists()
