"""Laws of the sampler."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.sampler import Draws, Penalties, sampler
from kernels.ops.sampler.cpu import sampler as on_cpu
from kernels.ops.sampler.philox import philox, uniforms
from kernels.ops.sampler.reference import lowest_kept
from kernels.ops.sampler.reference import sampler as reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
seeds = st.integers(0, 2**20)


def logits_of(seed, rows, vocabulary, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(rows, vocabulary, generator=generator)


def draws_of(rows, temperature=1.0, seed=0, **tops):
    return Draws(
        temperature=torch.full((rows,), temperature),
        seed=torch.full((rows,), seed),
        counter=torch.arange(rows),
        **{
            name: torch.full((rows,), value, dtype=torch.int32 if name == "top_k" else None)
            for name, value in tops.items()
        },
    )


# Known answers of the Random123 library.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers(counter, key, words):
    c0, c1, c2, c3 = torch.tensor(counter)
    k0, k1 = torch.tensor(key)
    out = philox((c0, c1, c2, c3), (k0, k1))
    assert [int(word) for word in out] == words


@given(seed=st.integers(-(2**63), 2**63 - 1), counter=st.integers(0, 2**62))
@settings(max_examples=20, deadline=None)
def test_a_part_of_the_numbers_is_a_part_of_the_whole(seed, counter):
    key = torch.tensor([[seed]]), torch.tensor([[counter]])
    row = uniforms(*key, 123)
    assert row.shape == (1, 123)
    assert torch.equal(uniforms(*key, 32, first_B1=torch.tensor([[64]])), row[:, 64:96])
    assert not torch.equal(uniforms(*key, 123, stream=1), row)
    assert ((row > 0) & (row < 1)).all()


def chi_square(tokens, probabilities):
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    return float(((counts - expected).square() / expected)[expected > 0].sum())


def test_draws_follow_the_softmax():
    """37.7 is the 99.9 % quantile of chi-square with 15 degrees of freedom."""
    logits = logits_of(1, 1, 16, spread=1.0).expand(20000, 16)
    tokens, _ = reference(logits, draws_of(20000, temperature=0.8, seed=42))
    assert chi_square(tokens, (logits[0] / 0.8).softmax(-1)) < 37.7


def test_draws_follow_the_softmax_of_the_tokens_kept():
    """24.3 is the 99.9 % quantile of chi-square with 7 degrees of freedom."""
    logits = logits_of(2, 1, 400, spread=1.0).expand(20000, 400)
    tokens, _ = on_cpu(logits, draws_of(20000, seed=43, top_k=8))
    is_kept = logits[0] >= logits[0].topk(8).values[-1]
    assert chi_square(tokens, logits[0].masked_fill(~is_kept, float("-inf")).softmax(-1)) < 24.3


@pytest.mark.parametrize("run", [on_cpu, reference])
@given(seed=seeds, rows=st.integers(2, 6))
@settings(max_examples=20, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(run, seed, rows):
    generator = torch.Generator().manual_seed(seed)
    logits, order = logits_of(seed, rows, 50), torch.randperm(rows, generator=generator)
    draws = Draws(
        temperature=torch.rand(rows, generator=generator).round(decimals=1),
        seed=torch.randint(0, 2**40, (rows,), generator=generator),
        counter=torch.arange(rows),
        top_k=torch.randint(0, 9, (rows,), generator=generator).int(),
        top_p=0.5 + torch.rand(rows, generator=generator),
    )
    tokens, logprobs = run(logits, draws)
    again, logprobs_again = run(logits[order], draws.take(order))
    assert torch.equal(again, tokens[order])
    torch.testing.assert_close(logprobs_again, logprobs[order])
    alone = [run(logits[i : i + 1], draws.take(torch.tensor([i])))[0].item() for i in range(rows)]
    assert alone == tokens.tolist()


@given(
    seed=seeds,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 300, 600]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
    spread=st.sampled_from([0.1, 3.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_cpu_form_draws_what_the_reference_draws(
    seed, temperature, top_k, top_p, min_p, spread
):
    logits = logits_of(seed, 3, 600, spread)
    draws = draws_of(3, temperature, seed, top_k=top_k, top_p=top_p, min_p=min_p)
    mine, theirs = on_cpu(logits, draws), reference(logits, draws)
    assert torch.equal(mine[0], theirs[0])
    torch.testing.assert_close(mine[1], theirs[1])


@given(seed=seeds, top_k=st.integers(1, 40), top_p=st.floats(0.05, 0.99))
@settings(max_examples=40, deadline=None)
def test_the_tokens_kept_are_the_smallest_set_that_suffices(seed, top_k, top_p):
    logits = logits_of(seed, 1, 40).round()  # rounding makes ties
    scaled = logits - logits.amax()
    mask = (scaled >= lowest_kept(scaled, draws_of(1, top_k=top_k)))[0]
    assert mask.sum() >= top_k
    assert (scaled[0] > scaled[0][mask].min()).sum() < top_k
    mask = (scaled >= lowest_kept(scaled, draws_of(1, top_p=top_p)))[0]
    probabilities = scaled[0].double().softmax(-1)
    lowest = probabilities[mask].min()
    assert probabilities[mask].sum() >= top_p - 1e-6
    assert probabilities[probabilities > lowest].sum() < top_p + 1e-6


def test_blocks_are_drawn_by_their_mass():
    """24.3 is the 99.9 % quantile of chi-square with 7 degrees of freedom."""
    logits = logits_of(3, 1, 1000, spread=1.0).expand(5000, 1000)
    tokens, _ = on_cpu(logits, draws_of(5000, seed=44))
    masses = torch.nn.functional.pad(logits[0].softmax(-1), (0, 24)).view(8, 128).sum(-1)
    assert chi_square(tokens // 128, masses) < 24.3


def test_greedy_rows_and_a_single_candidate_take_the_maximum():
    logits = logits_of(4, 5, 90)
    for draws in (draws_of(5, 0.0), draws_of(5, top_k=1), draws_of(5, top_p=0.0)):
        tokens, logprobs = sampler(logits, draws)
        assert torch.equal(tokens, logits.argmax(-1))
        torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1))


@pytest.mark.parametrize("run", [on_cpu, reference])
def test_banned_tokens_are_never_drawn_and_unsound_rows_say_so(run):
    logits = logits_of(5, 300, 8)
    bias = torch.zeros(300, 8)
    bias[:, 2:] = float("-inf")
    bias[7] = float("-inf")
    logits[9, 3] = float("nan")
    tokens, logprobs = run(logits, draws_of(300), None, bias)
    assert tokens[7] == tokens[9] == -1
    assert logprobs[[7, 9]].isnan().all()
    assert set(tokens.tolist()) == {-1, 0, 1}


def test_penalties_act_on_what_was_said():
    logits = torch.tensor([[2.0, 1.9, 1.8, -1.0]])
    penalties = Penalties(
        repetition=torch.tensor([1.5]),
        presence=torch.tensor([0.1]),
        frequency=torch.tensor([0.2]),
        prompt=torch.tensor([[True, False, False, False]]),
        counts=torch.tensor([[0, 2, 0, 0]], dtype=torch.int32),
    )
    tokens, _ = sampler(logits, draws_of(1, 0.0), penalties)
    assert tokens.item() == 2


@pytest.mark.skipif(not INTERPRETED, reason="Triton's interpreter is off")
def test_the_kernel_draws_what_the_reference_draws():
    from kernels.ops.sampler.triton_kernel import sampler as launch

    logits = logits_of(6, 8, 64, spread=0.2)
    logits[3, 5] = float("nan")
    draws = draws_of(8, seed=-5, top_k=40, top_p=0.9, min_p=0.3)
    mine, theirs = launch(logits, draws), reference(logits, draws)
    assert torch.equal(mine[0], theirs[0])
    torch.testing.assert_close(mine[1], theirs[1], equal_nan=True)
