"""Divided models on ranks that are threads."""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.parallel.laid import load_laid
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.seat import load_follower


@pytest.fixture(scope="session")
def threads() -> ModuleType:
    """The module beside this file; no test folder is a package."""
    path = Path(__file__).with_name("thread_ranks.py")
    spec = importlib.util.spec_from_file_location("video_thread_ranks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def over_ranks(threads: ModuleType) -> Callable[..., Any]:
    """(model, layout, lead) → what `lead(engine)` returns on rank 0 of ranks that are threads."""

    def run(model: str, layout: str, lead: Callable[[VideoEngine, Any], Any]) -> Any:
        config = EngineConfig(model=model, layout=layout, dtype="float32")
        size = VideoLayout.parse(layout).num_ranks
        world = threads.ThreadWorld(size)
        boxes: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(1, size)]
        loading = threading.Lock()  # the libraries load for a whole process at a time

        def work(rank: int) -> Any:
            communicator = world.communicator(rank)
            if rank == 0:
                ranks = threads.QueueRanks(communicator, boxes)
                try:
                    with loading:
                        engine = VideoEngine(*load_laid(config, ranks, world.join_part))
                    return lead(engine, ranks)
                finally:
                    ranks.stop()
            with loading:
                forward = load_follower(config, communicator, world.join_part)
            while data := boxes[rank - 1].get(timeout=threads.WAIT_S):
                forward.follow(data)
            forward.close()
            return None

        return world.run(work)[0]

    return run
