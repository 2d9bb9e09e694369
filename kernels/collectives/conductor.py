"""What every operation of a communicator has in common: its turn, its choice, its failure."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from kernels.collectives import pairwise
from kernels.collectives.algorithm import Algorithm, link_of
from kernels.collectives.calls import REDUCIBLE, Call, dtype_name
from kernels.collectives.choice import SEED, Knowledge, Question, bucket_of, choose
from kernels.collectives.errors import CollectiveError, GroupBroken, StaleEpoch
from kernels.collectives.fabric import DEVICES, Fabric
from kernels.collectives.group import newest_epoch
from kernels.collectives.lane import Lane
from kernels.collectives.sentinel import Sentinel
from kernels.collectives.streams import finish, make_current
from kernels.errors import ShapeError
from kernels.ledger import Ledger

T = TypeVar("T")
CPU = torch.device("cpu")
_INT8_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Conductor:
    """Runs operations in turn, each by the algorithm that the group's common knowledge chooses."""

    def __init__(
        self,
        fabric: Fabric,
        root_store: dist.Store,
        ledger: Ledger,
        knowledge: Knowledge,
        on_device: Knowledge = SEED,
        place: torch.device = CPU,
    ) -> None:
        """`on_device` is what choices for tensors on `place` rest on, where that is a device."""
        self.fabric, self.knowledge, self.on_device = fabric, knowledge, on_device
        self._place = place
        prepare = functools.partial(make_current, place)
        self.lane = Lane(f"collectives-{fabric.group.rank}", prepare)
        self._root_store, self.ledger = root_store, ledger
        self._question = functools.lru_cache(maxsize=1024)(self._make_question)
        self._chosen: dict[tuple[Question, str], Algorithm] = {}
        self._failure: CollectiveError | None = None
        self._sentinel = Sentinel(knowledge)
        self._device_sentinel = Sentinel(on_device)

    def in_turn(self, operation: Callable[[], T]) -> T:
        """Carry the operation out behind those before it.

        Raises: GroupBroken at once where an earlier one failed; StaleEpoch where the failure is
        that the others founded the group anew.
        """
        is_inference = torch.is_inference_mode_enabled()

        def guarded() -> T:
            # Inference mode belongs to a thread; the lane's may be another than the caller's.
            if is_inference and not torch.is_inference_mode_enabled():
                with torch.inference_mode():
                    return guarded()
            if self._failure is not None:
                raise GroupBroken(
                    f"epoch {self.fabric.group.epoch} of the group failed before: {self._failure}",
                    self._failure.ranks,
                )
            try:
                return operation()
            except CollectiveError as error:
                self._failure = error
                self._raise_if_stale(error)
                raise

        return self.lane.run(guarded)

    def agree(self, call: Call) -> list[Call]:
        """See `kernels.collectives.board.Board.agree`, after what this rank can check alone."""
        adds = call.operation in ("all_reduce", "reduce_scatter")
        allowed = REDUCIBLE if adds else None
        if call.contract == "int8":
            allowed = _INT8_DTYPES
        if allowed and call.dtype not in allowed:
            names = ", ".join(dtype_name(dtype) for dtype in allowed)
            raise ShapeError(f"{call.name}: takes {names}")
        return self.fabric.board.agree(call)

    def run(self, call: Call, size_bytes: int, asked: str, *arguments: object) -> None:
        """Carry out what was agreed. `size_bytes` is the same on all ranks."""
        question = self._question(call, size_bytes)
        algorithm = self._chosen.get((question, asked))
        if algorithm is None:
            knowledge = self.knowledge if question.device == CPU.type else self.on_device
            algorithm = self._choose(question, asked, knowledge)
            self._chosen[question, asked] = algorithm
        if not size_bytes:
            return
        is_host = question.device == CPU.type
        sentinel = self._sentinel if is_host else self._device_sentinel
        if not sentinel.is_due(question, algorithm.name):
            algorithm.run(self.fabric, *arguments)
            return
        place = CPU if is_host else self._place
        finish(place)
        begin_ns = time.perf_counter_ns()
        algorithm.run(self.fabric, *arguments)
        finish(place)
        slowest_us = slowest(self.fabric, time.perf_counter_ns() - begin_ns) / 1000
        if drift := sentinel.note(question, slowest_us):
            self.ledger.record(drift)
            self._chosen[question, asked] = self._choose(question, asked, SEED)

    def check_rows(self, operation: str, x: torch.Tensor, sizes: Sequence[int]) -> None:
        """The sizes must be those of a dim 0, one for each rank.

        Raises: ShapeError, before any rank has been told anything.
        """
        size = self.fabric.group.size
        if x.dim() == 0 or len(sizes) != size or min(sizes) < 0 or sum(sizes) != len(x):
            raise ShapeError(
                f"{operation} on rank {self.fabric.group.rank}: rows {tuple(sizes)} of a tensor "
                f"{tuple(x.shape)}; expected {size} sizes, none negative, that fill dim 0"
            )

    def _make_question(self, call: Call, size_bytes: int) -> Question:
        """Of the whole bucket, so that each is decided once."""
        return Question(
            operation=call.operation,
            contract=call.contract,
            size_bytes=bucket_of(size_bytes),
            dtype=dtype_name(call.dtype),
            device=call.device,
            reduction=call.reduction,
            num_ranks=self.fabric.group.size,
        )

    def _choose(self, question: Question, asked: str, knowledge: Knowledge) -> Algorithm:
        algorithm, decision = choose(
            question,
            self.fabric.group,
            transports=self.fabric.transports,
            knowledge=knowledge,
            asked=asked,
        )
        self.ledger.record(decision)
        return algorithm

    def _raise_if_stale(self, error: CollectiveError) -> None:
        group = self.fabric.group
        newest = newest_epoch(self._root_store, group.epoch)
        if newest > group.epoch:
            raise StaleEpoch(
                f"rank {group.rank} belongs to epoch {group.epoch}, the group is at epoch "
                f"{newest}: drop this rank's results. It noticed by: {error}",
                (group.rank,),
            ) from error


def slowest(fabric: Fabric, value: int) -> int:
    """The largest of a number over all ranks."""
    transport = fabric.transports[0]
    largest = torch.tensor([value], device=DEVICES[transport])
    pairwise.all_reduce(link_of(fabric, transport), largest, "max")
    return int(largest)


def flat(x: torch.Tensor) -> torch.Tensor:
    """x with one dim, contiguous: a view where it can be."""
    return x.contiguous().view(-1)
