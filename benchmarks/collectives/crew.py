"""The two ranks of a race, as the parent sees them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.links.place import Place
from benchmarks.report import ROOT

SIZE = 2
_STOP_S = 10.0


class RankFailed(RuntimeError):
    """A rank reported an error or ended; the message says which and what."""


class Crew:
    """Processes that carry out the same tasks."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], logs: Sequence[Path]) -> None:
        self._processes, self._logs = processes, logs

    def __call__(self, name: str, **arguments: object) -> list[Any]:
        """What each rank answered. Raises: RankFailed."""
        for process in self._processes:
            _tell(process, {"name": name, "arguments": arguments})
        return [self._answer(rank, name) for rank in range(len(self._processes))]

    def _answer(self, rank: int, name: str) -> Any:  # noqa: ANN401 - as the task says
        stream = self._processes[rank].stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            said = self._logs[rank].read_text()[-1000:]
            raise RankFailed(f"rank {rank} ended during {name}: {said}")
        answer = json.loads(line)
        if "error" in answer:
            raise RankFailed(f"rank {rank}, {name}: {answer['error']}")
        return answer["value"]


@contextmanager
def ranks_at(
    place: Place, transports: Sequence[str], rate_bytes_s: float | None = None
) -> Generator[Crew]:
    """Two ranks on a link, slowed to a rate if one is given; they end with the block."""
    own_rate = None if rate_bytes_s is None else place.limit(rate_bytes_s)
    is_own = own_rate is not None and own_rate != float("inf")
    with tempfile.TemporaryDirectory(prefix="lanewise-race-") as folder:
        logs = [Path(folder) / f"rank-{rank}.log" for rank in range(SIZE)]
        processes = [_start(place.prefix(rank), log) for rank, log in enumerate(logs)]
        try:
            for rank, process in enumerate(processes):
                group = {
                    "rank": rank,
                    "size": SIZE,
                    "rendezvous": f"file://{folder}/store",
                    "interface": place.interface(rank),
                    **({"rate_bytes_s": own_rate} if is_own else {}),
                }
                _tell(process, {"group": group, "transports": list(transports)})
            yield Crew(processes, logs)
        finally:
            _stop(processes)


def _start(prefix: Sequence[str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as errors:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "benchmarks.collectives.rank"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def _tell(process: subprocess.Popen[str], line: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Close what they read from, and end those that do not leave by themselves."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
