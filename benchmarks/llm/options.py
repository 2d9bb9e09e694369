"""Options of `python -m benchmarks llm`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.llm.contestants import PEERS

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMOptions:
    """What a run measures. `url` or `serve` adds the rows of a service."""

    quick: bool = False
    peers: tuple[str, ...] = PEERS
    threads: int = 1
    model: str = DEFAULT_MODEL
    json: Path | None = None
    url: str = ""
    api_key: str = ""
    plan_hash: str = ""
    serve: bool = False
    sections: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: argparse.Namespace) -> Self:
        """From the parsed command line."""
        peers = tuple(dict.fromkeys(given.peer)) if given.peer else PEERS
        return cls(
            quick=given.quick,
            peers=tuple(peer for peer in peers if peer != "none"),
            threads=given.threads or len(os.sched_getaffinity(0)),
            model=given.model,
            json=given.json,
            url=given.url.rstrip("/"),
            api_key=given.api_key,
            plan_hash=given.plan_hash,
            serve=given.serve,
            sections=tuple(given.section or ()),
        )

    def includes(self, section: str) -> bool:
        """Whether a section is measured: named ones, or all but the diagnosis `hops`."""
        return section in self.sections if self.sections else section != "hops"


SECTIONS = ("engines", "steady", "service", "hops")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that only this suite reads."""
    group = parser.add_argument_group("llm", "options of the suite llm")
    group.add_argument(
        "--peer", action="append", choices=[*PEERS, "none"], help="compare with these alone"
    )
    group.add_argument("--threads", type=int, default=0, help="of every engine; all cores if 0")
    group.add_argument("--model", default=DEFAULT_MODEL, help="name, folder or .gguf file")
    group.add_argument("--section", action="append", choices=SECTIONS, help="measure these alone")
    group.add_argument("--url", default="", help="measure a running service, such as http://…:8000")
    group.add_argument("--api-key", default="", help="the key for --url")
    group.add_argument("--plan-hash", default="", help="refuse a service of another plan (exit 3)")
    group.add_argument("--serve", action="store_true", help="start a service and measure it")
