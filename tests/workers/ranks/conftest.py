"""Groups of real processes with a small engine, for tests that break them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_rank import execute

from workers.ranks.founding import GroupSpec
from workers.ranks.group import RankGroup
from workers.ranks.watch import Limits

FAKE = Path(__file__).with_name("fake_rank.py")


@dataclass
class Place:
    """A group and what a test does with it."""

    group: RankGroup

    def run(self, value: float = 1.0, expected_s: float | None = 0.01, **command: Any) -> Any:
        """Rank 0's result of one command; raises what the exchange raises."""
        data = json.dumps({"value": value, **command}).encode()
        self.group.expect(expected_s)
        self.group.send(data)
        return execute(0, self.group.communicator, data)

    def pid(self, rank: int = 1) -> int:
        return self.group.status()["rank_processes"][rank]["pid"]

    def wait(self, what: str, is_so: Callable[[], object], timeout_s: float = 20.0) -> float:
        """Wait; how long it took."""
        begin_s = time.monotonic()
        while not is_so():
            if time.monotonic() - begin_s > timeout_s:
                pytest.fail(f"not within {timeout_s:.0f} s: {what}; {self.group.status()}")
            time.sleep(0.01)
        return time.monotonic() - begin_s


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Found a group; it is closed at the end."""
    groups: list[RankGroup] = []

    def make(
        num_ranks: int = 2, start: bool = True, limits: Limits | None = None, data_dir: str = "",
        budget=None, on_leader_stalled=lambda _: None, **config: Any,
    ) -> Place:  # fmt: skip
        spec = GroupSpec(
            num_ranks=num_ranks, command=(sys.executable, str(FAKE)), folder=tmp_path,
            config=config, limits=limits or Limits(), data_dir=data_dir,
        )  # fmt: skip
        group = RankGroup(spec, budget=budget, on_leader_stalled=on_leader_stalled)
        groups.append(group)
        if start:
            group.start()
            group.wait_loaded()
        return Place(group)

    yield make
    for group in groups:
        group.close()
