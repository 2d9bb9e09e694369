"""One rank as a process that runs the push kernel in Triton's interpreter over shared memory.

Run with `options` (group, slot size, patience) and `pipe` (tasks in, answers out) in its globals.
"""

import random
import time
import traceback
from types import SimpleNamespace

import torch

from kernels.collectives.board import meet
from kernels.collectives.device_algorithms import of_pushes
from kernels.collectives.group import Group, open_root_store, store_of_epoch
from kernels.collectives.int8 import reference_all_reduce as int8_all_reduce
from kernels.collectives.push.launch import launch
from kernels.collectives.push.layout import CHANNELS, Inbox
from kernels.collectives.push.pushes import Pushes
from kernels.collectives.reduction import reference_all_reduce, reference_reduce_scatter
from kernels.collectives.segment import Segment, aligned
from kernels.collectives.tuning.trials import make_trial
from kernels.errors import KernelError


class SharedInboxes:
    """The inboxes of processes of one host; every process maps them at other addresses."""

    def __init__(self, group, store, slot_bytes, max_polls):
        self.group, self.max_polls = group, max_polls
        self.inbox = Inbox(num_ranks=group.size, slot_bytes=slot_bytes)
        stride = aligned(self.inbox.size_bytes)
        self._segment = Segment(group, store, "push", group.size * stride)
        boxes = [
            self._segment.payload(rank * stride, self.inbox.size_bytes)
            for rank in range(group.size)
        ]
        self.addresses = torch.tensor([box.data_ptr() for box in boxes])
        self.state = torch.zeros(1 + CHANNELS, dtype=torch.int64)
        self.notice = torch.zeros(1, dtype=torch.int64)
        meet(group, store, "push")
        self._segment.forget_name()

    def limit_waits(self, timeout_s):
        """Patience is counted in looks here."""

    def put_in_order(self):
        """Everything runs at once here."""


def shards(size, count, dtype, seed):
    """What every rank holds; every rank can make all of them."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(size, count, generator=generator) * 10
    return list(made.to(getattr(torch, dtype)).unbind())


def sums(push, group, *, dtype, counts, reduction="sum"):
    """Both forms give the bits of the reference, whole and cut in two."""
    for count in counts:
        held = shards(group.size, count, dtype, seed=count)
        want = reference_all_reduce(held, reduction)[0]
        for form in (push.one_shot, push.two_shot):
            x_N = held[group.rank].clone()
            form(x_N, reduction)
            assert torch.equal(x_N, want), (form, count)
            x_N = held[group.rank].clone()
            for part_N in x_N.tensor_split((count // 3,)):
                form(part_N, reduction)
            assert torch.equal(x_N, want), (form, count, "in two pieces")


def moves(push, group, *, dtype):
    """Gathers, scatters, all-to-alls and broadcasts of uneven sizes, also of none."""
    rank, size = group.rank, group.size
    rows = [(500 * r + 3) % 701 * (r != 1) for r in range(size)]
    mine = [torch.arange(n).to(getattr(torch, dtype)) + r for r, n in enumerate(rows)]
    parts = [part.clone() if r == rank else torch.zeros_like(part) for r, part in enumerate(mine)]
    push.all_gather(parts)
    assert all(torch.equal(a, b) for a, b in zip(parts, mine, strict=True))
    held = shards(size, sum(rows), dtype, seed=1)
    out = torch.full((rows[rank],), -1).to(getattr(torch, dtype))
    push.reduce_scatter(list(held[rank].split(rows)), out, "sum")
    assert torch.equal(out, reference_reduce_scatter(held, rows)[rank])
    for root in range(size):
        x_N = held[rank].clone()
        push.broadcast(x_N, root)
        assert torch.equal(x_N, held[root])
    sizes = [[(7 * s + 311 * r) % 613 * (s != 2 * r) for r in range(size)] for s in range(size)]
    sent = [[torch.full((n,), 10 * s + r) for r, n in enumerate(sizes[s])] for s in range(size)]
    sent = [[part.to(getattr(torch, dtype)) for part in row] for row in sent]
    got = [torch.zeros_like(sent[s][rank]) for s in range(size)]
    push.all_to_all(sent[rank], got, max(map(max, sizes)))
    for source in range(size):
        assert torch.equal(got[source], sent[source][rank])


def epochs(push, group, *, num_calls, late_s):
    """Calls of changing forms and sizes, back to back, each rank late now and then: no barrier."""
    lateness = random.Random(group.rank)
    for call in range(num_calls):
        count = (1, 700, 90, 2500)[call % 4]
        held = shards(group.size, count, "bfloat16", seed=call)
        if lateness.random() < 0.3:
            time.sleep(late_s)
        x_N = held[group.rank].clone()
        (push.one_shot, push.two_shot)[call // 2 % 2](x_N, "sum")
        assert torch.equal(x_N, reference_all_reduce(held)[0]), call
    return push._memory.state.tolist()


def missing(push, group, *, absent):
    """What every rank but the absent one is told, with the time that it took."""
    if group.rank == absent:
        return None
    x_N = torch.ones(100)
    push.one_shot(x_N, "sum")
    try:
        push.one_shot(x_N, "sum")
    except KernelError as error:
        return type(error).__name__, str(error), error.ranks
    return "nothing was noticed"


def registered(push, group, *, count):
    """Every algorithm of the transport, as the tuner tries it; int8 against its reference."""
    fabric = SimpleNamespace(group=group, pushes=push)
    for algorithm in of_pushes():
        if "exact" in algorithm.contracts:
            trial = make_trial(fabric, algorithm.operation, count, torch.bfloat16)
            trial.reset()
            trial.run(algorithm)
            assert trial.is_right(), algorithm.name
    held = shards(group.size, count, "bfloat16", seed=3)
    coded = {a.operation: a.run for a in of_pushes() if "int8" in a.contracts}
    x_N = held[group.rank].clone()
    coded["all_reduce"](fabric, x_N, "sum")
    assert torch.equal(x_N, int8_all_reduce(held)[0])
    parts = [held[r].clone() if r == group.rank else torch.zeros(count) for r in range(group.size)]
    parts = [part.to(torch.bfloat16) for part in parts]
    coded["all_gather"](fabric, parts)
    arrived = [torch.zeros(count, dtype=torch.bfloat16) for _ in held]
    coded["all_to_all"](fabric, [held[group.rank]] * group.size, arrived, count)
    out_N = torch.zeros(count, dtype=torch.bfloat16)
    coded["reduce_scatter"](fabric, [held[group.rank]] * group.size, out_N, "sum")
    total_N = torch.zeros(count)
    for part_N, arrived_N in zip(parts, arrived, strict=True):
        assert torch.equal(part_N, arrived_N)
        total_N += part_N.float()
    assert (out_N.float() - total_N).abs().max() <= total_N.abs().max() / 127
    return sorted(coded)


CHECKS = {check.__name__: check for check in (sums, moves, epochs, missing, registered)}


def main(options, pipe):
    torch.set_num_threads(1)
    given = {key: options[key] for key in ("rank", "size", "rendezvous", "timeout_s")}
    group = Group(**given)
    store = store_of_epoch(group, open_root_store(group))
    memory = SharedInboxes(group, store, options["slot_bytes"], options["max_polls"])
    push = Pushes(memory, launch)
    pipe.send({"value": "joined"})
    while task := pipe.recv():
        name, arguments = task
        try:
            answer = {"value": CHECKS[name](push, group, **arguments)}
        except Exception:  # noqa: BLE001 - reported to the test
            answer = {"error": traceback.format_exc()}
        pipe.send(answer)


main(options, pipe)  # noqa: F821 - given by who runs this file
