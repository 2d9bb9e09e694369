"""Which transports ranks open between their devices, by what each knows of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kernels.collectives.choice import SEED
from kernels.collectives.device_transports import DeviceFacts, agree_transports, choose_transports
from kernels.collectives.fabric import DEVICE_TRANSPORTS
from kernels.collectives.group import Group
from kernels.collectives.letters import Letters
from kernels.collectives.library import sends_first
from kernels.collectives.link import Message
from kernels.errors import NoImplementation
from kernels.ledger import Ledger

DEAF = "device 0 has no access to the memory of devices 1: takes staged"
NO_NCCL = "this build of torch has no NCCL or RCCL"
MEASURED = replace(SEED, chosen={("all_reduce", "exact", 8192): "push/one_shot"})


def facts(*closed: dict[str, str], identities: str = "abcdefgh") -> list[DeviceFacts]:
    return [DeviceFacts(identities[i], each) for i, each in enumerate(closed)]


@pytest.mark.parametrize(
    ("ranks", "knowledge", "wanted"),
    [
        (facts({}, {}), SEED, ("nccl", "peer", "staged")),
        (facts({}, {}), MEASURED, ("nccl", "peer", "push", "staged")),
        (facts({"peer": DEAF, "push": DEAF}, {}), MEASURED, ("nccl", "staged")),
        (facts({"nccl": NO_NCCL}, {"peer": DEAF}), SEED, ("staged",)),
        (facts({}, {}, identities="aa"), MEASURED, ("staged",)),
    ],
)
def test_what_every_rank_can_have_is_opened_and_the_rest_says_why(ranks, knowledge, wanted) -> None:
    is_open, decision = choose_transports(ranks, knowledge)
    assert is_open == wanted
    assert decision.chosen == ", ".join(wanted)
    rejected = {r.candidate: " ".join(r.reasons) for r in decision.rejected}
    assert set(rejected) == set(DEVICE_TRANSPORTS) - set(wanted)
    assert "unverified" in decision.evidence
    for rank, each in enumerate(ranks):
        for name, reason in each.closed.items():
            assert f"on rank {rank}: {reason}" in rejected[name]
    if "push" not in wanted and knowledge is SEED:
        assert "lanewise tune --device cuda" in rejected["push"]


def test_ranks_of_one_device_share_it_by_name() -> None:
    _, decision = choose_transports(facts({}, {}, {}, identities="aba"), SEED)
    rejected = {r.candidate: r.reasons for r in decision.rejected}
    assert rejected["nccl"] == ("ranks 0, 2 share a device",)
    assert decision.reasons[0].startswith("through the host's memory alone")


def test_ranks_without_a_transport_in_common_are_refused_with_every_reason() -> None:
    nothing = dict.fromkeys(DEVICE_TRANSPORTS, "torch sees no device")
    with pytest.raises(
        NoImplementation, match=r"of 2 ranks: nccl: on rank 1: torch sees no device"
    ):
        choose_transports(facts({}, nothing), SEED)


def test_ranks_that_know_different_things_agree() -> None:
    store = dist.HashStore()
    known = facts({"peer": DEAF}, {"nccl": NO_NCCL})

    def rank(index: int) -> Any:
        group = Group(rank=index, size=2, rendezvous="file:///unused", timeout_s=30)
        return agree_transports(group, store, known[index], SEED)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(rank, range(2))
    assert first == second
    assert first[0] == ("staged",)


@pytest.mark.parametrize("size", range(2, 8))
@pytest.mark.parametrize("by", range(1, 7))
def test_messages_of_one_stream_never_wait_in_a_circle(size: int, by: int) -> None:
    """Every rank sends `by` ranks on and receives; both go in order, and only a pair moves on."""
    if by >= size:
        return
    todo = []
    for rank in range(size):
        to, source = (rank + by) % size, (rank - by) % size
        both = [("send", rank, to), ("receive", source, rank)]
        todo.append(both if sends_first(rank, to) else both[::-1])
    while any(todo):
        met = [
            (a, b)
            for a in range(size)
            for b in range(size)
            if todo[a] and todo[b] and todo[a][0] == ("send", a, b) and todo[b][0][1:] == (a, b)
            and todo[b][0][0] == "receive"
        ]  # fmt: skip
        assert met, todo
        for a, b in met:
            todo[a].pop(0)
            todo[b].pop(0)


def test_payloads_of_devices_go_through_the_host_where_nothing_else_carries_them(
    in_threads: Any,
) -> None:
    """As a device's are moved; the ledger says so at the first one."""
    arrived = [torch.zeros(5), torch.zeros(5)]
    ledgers = [Ledger(), Ledger()]

    def rank(link: Any) -> None:
        group = Group(rank=link.rank, size=2, rendezvous="file:///unused")
        transports = ("shm", "staged", "peer")
        fabric: Any = SimpleNamespace(
            group=group, transports=transports, channel=link, sockets=None, libraries={}
        )
        letters = Letters(fabric, ledgers[link.rank])
        other = 1 - link.rank
        letters._tell(letters._linked("cuda"))
        out = Message(torch.full((5,), float(link.rank)), other)
        letters._move_staged(out, Message(arrived[link.rank], other))

    in_threads(2, rank)
    assert [x.tolist() for x in arrived] == [[1.0] * 5, [0.0] * 5]
    (decision,) = ledgers[0]
    assert decision.chosen == "staged, over shm"
    assert "unverified" in decision.evidence


def test_a_link_between_devices_is_taken_where_there_is_one() -> None:
    group = Group(rank=0, size=2, rendezvous="file:///unused")
    fabric: Any = SimpleNamespace(group=group, transports=("shm", "gloo", "nccl", "staged"))
    letters = Letters(fabric, ledger := Ledger())
    assert (letters._linked("cpu"), letters._linked("cuda")) == ("shm", "nccl")
    letters._tell("nccl")
    (decision,) = ledger
    assert decision.chosen == "nccl"
    assert decision.rejected[0].candidate == "staged, over shm"
