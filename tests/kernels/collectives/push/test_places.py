"""Where pushing is offered, how messages are cut, and what inboxes hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.collectives.choice import SEED, Question, choose
from kernels.collectives.fabric import DEVICE_TRANSPORTS
from kernels.collectives.group import Group
from kernels.collectives.push.device import unmet_push_on
from kernels.collectives.push.layout import CHANNELS, Inbox, rounds_of, word_bytes
from kernels.errors import ImplUnavailable
from kernels.hardware.traits import family_names, load_traits

FAMILIES = [load_traits(name) for name in family_names()]


@pytest.mark.parametrize("traits", FAMILIES, ids=lambda traits: traits.name)
def test_a_family_is_offered_pushes_by_its_traits_or_told_why_not(traits):
    reason = unmet_push_on(traits)
    if traits.backend == "cuda" and traits.triton == "yes" and traits.custom_allreduce:
        assert (reason is None) == (traits.symmetric_memory is not False)
    else:
        assert reason is not None
        assert traits.name in reason


def test_nvidia_is_offered_and_amd_is_told_about_flags():
    assert unmet_push_on(load_traits("sm_89")) is None
    assert unmet_push_on(load_traits("sm_120")) is None
    assert "NVIDIA's assembly" in str(unmet_push_on(load_traits("gfx942")))


def test_a_decision_for_pushes_says_that_they_are_unverified():
    question = Question(
        operation="all_reduce", contract="exact", size_bytes=8192, dtype="bfloat16", num_ranks=4,
        device="cuda",
    )  # fmt: skip
    group = Group(rank=0, size=4, rendezvous="file:///unused")
    chosen, decision = choose(question, group, transports=DEVICE_TRANSPORTS, asked="push/one_shot")
    assert (chosen.transport, chosen.contracts) == ("push", ("exact", "fast"))
    assert "unverified on devices" in decision.evidence
    with pytest.raises(ImplUnavailable, match="push is not open"):
        choose(question, group, transports=("nccl",), asked="push/one_shot")
    many = Group(rank=0, size=16, rendezvous="file:///unused")
    with pytest.raises(ImplUnavailable, match="16 ranks: its loop over ranks is unrolled for 8"):
        choose(question, many, transports=DEVICE_TRANSPORTS, asked="push/one_shot")


@pytest.mark.parametrize("contract", ["exact", "fast"])
@pytest.mark.parametrize("size_bytes", [8192, 1 << 19, 1 << 23])
def test_kernels_that_wait_on_the_device_are_not_taken_unmeasured(contract, size_bytes):
    question = Question(
        operation="all_reduce", contract=contract, size_bytes=size_bytes, dtype="bfloat16",
        num_ranks=4, device="cuda",
    )  # fmt: skip
    group = Group(rank=0, size=4, rendezvous="file:///unused")
    chosen = choose(question, group, transports=DEVICE_TRANSPORTS)[0]
    assert chosen.transport not in ("push", "flashinfer")
    measured = {("all_reduce", contract, question.bucket_bytes): "push/two_shot"}
    tuned = replace(SEED, chosen=measured)
    decision = choose(question, group, transports=DEVICE_TRANSPORTS, knowledge=tuned)[1]
    assert (decision.chosen, decision.source) == ("push/two_shot", "tuned")


@given(longest=st.integers(1, 1 << 24), slot=st.integers(1, 1 << 14))
def test_rounds_cover_a_message_with_pieces_that_fit(longest, slot):
    rounds = rounds_of(longest, 16 * slot)
    covered = rounds.num_channels * rounds.piece_bytes
    assert 1 <= rounds.num_channels <= CHANNELS
    assert rounds.piece_bytes % 16 == 0
    assert rounds.piece_bytes <= 16 * slot
    assert covered * (rounds.num_rounds - 1) < longest <= covered * rounds.num_rounds


@given(st.lists(st.integers(0, 1 << 48), min_size=1))
def test_a_word_divides_every_address_and_size(numbers):
    word = word_bytes(numbers)
    assert word in (1, 2, 4, 8)
    assert all(number % word == 0 for number in numbers)


def test_slots_of_an_odd_size_are_refused():
    with pytest.raises(ValueError, match="slot of 24 B: a multiple of 16"):
        Inbox(num_ranks=2, slot_bytes=24)
    inbox = Inbox(num_ranks=8, slot_bytes=64)
    assert inbox.size_bytes == inbox.first_slot + 2 * CHANNELS * 8 * 64
    assert inbox.first_slot >= CHANNELS * 8 * 8
