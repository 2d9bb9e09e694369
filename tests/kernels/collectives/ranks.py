"""One rank as a process: joins a group and carries out the checks that its test names.

Run with `options` (what the rank joins) and `pipe` (tasks in, answers out) in its globals.
"""

import os
import signal
import time
import traceback
import zlib
from dataclasses import asdict, replace

import torch

from kernels.collectives.algorithms import ALGORITHMS, algorithms_for
from kernels.collectives.calls import dtype_name
from kernels.collectives.choice import SEED
from kernels.collectives.communicator import join
from kernels.collectives.errors import CollectiveError, MismatchedCall
from kernels.collectives.group import Group
from kernels.collectives.int8 import reference_all_reduce as int8_all_reduce
from kernels.collectives.reduction import reference_all_reduce, reference_reduce_scatter
from kernels.collectives.schedules import builders
from kernels.collectives.schedules.threads import run_serially, run_threads
from kernels.collectives.sentinel import Sentinel
from kernels.collectives.tuning.links import fit_links
from kernels.collectives.tuning.probe import Case, measure
from kernels.collectives.tuning.trials import OPERATIONS
from kernels.errors import KernelError
from kernels.ledger import Ledger

DTYPES = {dtype_name(d): d for d in (torch.float32, torch.bfloat16, torch.float16, torch.int64)}


def shards(size, shape, dtype, seed=0):
    """What every rank holds; every rank can make all of them."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(size, *shape, generator=generator) * 10
    return list(made.to(DTYPES[dtype]).unbind())


def keeping(comm, operation, contract):
    return [
        a.name
        for a in algorithms_for(operation)
        if contract in a.contracts
        and a.transport in comm.fabric.transports
        and a.unmet(comm.group) is None
    ]


def bits(x):
    return zlib.crc32(x.contiguous().view(torch.uint8).numpy().tobytes())


def exact_all_reduce(comm, *, dtype, count, reduction):
    """Every exact form gives the bits of the reference: repeated, on every rank, cut in two."""
    held = shards(comm.group.size, (count,), dtype, seed=count)
    want = reference_all_reduce(held, reduction)[0]
    for name in keeping(comm, "all_reduce", "exact"):
        for _ in range(2):
            x = held[comm.group.rank].clone()
            comm.all_reduce(x, reduction=reduction, algorithm=name)
            assert torch.equal(x, want), name
        x = held[comm.group.rank].clone()
        for part in x.tensor_split((count // 3,)):
            comm.all_reduce(part, reduction=reduction, algorithm=name)
        assert torch.equal(x, want), f"{name} in two pieces"
    return len(keeping(comm, "all_reduce", "exact"))


def back_to_back(comm, *, num_calls):
    """Calls of one round and of several, through the same slots, with ranks out of step."""
    rank, size = comm.group.rank, comm.group.size
    generator = torch.Generator().manual_seed(rank)
    for call in range(num_calls):
        count = (5, 300_001, 40_000, 700_003)[call % 4]
        held = shards(size, (count,), "bfloat16", seed=call)
        if torch.rand((), generator=generator) < 0.5:
            time.sleep(0.002)
        name = ("shm/two_shot", "shm/two_shot", "shm/one_shot")[call % 3]
        x = comm.all_reduce(held[rank].clone(), algorithm=name)
        assert torch.equal(x, reference_all_reduce(held)[0]), (call, name)
        if call % 5 == 0:
            gathered = comm.all_gather(held[rank], algorithm="shm/direct")
            assert torch.equal(gathered, torch.cat(held)), call


def moves(comm, *, dtype):
    """Gathers, scatters, all-to-alls and broadcasts of uneven sizes, by every form."""
    rank, size = comm.group.rank, comm.group.size
    rows = [(5 * r + 3) % 7 for r in range(size)]
    for name in keeping(comm, "all_gather", "exact"):
        mine = [torch.full((rows[r], 3), r, dtype=DTYPES[dtype]) for r in range(size)]
        assert torch.equal(comm.all_gather(mine[rank], algorithm=name), torch.cat(mine)), name
    held = shards(size, (sum(rows), 3), dtype)
    for name in keeping(comm, "reduce_scatter", "exact"):
        got = comm.reduce_scatter(held[rank], rows, algorithm=name)
        assert torch.equal(got, reference_reduce_scatter(held, rows)[rank]), name
    for name in keeping(comm, "broadcast", "exact"):
        for root in range(size):
            x = held[rank].clone()
            assert torch.equal(comm.broadcast(x, root, algorithm=name), held[root]), name
    for name in keeping(comm, "all_to_all", "exact"):
        sizes = [[(s + 2 * r) % 4 for r in range(size)] for s in range(size)]
        sent = [
            [torch.full((n, 2), 10 * s + r) for r, n in enumerate(sizes[s])] for s in range(size)
        ]
        sent = [[part.to(DTYPES[dtype]) for part in row] for row in sent]
        got, arriving = comm.all_to_all(torch.cat(sent[rank]), sizes[rank], algorithm=name)
        assert arriving == [sizes[s][rank] for s in range(size)], name
        assert torch.equal(got, torch.cat([sent[s][rank] for s in range(size)])), name


def fast(comm, *, dtype, count):
    """The library's and the ring's sums, against float64; identical on all ranks."""
    held = shards(comm.group.size, (count,), dtype, seed=count)
    exact = torch.stack(held).double().sum(0)
    roundings = comm.group.size * torch.finfo(DTYPES[dtype]).eps
    bound = torch.stack(held).double().abs().sum(0) * roundings
    seen = {}
    for name in keeping(comm, "all_reduce", "fast"):
        x = comm.all_reduce(held[comm.group.rank].clone(), contract="fast", algorithm=name)
        assert ((x.double() - exact).abs() <= bound).all(), name
        seen[name] = bits(x)
    parts = comm.reduce_scatter(held[comm.group.rank], contract="fast", algorithm="shm/ring")
    mine = exact.tensor_split(comm.group.size)[comm.group.rank]
    limit = bound.tensor_split(comm.group.size)[comm.group.rank]
    assert ((parts.double() - mine).abs() <= limit).all()
    return seen


def int8(comm, *, dtype, count):
    """The reference's bits, on every rank; within the blocks' steps of float64."""
    rank, size = comm.group.rank, comm.group.size
    held = shards(size, (count,), dtype, seed=count)
    want = int8_all_reduce(held)[0]
    exact = torch.stack(held).double().sum(0)
    largest = torch.stack(held).double().abs().max() if count else torch.zeros(())
    step = largest / 127 * 1.01
    bound = step / 2 * size + (exact.abs().max() if count else 0) / 127 + 0.004 * exact.abs()
    for name in keeping(comm, "all_reduce", "int8"):
        x = comm.all_reduce(held[rank].clone(), contract="int8", algorithm=name)
        assert torch.equal(x, want), name
        assert ((x.double() - exact).abs() <= bound).all(), name
    gathered = comm.all_gather(held[rank], contract="int8")
    owned = gathered.split(count)[rank] if count else gathered
    assert ((owned.double() - held[rank].double()).abs() <= step * 0.51 + 0.004 * step * 127).all()
    scattered = comm.reduce_scatter(held[rank], contract="int8")
    mine = exact.tensor_split(size)[rank]
    limit = step / 2 * size + 0.004 * mine.abs()
    assert ((scattered.double() - mine).abs() <= limit).all()
    return bits(x), bits(gathered)


def letters(comm):
    """Sends, receives and swaps; a wrong shape is named and the next letter arrives."""
    rank, size = comm.group.rank, comm.group.size
    right, left = (rank + 1) % size, (rank - 1) % size
    x = torch.arange(400_000) + rank
    got = comm.swap(x, right, torch.empty_like(x), left)
    assert torch.equal(got, torch.arange(400_000) + left)
    if rank == 0:
        comm.send(torch.ones(2, 3), 1)
        comm.send(torch.ones(4), 1)
    if rank == 1:
        try:
            comm.receive(torch.empty(6), 0)
        except MismatchedCall as error:
            assert torch.equal(comm.receive(torch.empty(4), 0), torch.ones(4))
            return f"{type(error).__name__}: {error}"
        raise AssertionError("the wrong shape was taken")
    return ""


def background(comm):
    """Operations issued in the background run in order, also before those that are waited for."""
    rank = comm.group.rank
    handles = [comm.start(comm.all_reduce, torch.full((1000,), float(i + rank))) for i in range(5)]
    total = comm.all_reduce(torch.ones(3))
    assert all(handle.is_done() for handle in handles)
    size = comm.group.size
    for i, handle in enumerate(handles):
        expected = i * size + size * (size - 1) / 2
        assert handle.wait()[0] == expected
    assert total[0] == size


def refusals(comm):
    """Bad calls are refused on every rank and the group stays usable."""
    said = []
    for bad in (
        lambda: comm.all_reduce(torch.ones(3, dtype=torch.float64)),
        lambda: comm.all_reduce(torch.ones(3, dtype=torch.int8)),
        lambda: comm.all_reduce(torch.ones(3, dtype=torch.int64), contract="int8"),
        lambda: comm.all_reduce(torch.ones(3), algorithm="gloo/library"),
        lambda: comm.all_reduce(torch.ones(3), algorithm="nothing"),
        lambda: comm.reduce_scatter(torch.ones(3), [1, 1]),
        lambda: comm.all_to_all(torch.ones(3), [4, -1]),
        lambda: comm.broadcast(torch.ones(3), 9),
        lambda: comm.send(torch.ones(3), comm.group.rank),
        lambda: comm.all_reduce(torch.ones(3 + comm.group.rank)),
        lambda: comm.all_reduce(torch.ones(3).to(torch.bfloat16 if comm.group.rank else None)),
        lambda: comm.broadcast(torch.ones(3), comm.group.rank),
    ):
        try:
            bad()
        except KernelError as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("taken")
    assert comm.all_reduce(torch.ones(1))[0] == comm.group.size
    return said


def strided(comm):
    """Values that do not lie together are reduced in place all the same."""
    whole = torch.zeros(6, 4)
    comm.all_reduce(whole.t()[1:3].add_(1))
    assert torch.equal(whole.t()[1:3], torch.full((2, 6), float(comm.group.size)))
    assert whole.sum() == 12 * comm.group.size


def decisions(comm):
    """The ledger's lines, the same on every rank."""
    comm.all_reduce(torch.ones(8))
    comm.all_reduce(torch.ones(1 << 18))
    return [f"{d.what} {d.case} -> {d.chosen} ({d.source})" for d in comm.ledger]


def fail(comm, *, how, victim, algorithm="shm/two_shot", wait_s=0.0, is_warm=True):
    """The victim dies, stops or dawdles; the others say what they were told, and how fast."""
    contract = "fast" if algorithm == "gloo/library" else "exact"
    x = torch.ones(1000)
    if is_warm:
        comm.all_reduce(x, algorithm=algorithm, contract=contract)
    if comm.group.rank == victim:
        if how in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, how))
        time.sleep(wait_s)
    begin_s = time.monotonic()
    try:
        comm.all_reduce(x, algorithm=algorithm, contract=contract)
    except CollectiveError as error:
        took_s = time.monotonic() - begin_s
        try:
            comm.barrier()
        except CollectiveError as again:
            return type(error).__name__, str(error), took_s, f"{type(again).__name__}: {again}"
        raise AssertionError("a broken group went on") from error
    return "done", "", time.monotonic() - begin_s, ""


def overlapped(comm, *, num_layers, rows, width):
    """A stack of layers in two chunks of rows: threads against the same nodes one by one."""
    work = builders.LayerWork(attention_s=1e-3, mlp_s=1e-3, wire_bytes=rows * width * 4)
    schedule = builders.token_split(comm.group.size, [work] * num_layers)
    generator = torch.Generator().manual_seed(comm.group.rank)
    weights = torch.randn(num_layers, 2, width, width, generator=generator) / width
    start = torch.randn(rows, width, generator=torch.Generator().manual_seed(9))
    results, runs, kept = [], None, {}
    for run in (run_serially, run_threads):
        chunks = [chunk.clone() for chunk in start.tensor_split(2)]

        def actions(chunks=chunks):
            for node in schedule.nodes:
                if node.rank != comm.group.rank:
                    continue
                part, layer, chunk = node.name.removeprefix("reduce_").split(".")
                yield node.name, action(chunks, node, part == "mlp", int(layer), int(chunk))

        def action(chunks, node, is_mlp, layer, chunk):
            if node.kind == "collective":
                return lambda: comm.all_reduce(chunks[chunk])
            if is_mlp:
                weight = weights[layer, 1]
                return lambda: chunks[chunk].copy_(torch.tanh(chunks[chunk] @ weight))

            def attend():
                kept[layer, chunk] = chunks[chunk].mean(0)
                seen = torch.stack([kept[layer, earlier] for earlier in range(chunk + 1)])
                chunks[chunk].copy_((chunks[chunk] + seen.mean(0)) @ weights[layer, 0])

            return attend

        runs = run(schedule, comm.group.rank, dict(actions()))
        results.append(torch.cat(chunks))
    wire = [ran.node.name for ran in runs if ran.node.stream == "wire"]
    return {"is_equal": torch.equal(*results), "order": wire}


def measured(comm, *, size_bytes):
    """Entries of every operation, and fitted links: the same on all ranks."""
    told = []
    entries = [
        asdict(
            measure(
                comm,
                Case(op=op, contract="exact", dtype=torch.bfloat16, size_bytes=size_bytes),
                5,
                {"shm/chain": "left out"},
                told.append,
            )
        )
        for op in OPERATIONS
    ]
    links = {name: asdict(fitted) for name, fitted in fit_links(comm, 3)}
    return {"entries": entries, "links": links, "told": told}


def drifting(comm):
    """A table that promises too much: every rank falls back at the same call."""
    key = ("all_reduce", "exact", 1 << 10)
    knowledge = replace(SEED, chosen={key: "shm/chain"}, times_us={key: 1e-3})
    conductor = comm._conductor
    conductor.knowledge, before = knowledge, conductor.knowledge
    conductor._sentinel, kept = Sentinel(knowledge, every=2, window=3), conductor._sentinel
    conductor._chosen.clear()
    x = torch.zeros(256)
    seen = []
    for _ in range(8):
        comm.all_reduce(x)
        seen.append(next(iter(conductor._chosen.values())).name)
    conductor.knowledge, conductor._sentinel = before, kept
    conductor._chosen.clear()
    return seen, [d.reasons[0] for d in comm.ledger if "drift" in d.what]


def staged_copies(comm):
    """The staged form's own part, on host tensors: copies down, the exchange, copies up."""
    rank, size = comm.group.rank, comm.group.size
    held = shards(size, (1000,), "bfloat16")
    staged = {a.operation: a for a in ALGORITHMS if a.name == "staged/direct"}
    x = held[rank].clone()
    next(a for a in ALGORITHMS if a.name == "staged/two_shot").run(comm.fabric, x, "sum")
    assert torch.equal(x, reference_all_reduce(held)[0])
    parts = [held[rank][:500].clone(), held[rank][500:].clone()]
    out = torch.empty_like(parts[rank])
    staged["reduce_scatter"].run(comm.fabric, parts, out, "sum")
    assert torch.equal(out, reference_reduce_scatter(held, [500, 500])[rank])
    gathered = [held[0].clone() if rank == r else torch.empty_like(x) for r in range(size)]
    staged["all_gather"].run(comm.fabric, gathered)
    assert all(torch.equal(part, held[0]) for part in gathered)


def hidden(comm, *, step_s, num_layers):
    """How many exchanges computation ran beside, of blocking and overlapped layers that sleep."""
    count = int(step_s / 2 * comm.group.rate_bytes_s / 4)
    size, found = comm.group.size, []
    work = builders.LayerWork(attention_s=step_s, mlp_s=step_s, wire_bytes=4 * count)
    for build in (builders.blocking_layers, builders.token_split):
        schedule = build(size, [work] * num_layers)
        own = [node for node in schedule.nodes if node.rank == comm.group.rank]

        def action(node):
            if node.kind == "compute":
                return lambda: time.sleep(node.duration_s)
            x = torch.ones(node.size_bytes // 4)
            return lambda: comm.all_reduce(x, algorithm="shm/pairwise")

        comm.barrier()
        ran = run_threads(schedule, comm.group.rank, {node.name: action(node) for node in own})
        busy = [r for r in ran if r.node.kind == "compute"]
        wire = [r for r in ran if r.node.kind == "collective"]
        beside = (any(b.begin_s < w.end_s and w.begin_s < b.end_s for b in busy) for w in wire)
        found.append(sum(beside))
    return found


CHECKS = {
    f.__name__: f
    for f in (
        *(
            exact_all_reduce,
            back_to_back,
            moves,
            fast,
            int8,
            letters,
            background,
            refusals,
            strided,
        ),
        *(decisions, fail, overlapped, measured, drifting, hidden, staged_copies),
    )
}


def main(options, pipe):
    torch.set_num_threads(1)
    extra = {"slot_bytes": options.pop("slot_bytes"), "transports": options.pop("transports")}
    ledger = Ledger()
    try:
        comm = join(Group(**options), ledger=ledger, **extra)
    except CollectiveError as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    pipe.send({"value": "joined"})
    while task := pipe.recv():
        name, arguments = task
        try:
            answer = {"value": CHECKS[name](comm, **arguments)}
        except Exception:  # noqa: BLE001 - reported to the test
            answer = {"error": traceback.format_exc()}
        pipe.send(answer)
    comm.close()


main(options, pipe)  # noqa: F821 - given by who runs this file
