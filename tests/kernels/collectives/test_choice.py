"""Which algorithm runs: by cost, by request, and never in silence."""

import pytest

from kernels.collectives.algorithms import ALGORITHMS
from kernels.collectives.choice import SEED, Question, choose
from kernels.collectives.costs import SEEDS
from kernels.collectives.fabric import DEVICE_TRANSPORTS, TRANSPORTS
from kernels.collectives.group import Group
from kernels.errors import ImplUnavailable, NoImplementation

PAIR = Group(rank=0, size=2, rendezvous="file:///nowhere")
FOUR = Group(rank=0, size=4, rendezvous="file:///nowhere", islands=((0, 1), (2, 3)))


def ask(operation="all_reduce", contract="exact", size_bytes=1 << 20, **more):
    given = {"dtype": "bfloat16", "num_ranks": 2, "size_bytes": size_bytes} | more
    return Question(operation=operation, contract=contract, **given)


def test_the_least_predicted_time_wins_and_the_others_say_theirs():
    algorithm, decision = choose(ask(num_ranks=4), FOUR)
    links = SEEDS[algorithm.transport]
    time_s = algorithm.cost_s(1 << 20, 4, links)
    usable = [a for a in ALGORITHMS if a.operation == "all_reduce" and a.transport in TRANSPORTS]
    assert all(
        a.cost_s(1 << 20, 4, SEEDS[a.transport]) >= time_s for a in usable if "exact" in a.contracts
    )
    assert decision.source == "default"
    assert decision.chosen == algorithm.name
    rejected = {r.candidate: r.reasons for r in decision.rejected}
    assert rejected["gloo/library"] == ("keeps fast, not exact",)
    assert "nccl is not open" in rejected["nccl/gather_sum"]
    assert rejected["gloo/gather_sum"][0].startswith("predicted ")
    assert "seed constants" in decision.evidence


def test_every_operation_has_a_form_under_every_contract():
    for operation in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        for contract in ("exact", "fast", "int8"):
            for transports in (("shm",), ("gloo",), ("tcp",)):
                algorithm, _ = choose(ask(operation, contract), PAIR, transports=transports)
                assert contract in algorithm.contracts


def test_int8_is_never_taken_unasked():
    for algorithm in ALGORITHMS:
        if "int8" in algorithm.name:
            assert algorithm.contracts == ("int8",)
        else:
            assert "int8" not in algorithm.contracts


def test_islands_have_to_be_there():
    with pytest.raises(ImplUnavailable, match="takes two of equal size"):
        choose(ask(), PAIR, asked="shm/island")
    assert choose(ask(num_ranks=4), FOUR, asked="shm/island")[1].source == "explicit"


def test_a_limited_link_leaves_only_algorithms_of_messages():
    slow = Group(rank=0, size=2, rendezvous="file:///nowhere", rate_bytes_s=1e6)
    algorithm, decision = choose(ask(), slow)
    assert algorithm.name in ("shm/pairwise", "shm/chain")
    assert any("link is limited" in reason for r in decision.rejected for reason in r.reasons)


def test_device_forms_say_that_nothing_verified_them():
    algorithm, decision = choose(ask(device="cuda"), PAIR, transports=DEVICE_TRANSPORTS)
    assert algorithm.transport in DEVICE_TRANSPORTS
    assert "unverified" in decision.evidence
    rejected = {r.candidate: r.reasons for r in decision.rejected}
    assert "flashinfer is not open" not in rejected["flashinfer/all_reduce"]
    assert "not installed" in rejected["b12x"]
    with pytest.raises(NoImplementation, match="moves cpu tensors, not cuda ones"):
        choose(ask(device="cuda"), PAIR)


def test_values_that_an_algorithm_does_not_take_are_refused():
    for given, reason in (
        ({"dtype": "float32"}, "takes bfloat16, float16, not float32"),
        ({"reduction": "max"}, "joins by sum, not by max"),
        ({"num_ranks": 3}, "3 ranks: it takes 2, 4, 8"),
    ):
        group = Group(rank=0, size=given.get("num_ranks", 2), rendezvous="file:///nowhere")
        question = ask(device="cuda", contract="fast", **({"dtype": "bfloat16"} | given))
        decision = choose(question, group, transports=DEVICE_TRANSPORTS)[1]
        rejected = {r.candidate: r.reasons for r in decision.rejected}
        assert reason in rejected["flashinfer/all_reduce"]


def test_the_digest_follows_what_decides():
    from dataclasses import replace

    other = replace(SEED, chosen={("all_reduce", "exact", 1024): "shm/chain"})
    assert other.digest != SEED.digest
    assert replace(SEED, evidence="elsewhere").digest == SEED.digest


@pytest.mark.parametrize(
    "broken",
    [
        {"rank": 2},
        {"epoch": -1},
        {"timeout_s": 0},
        {"rendezvous": "here"},
        {"islands": ((1, 0),)},
        {"rate_bytes_s": 0},
    ],
)
def test_a_group_out_of_bounds_is_refused(broken):
    with pytest.raises(ValueError, match=r"\w"):
        Group(**({"rank": 0, "size": 2, "rendezvous": "file:///nowhere"} | broken))
