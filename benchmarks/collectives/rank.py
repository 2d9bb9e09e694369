"""One rank as a process: tasks as JSON lines in, answers as JSON lines out.

The first line says which group to join; each task runs on all ranks alike.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypedDict

import torch

from benchmarks.links.raw import both_ways_s, connect, round_trip_s
from kernels.collectives.algorithm import Algorithm
from kernels.collectives.algorithms import algorithms_for
from kernels.collectives.codec import (
    decode_into,
    empty_payload,
    encode_into,
    payload_bytes,
    settle_into,
)
from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.conductor import slowest
from kernels.collectives.fabric import Fabric
from kernels.collectives.group import Group
from kernels.collectives.int8 import CHUNK
from kernels.collectives.reduction import cut
from kernels.collectives.tuning.links import copy_rate_bytes_s
from kernels.collectives.tuning.trials import make_trial

Ways = list[list[str]]
# What plain sockets are called among the ways.
PLAIN = "plain sockets"


class Raw(TypedDict):
    """Rank 0's address, and how many bytes go each way."""

    address: str
    num_bytes: int


class WrongResult(AssertionError):
    """A result that differs from the whole numbers it must be; nothing was timed."""


def race(
    comm: HostCommunicator,
    *,
    op: str,
    dtype: str,
    size_bytes: int,
    ways: Ways,
    num_rounds: int,
    raw: Raw | None = None,
) -> dict[str, list[float]]:
    """Seconds of each way, the slowest rank's, round by round; every way is checked first.

    A way is the name of an algorithm and its contract; `int8` ones round and are checked by
    `error_of`. With the address and bytes of `raw`, plain sockets run in the same rounds.
    """
    kind = getattr(torch, dtype)
    fabric = comm.fabric
    trial = make_trial(fabric, op, size_bytes // kind.itemsize, kind)
    found = [(_named(op, name), contract) for name, contract in ways]
    for algorithm, contract in found:
        trial.reset()
        fabric.board.step("warm-up")
        trial.run(algorithm)
        if contract != "int8" and not trial.is_right():
            raise WrongResult(f"{algorithm.name} gives a wrong {op} of {dtype}")

    def timed_s(algorithm: Algorithm) -> float:
        trial.reset()
        fabric.board.step("race")
        begin_ns = time.perf_counter_ns()
        trial.run(algorithm)
        return slowest(fabric, time.perf_counter_ns() - begin_ns) / 1e9

    calls = {a.name: partial(timed_s, a) for a, _ in found}
    with ExitStack() as stack:
        if raw is not None:
            connection = stack.enter_context(connect(comm.group.rank, raw["address"]))
            calls[PLAIN] = partial(_plain_s, fabric, connection, raw["num_bytes"])
        rounds = [{name: call() for name, call in calls.items()} for _ in range(num_rounds)]
    return {name: [times[name] for times in rounds] for name in calls}


def _plain_s(fabric: Fabric, connection: socket.socket, num_bytes: int) -> float:
    took_s = both_ways_s(connection, num_bytes, lambda: fabric.board.step("raw"))
    return slowest(fabric, int(took_s * 1e9)) / 1e9


def error_of(comm: HostCommunicator, *, way: str, dtype: str, count: int) -> dict[str, Any]:
    """An int8 all-reduce of normal numbers: its error, and a digest that all ranks must share.

    Returns: `error`, the norm of the difference to float64 over that of the sum; `digest`.
    """
    kind, group = getattr(torch, dtype), comm.group
    made = torch.randn(group.size, count, generator=torch.Generator().manual_seed(5))
    held = made.to(kind)
    x_N = comm.all_reduce(held[group.rank].clone(), contract="int8", algorithm=way)
    exact_N = held.double().sum(0)
    error = torch.linalg.vector_norm(x_N.double() - exact_N) / torch.linalg.vector_norm(exact_N)
    return {"error": float(error), "digest": zlib.crc32(x_N.view(torch.uint8).numpy().tobytes())}


def int8_alone(comm: HostCommunicator, *, dtype: str, count: int, num_rounds: int) -> list[float]:
    """Seconds of what a rank computes in an int8 all-reduce of `count` values; nothing is sent."""
    fabric, rank = comm.fabric, comm.group.rank
    made = torch.randn(count, generator=torch.Generator().manual_seed(5))
    chunks = [
        cut(chunk_N, comm.group.size) for chunk_N in made.to(getattr(torch, dtype)).split(CHUNK)
    ]
    room = [empty_payload(piece_N, len(piece_N)) for piece_N in chunks[0]]
    received = [torch.empty_like(room[rank]) for _ in room]
    for payload_B in received:
        encode_into(chunks[0][rank], payload_B)
    seconds: list[float] = []
    for _ in range(num_rounds + 1):
        fabric.board.step("int8 alone")
        begin_ns = time.perf_counter_ns()
        for pieces in chunks:
            _compute(pieces, room, received, rank)
        seconds.append(slowest(fabric, time.perf_counter_ns() - begin_ns) / 1e9)
    return seconds[1:]


def _compute(
    pieces: Sequence[torch.Tensor],
    room: Sequence[torch.Tensor],
    received: Sequence[torch.Tensor],
    rank: int,
) -> None:
    """Encode what others own, settle what this rank owns, decode what others own."""
    payloads = [
        payload_B[: payload_bytes(len(piece_N))]
        for piece_N, payload_B in zip(pieces, room, strict=True)
    ]
    others = [pair for r, pair in enumerate(zip(pieces, payloads, strict=True)) if r != rank]
    for piece_N, payload_B in others:
        encode_into(piece_N, payload_B)
    settle_into(pieces[rank], received, rank, payloads[rank], "sum")
    for piece_N, payload_B in others:
        decode_into(payload_B, piece_N)


def copy_rate(comm: HostCommunicator, *, num_rounds: int) -> float:
    """Bytes a second that each rank copies while both do."""
    return copy_rate_bytes_s(comm, num_rounds)


def raw_link(
    comm: HostCommunicator, *, address: str, num_bytes: int, num_rounds: int
) -> dict[str, list[float]]:
    """Seconds of plain sockets: so many bytes both ways at once, and a round trip."""
    fabric, rank = comm.fabric, comm.group.rank

    def meet() -> None:
        fabric.board.step("raw")

    with connect(rank, address) as connection:
        swaps = [_plain_s(fabric, connection, num_bytes) for _ in range(num_rounds)]
        trips = [
            slowest(fabric, int(round_trip_s(connection, rank, meet) * 1e9)) / 1e9
            for _ in range(4 * num_rounds)
        ]
    return {"both_ways_s": swaps, "round_trip_s": trips}


def _named(op: str, name: str) -> Algorithm:
    return next(a for a in algorithms_for(op) if a.name == name)


TASKS = {task.__name__: task for task in (race, error_of, int8_alone, copy_rate, raw_link)}


def main() -> None:
    """Join, then carry out tasks until the input ends."""
    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr
    options = json.loads(sys.stdin.readline())
    comm = join(Group(**options["group"]), transports=tuple(options["transports"]))
    for line in sys.stdin:
        task = json.loads(line)
        try:
            answer = {"value": TASKS[task["name"]](comm, **task["arguments"])}
        except Exception:  # noqa: BLE001 - a process's boundary: the parent reports it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    comm.close()


if __name__ == "__main__":
    main()
