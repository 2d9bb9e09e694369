"""Engines over ranks that are processes, and what one rank alone computes."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine

RANKS = Path(__file__).parent / "ranks.py"
# Ranks are forked from a server that has imported the engine once.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["llm_engine.engine", "kernels.collectives.communicator", "kernels.ops.int8_wire.cpu"]
)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "page_size": 4,
    "prefill_chunk_tokens": 24,
    "max_num_seqs": 8,
    "max_model_len": 256,
    "kv_cache_bytes": 1 << 22,
    "speculation": "off",
    "num_threads": 1,
}


class RankCrew:
    """Processes of `size` ranks that run one layout after the other, each in a group of its own."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self._folder = folder
        self._num_groups = 0
        ends = [SERVER.Pipe() for _ in range(1, size)]
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for rank in range(size):
            ours, theirs = SERVER.Pipe()
            commands = [end for end, _ in ends] if rank == 0 else ends[rank - 1][1]
            given = {"rank": rank, "pipe": theirs, "commands": commands}
            process = SERVER.Process(target=runpy.run_path, args=(str(RANKS), given), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for rank in range(size):
            assert self._pipes[rank].recv() == {"value": "ready"}

    def order(
        self, layout: str, model: Path, rounds: Any, max_tokens: int, **settings: Any
    ) -> list[dict[str, Any]]:
        """Every rank's answer."""
        self._num_groups += 1
        group = {"size": self.size, "timeout_s": 20.0}
        group |= {"rendezvous": f"file://{self._folder / str(self._num_groups)}"}
        asked = SETTINGS | {"model": str(model), "layout": layout} | settings
        for pipe in self._pipes:
            pipe.send((group, asked, rounds, max_tokens))
        return [self._answer(rank) for rank in range(self.size)]

    def generate(
        self, layout: str, model: Path, rounds: Any, max_tokens: int = 12, **settings: Any
    ):
        """What rank 0 generated."""
        answers = self.order(layout, model, rounds, max_tokens, **settings)
        errors = [f"rank {r}: {a['trace']}" for r, a in enumerate(answers) if "error" in a]
        assert not errors, "\n".join(errors)
        return answers[0]["value"]

    def _answer(self, rank: int) -> dict[str, Any]:
        pipe, process = self._pipes[rank], self._processes[rank]
        if pipe not in wait([pipe, process.sentinel]):
            return {"error": f"ended with {process.exitcode}", "trace": "the process ended"}
        return pipe.recv()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankCrew]:
    """Two ranks."""
    crew = RankCrew(tmp_path_factory.mktemp("pair"), 2)
    yield crew
    crew.end()


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankCrew]:
    """Three ranks."""
    crew = RankCrew(tmp_path_factory.mktemp("trio"), 3)
    yield crew
    crew.end()


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankCrew]:
    """Four ranks."""
    crew = RankCrew(tmp_path_factory.mktemp("four"), 4)
    yield crew
    crew.end()


@pytest.fixture(scope="session")
def model_folder(
    tmp_path_factory: pytest.TempPathFactory,
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
) -> Callable[..., Path]:
    """The folder of a tiny model, made once for each configuration."""
    made: dict[str, Path] = {}

    def folder_of(family: str = "Llama", **overrides: Any) -> Path:
        key = f"{family}{sorted(overrides.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("model")
            make_tiny(family, **overrides).save_pretrained(made[key])
            save_byte_tokenizer(made[key])
        return made[key]

    return folder_of


@pytest.fixture(scope="session")
def alone() -> Callable[..., Any]:
    """What an engine without ranks generates, kept by model and rounds."""
    kept: dict[str, Any] = {}
    module = runpy.run_path(str(RANKS), {"rank": -1, "pipe": None, "commands": None})

    def run(model: Path, rounds: Any, max_tokens: int = 12, **settings: Any) -> Any:
        key = str((model, rounds, max_tokens, sorted(settings.items())))
        if key not in kept:
            asked = SETTINGS | {"model": str(model)} | settings
            engine = LLMEngine.load(EngineConfig(**asked))
            kept[key] = [module["generated"](engine, prompts, max_tokens) for prompts in rounds]
        return kept[key]

    return run
