"""One rank of a measurement: a process on a core of its own that does what it is told."""

# N tokens of the prompt, C channels, S rows that are compared, V vocabulary.

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from benchmarks.overlap.context import FusedContext
from benchmarks.overlap.eager import EagerLayers
from benchmarks.overlap.fused import FusedLayers, FusedWeights
from benchmarks.overlap.models import MODELS, RandomWeights
from benchmarks.overlap.shares import Share
from benchmarks.overlap.stages import Stage
from benchmarks.overlap.still import Still
from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.group import Group
from kernels.collectives.protocol import Communicator
from kernels.collectives.schedules.measured import core_seconds, duration_s
from kernels.collectives.schedules.threads import Ran
from llm_engine.device import EngineDevice
from llm_engine.layers.step import Step
from llm_engine.loader import choose_dtype
from llm_engine.parallel.overlap import (
    OverlappedLayers,
    TokenChunk,
    micro_batch_layers,
    token_split_layers,
)
from llm_engine.parallel.overlap_context import OverlappedContext, share_rows
from llm_engine.parallel.overlap_wire import while_computing

_TIMEOUT_S = 300.0
_SEED = 1


class RankWork:
    """A rank's models and its link; every method is called on all ranks at the same time."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        """Take a core, where there are enough of them."""
        self._rank, self._size, self._folder = rank, size, folder
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= size:
            os.sched_setaffinity(0, {cores[rank]})
        torch.set_num_threads(1)
        self._dtype = choose_dtype("auto", EngineDevice.of("cpu"))  # as an engine here would
        self._communicator: HostCommunicator | None = None
        self._num_meetings = 0
        self._reference_NC: torch.Tensor | None = None

    def prepare(self, model: str, num_layers: int, num_tokens: int) -> dict[str, Any]:
        """Make the weights of all stages of a model; returns its sizes."""
        config = MODELS[model].config(num_layers)
        weights = RandomWeights(config, self._dtype)
        share = Share(self._rank, self._size)
        self._num_tokens = num_tokens
        self._eager = EagerLayers(weights, share)
        self._fused = FusedWeights(weights, share, num_tokens)
        self._whole = FusedWeights(weights, Share(0, 1), num_tokens)
        self._head = (weights("model.norm"), weights("lm_head"))
        generator = torch.Generator().manual_seed(_SEED)
        ids_N = torch.randint(0, config.vocab_size, (num_tokens,), generator=generator)
        self._x_NC = F.embedding(ids_N, weights("model.embed_tokens"))
        item = self._dtype.itemsize
        kv_bytes = 2 * config.num_kv_heads * config.head_dim * item
        return {
            "parameters": weights.num_parameters,
            "tp_bytes": item * config.hidden_size,
            "dtype": str(self._dtype).removeprefix("torch."),
            "cp_bytes": kv_bytes,
            "layers": num_layers,
        }

    def meet(self, rate_bytes_s: float) -> None:
        """Join the others over a link of this rate, each direction."""
        if self._communicator is not None:
            self._communicator.close()
        self._num_meetings += 1
        group = Group(
            rank=self._rank,
            size=self._size,
            rendezvous=f"file://{self._folder}/meeting-{self._num_meetings}",
            timeout_s=_TIMEOUT_S,
            rate_bytes_s=rate_bytes_s,
        )
        self._communicator = join(group, transports=("shm",))

    def compare_with_next(self) -> None:
        """The next run becomes what later ones are compared with."""
        self._reference_NC = None

    def link(
        self,
        operation: str,
        sizes: list[int],
        repeats: int,
        contract: str = "exact",
        beside: Stage | None = None,
    ) -> list[list[float]]:
        """Seconds of an exchange of so many bytes (of all ranks in a gather).

        While the rank does nothing else, or computes a quarter of a stage's rows again and again.
        """
        communicator = self._met
        compute = None if beside is None else self._quarter(beside)
        times: list[list[float]] = []
        for size in sizes:
            share = self._size if operation == "all_gather" else 1
            num_rows = size // self._dtype.itemsize // share // 128
            x = torch.ones(num_rows, 128, dtype=self._dtype)
            exchange = functools.partial(getattr(communicator, operation), x, contract=contract)
            timed = functools.partial(_timed, exchange)
            timed()
            times.append([])
            for _ in range(repeats):
                communicator.barrier()
                taken_s = timed() if compute is None else while_computing(timed, compute)
                times[-1].append(taken_s)
        return times

    def _quarter(self, stage: Stage) -> Callable[[], object]:
        rows = (stage.num_answers or self._num_tokens) // 4
        updates, step = FusedLayers(self._fused), self._step(stage, 0, rows)
        return functools.partial(updates.mlp_update, 0, self._x_NC[:rows], step)

    def compute(self, stage: Stage) -> dict[str, float]:
        """Core seconds of a stage's computations, exchanges taking no time; all ranks at once.

        Of the core, not of the clock: with one thread a rank, that is what a quiet machine takes,
        and a rate that is set by it does not depend on what else runs here.
        """
        self._met.barrier()
        ran, _ = self._once(stage, Still(self._met.group), is_overlapped=False)
        return core_seconds(ran)

    def run(self, stage: Stage) -> dict[str, Any]:
        """A step: seconds, core seconds, and what it yielded."""
        self._met.barrier()
        core_s = time.process_time()
        ran, rows = self._once(stage, self._met, is_overlapped=stage.is_overlapped)
        core_s = time.process_time() - core_s
        computing_s = sum(r.end_s - r.begin_s for r in ran if r.node.kind == "compute")
        return {"seconds": duration_s(ran), "core_s": core_s, "computing_s": computing_s} | (
            self._result(stage, rows)
        )

    @property
    def _met(self) -> HostCommunicator:
        assert self._communicator is not None, "meet first"
        return self._communicator

    def _once(
        self, stage: Stage, communicator: Communicator, *, is_overlapped: bool
    ) -> tuple[list[Ran], torch.Tensor]:
        if stage.split == "cp":
            layers = FusedContext(self._whole, self._rank, self._size, self._num_tokens)
            xs = [self._x_NC[p.start : p.start + p.num_tokens] for p in layers.pieces]
            split = OverlappedContext(layers, communicator, stage.contract)
            return split(xs, is_overlapped=is_overlapped), torch.cat(xs)
        is_eager = stage.kernels != "fused"
        self._eager.fuses_attention = stage.kernels == "generic, fused attention"
        updates = self._eager if is_eager else FusedLayers(self._fused)
        num_rows = stage.num_answers or self._num_tokens
        bounds = [i * num_rows // stage.num_chunks for i in range(stage.num_chunks + 1)]
        chunks = [
            TokenChunk(self._x_NC[begin:end], self._step(stage, begin, end))
            for begin, end in itertools.pairwise(bounds)
        ]
        build = micro_batch_layers if stage.num_answers else token_split_layers
        run = OverlappedLayers(updates, communicator, stage.contract, build=build)
        ran = run(chunks, is_overlapped=is_overlapped)
        return ran, torch.cat([chunk.x_NC for chunk in chunks])

    def _step(self, stage: Stage, begin: int, end: int) -> Step:
        if stage.num_answers:
            return self._fused.answers(begin, end - begin)
        step = self._fused.step(begin, end - begin)
        return step if stage.kernels == "fused" else Step(step.token_ids_N, _nothing)

    def _result(self, stage: Stage, rows: torch.Tensor) -> dict[str, Any]:
        """Bits, next tokens and the distance to the first stage that ran, of this rank's rows."""
        own = torch.cat([
            torch.arange(p.start, p.start + p.num_tokens)
            for p in (turn[self._rank] for turn in share_rows(self._num_tokens, self._size))
        ])  # fmt: skip
        if stage.num_answers:
            own = torch.arange(stage.num_answers)
        digest = hashlib.sha256(rows.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        rows = rows if stage.split == "cp" else rows[own]
        if self._reference_NC is None:
            self._reference_NC = rows.clone()
        reference = self._reference_NC.float()
        is_same = self._tokens(rows) == self._tokens(self._reference_NC)
        return {
            "digest": digest,
            "own_digest": hashlib.sha256(
                rows.contiguous().view(torch.uint8).numpy().tobytes()
            ).hexdigest(),
            "error": float((rows.float() - reference).norm() / reference.norm()),
            "tokens_equal": int(is_same.sum()),
            "tokens": len(rows),
            "last_is_equal": bool(is_same[own.argmax()]),
            "last": int(own.max()),
        }

    def _tokens(self, rows_SC: torch.Tensor) -> torch.Tensor:
        """The likeliest next token of each row."""
        norm_C, head_VC = self._head
        h_SC = F.rms_norm(rows_SC, norm_C.shape, norm_C, 1e-5)
        return torch.cat([F.linear(h, head_VC).argmax(-1) for h in h_SC.split(256)])


def _timed(exchange: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    exchange()
    return time.perf_counter() - begin_s


def _nothing(*_: object) -> torch.Tensor:
    raise AssertionError("the eager layers attend themselves")


def serve(rank: int, size: int, folder: Path, pipe: Connection) -> None:
    """Carry out orders until there are no more; answers are ("value", x) or ("error", text)."""
    work = RankWork(rank, size, folder)
    while (order := pipe.recv()) is not None:
        name, arguments = order
        with torch.inference_mode():
            try:
                pipe.send(("value", getattr(work, name)(*arguments)))
            except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
                pipe.send(("error", f"rank {rank}, {name}: {type(error).__name__}: {error}"))
