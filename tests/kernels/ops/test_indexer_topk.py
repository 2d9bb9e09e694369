"""Laws of the indexer: the chosen set, ties, candidates, pages."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.indexer_topk import Candidates, Keys, candidate_blocks, indexer_topk
from kernels.ops.indexer_topk.tiles import SCRATCH_BYTES, runs
from kernels.quantise import FP8_LIMIT

IMPLS = ["torch", *(["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else [])]
few = settings(max_examples=5, deadline=None)


def run(impl, *args, **options):
    """Through the kernel itself: a CPU is not a device that Triton compiles for."""
    if impl == "triton":
        from kernels.ops.indexer_topk.triton_kernel import indexer_topk as kernel

        return kernel(*args, **options, scale=0.25)
    return indexer_topk(*args, **options, scale=0.25, impl=impl)


def blocks_of(impl, *args, num_blocks):
    if impl == "triton":
        from kernels.ops.indexer_topk.triton_kernel import indexer_topk as kernel

        found, _ = kernel(*args, k=num_blocks, scale=0.25, maxima_of=8)
        return Candidates(blocks_TN=found)
    return candidate_blocks(*args, num_blocks=num_blocks, scale=0.25, impl=impl)


def arguments(seed, tokens=2, heads=5, num_keys=61):
    """Small whole numbers: every sum is exact, and equal scores are frequent."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randint(-2, 3, (tokens, heads, 16), generator=generator).float()
    weight = torch.randint(-2, 3, (tokens, heads), generator=generator).float()
    keys = Keys(values_PD=torch.randint(-2, 3, (num_keys, 16), generator=generator).float())
    bound = torch.randint(0, num_keys + 1, (tokens,), generator=generator).int()
    return q, weight, keys, bound


def all_scores(q, weight, keys, bound):
    scores = torch.einsum("th,ths->ts", weight, (q @ keys.values_PD.T).relu()) * 0.25
    position = torch.arange(scores.shape[1])
    return scores.masked_fill(position >= bound[:, None], -torch.inf)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(seed=st.integers(0, 999), k=st.sampled_from([1, 7, 32, 70]))
def test_it_is_the_sorted_top_of_all_scores(impl, seed, k):
    args = arguments(seed)
    index, score = run(impl, *args, k=k)
    truth, order = all_scores(*args).sort(dim=-1, descending=True, stable=True)
    missing = max(0, k - truth.shape[1])
    truth = torch.nn.functional.pad(truth, (0, missing), value=-torch.inf)[:, :k]
    order = torch.nn.functional.pad(order, (0, missing))[:, :k]
    assert torch.equal(score, truth)
    assert torch.equal(index.long(), order.masked_fill(truth == -torch.inf, -1))


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(seed=st.integers(0, 999))
def test_the_set_is_that_of_torch_topk(impl, seed):
    q, weight, keys, bound = arguments(seed)
    weight = weight + torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed))
    bound = bound.clamp(min=9)
    _, score = run(impl, q, weight, keys, bound, k=9)
    best = all_scores(q, weight, keys, bound).topk(9).values
    assert torch.allclose(score, best, atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(seed=st.integers(0, 999))
def test_two_levels_with_all_blocks_are_one(impl, seed):
    args = arguments(seed)
    candidates = blocks_of(impl, *args, num_blocks=8)
    for mine, theirs in zip(
        run(impl, *args, k=11, candidates=candidates), run(impl, *args, k=11), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(seed=st.integers(0, 999), num_blocks=st.integers(1, 5))
def test_the_newest_block_is_a_candidate(impl, seed, num_blocks):
    q, weight, keys, bound = arguments(seed)
    blocks = blocks_of(impl, q, weight, keys, bound, num_blocks=num_blocks).blocks_TN
    for row, limit in zip(blocks.tolist(), bound.tolist(), strict=True):
        found = [block for block in row if block >= 0]
        assert found == sorted(set(found))
        assert len(found) == min(num_blocks, -(-limit // 8))
        assert limit == 0 or (limit - 1) // 8 in found


@pytest.mark.parametrize("impl", IMPLS)
def test_the_best_block_is_a_candidate(impl):
    q, weight, keys, _ = arguments(3)
    bound = torch.full((2,), 61).int()
    best = all_scores(q, weight, keys, bound).argmax(-1)
    blocks = blocks_of(impl, q, weight, keys, bound, num_blocks=2).blocks_TN
    assert all(b // 8 in row for b, row in zip(best.tolist(), blocks.tolist(), strict=True))


@pytest.mark.parametrize("impl", IMPLS)
def test_pages_in_any_order_are_the_keys_in_order(impl):
    q, weight, keys, bound = arguments(4, num_keys=64)
    table = torch.tensor([[5, 2, 7, 0], [1, 3, 6, 4]]).int()
    pool = torch.zeros(8, 16, 16)
    for row in table:
        pool[row.long()] = keys.values_PD.view(4, 16, 16)
    paged = Keys(
        values_PD=pool.view(-1, 16), table_BM=table, sequence_T=torch.tensor([1, 0]).int(),
        page_size=16,
    )  # fmt: skip
    for mine, theirs in zip(
        run(impl, q, weight, paged, bound, k=9), run(impl, q, weight, keys, bound, k=9), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("impl", IMPLS)
def test_runs_of_keys_add_up(impl, monkeypatch):
    q, weight, keys, bound = arguments(5, tokens=3, num_keys=200)
    bound = bound.clamp(min=150)
    whole = run("torch", q, weight, keys, bound, k=20)
    if impl == "triton":
        from kernels.ops.indexer_topk import triton_kernel

        monkeypatch.setattr(triton_kernel, "runs", lambda *_: (2, 64))
    for mine, theirs in zip(run(impl, q, weight, keys, bound, k=20), whole, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("impl", IMPLS)
def test_quantised_keys_count_as_what_they_decode_to(impl):
    q, weight, keys, bound = arguments(6)
    values = torch.randn(keys.values_PD.shape, generator=torch.Generator().manual_seed(1))
    scale = values.abs().amax(-1) / FP8_LIMIT
    quantised = (values / scale[:, None]).to(torch.float8_e4m3fn)
    decoded = Keys(values_PD=quantised.float() * scale[:, None])
    pool = Keys(values_PD=quantised, scales_P=scale)
    found, _ = run(impl, q, weight, pool, bound, k=9)
    assert torch.equal(found, run(impl, q, weight, decoded, bound, k=9)[0])


@given(st.integers(1, 100_000), st.integers(1, 1_000_000))
def test_scores_that_exist_at_a_time_are_bounded(num_tokens, num_positions):
    tokens, positions = runs(num_tokens, num_positions, 128)
    assert tokens * positions * 4 <= SCRATCH_BYTES + 4 * 128 * tokens
    assert positions % 128 == 0


def test_a_table_without_sequences_is_refused():
    q, weight, keys, bound = arguments(0)
    broken = Keys(values_PD=keys.values_PD, table_BM=torch.zeros(1, 4).int(), page_size=16)
    with pytest.raises(ShapeError, match="come together"):
        indexer_topk(q, weight, broken, bound, k=3, scale=1.0)


def test_a_block_that_a_tile_does_not_hold_is_refused():
    with pytest.raises(ShapeError, match="block_size is 12"):
        candidate_blocks(*arguments(0), num_blocks=2, scale=1.0, block_size=12)
