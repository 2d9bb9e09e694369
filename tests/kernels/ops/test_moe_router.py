"""Expert choice and sorting: sums, ties, groups, and that nothing is lost on the way."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.moe_router import moe_router
from kernels.ops.moe_router.reference import expert_scores
from kernels.ops.moe_router.reference import moe_router as reference
from kernels.ops.moe_router.routing import Routing
from kernels.ops.moe_router.sorting import NO_EXPERT, padded_rows, permute, sort_tokens, unpermute
from kernels.ops.moe_router.triton_kernel import moe_router as in_triton

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)
BOTH = [
    pytest.param(reference, id="reference"),
    pytest.param(in_triton, id="triton", marks=interpreted),
]
chosen_scores = st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"])


def logits_of(seed, tokens=4, experts=16):
    return 3 * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), score=chosen_scores, k=st.integers(1, 8), scale=st.floats(0.1, 4))
def test_renormalised_weights_sum_to_the_scale(seed, score, k, scale):
    routing = Routing(score=score, k=k, scale=scale)
    ids, weights = reference(logits_of(seed), routing)
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int32
    total = weights.double().sum(-1)
    assert ((total - scale).abs() <= k * torch.finfo(torch.float32).eps * scale).all()
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("run", BOTH)
def test_without_renormalisation_weights_are_the_scores(run):
    logits = logits_of(1)
    ids, weights = run(logits, Routing(score="sqrtsoftplus", k=3, is_renormalised=False))
    expected = expert_scores(logits.double(), "sqrtsoftplus").gather(-1, ids.long())
    error = (expert_scores(logits, "sqrtsoftplus").gather(-1, ids.long()) - expected).abs().max()
    assert (weights - expected).abs().max() <= 2 * error + 1e-6 * expected.max()


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_of_equal_scores_the_lowest_id_comes_first(run, score):
    logits = torch.zeros(2, 12)
    logits[1, [3, 7, 9]] = 1.0
    ids, _ = run(logits, Routing(score=score, k=4))
    assert ids.tolist() == [[0, 1, 2, 3], [3, 7, 9, 0]]


@pytest.mark.parametrize("run", BOTH)
def test_of_equal_groups_the_lowest_comes_first(run):
    routing = Routing(score="sigmoid", k=4, num_groups=4, kept_groups=2)
    ids, _ = run(torch.zeros(1, 12), routing)
    assert ids.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("run", BOTH)
def test_a_group_is_worth_its_two_best(run):
    logits = torch.full((1, 8), -4.0)
    logits[0, 0] = 3.0  # the best expert stands alone in its group
    logits[0, 4:6] = 2.5
    routing = Routing(score="sigmoid", k=2, num_groups=2, kept_groups=1)
    ids, _ = run(logits, routing)
    assert ids.tolist() == [[4, 5]]


@pytest.mark.parametrize("run", BOTH)
def test_the_bias_selects_and_never_weighs(run):
    logits, bias = logits_of(5), torch.zeros(16)
    bias[11] = 100.0
    routing = Routing(score="sigmoid", k=1, is_renormalised=False)
    ids, weights = run(logits, routing, bias)
    assert (ids == 11).all()
    assert (weights <= 1).all()


@pytest.mark.parametrize("run", BOTH)
def test_a_table_names_the_experts_and_logits_weigh_them(run):
    table = torch.tensor([[5, 2], [0, 15], [7, 8]], dtype=torch.int32)
    tokens = torch.tensor([2, 0, 1, 2])
    ids, weights = run(logits_of(3), Routing(score="hash", k=2, scale=1.5), None, table, tokens)
    assert torch.equal(ids, table[tokens])
    assert torch.allclose(weights.sum(-1), torch.tensor(1.5))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), score=chosen_scores, kept=st.integers(1, 4))
def test_chosen_experts_lie_in_the_kept_groups(seed, score, kept):
    routing = Routing(score=score, k=3, num_groups=4, kept_groups=kept)
    ids, _ = reference(logits_of(seed), routing)
    assert all(len({expert // 4 for expert in row}) <= kept for row in ids.tolist())


@interpreted
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 999), score=chosen_scores, kept=st.integers(1, 4), ties=st.booleans())
def test_the_kernel_chooses_what_the_reference_chooses(seed, score, kept, ties):
    logits = logits_of(seed)
    logits = logits.round() if ties else logits
    routing = Routing(score=score, k=3, num_groups=4, kept_groups=kept)
    assert torch.equal(in_triton(logits, routing)[0], reference(logits, routing)[0])


routings = st.integers(1, 6).flatmap(
    lambda experts: st.tuples(
        st.just(experts),
        st.integers(1, 3).flatmap(
            lambda k: st.lists(
                st.lists(st.integers(0, experts - 1), min_size=k, max_size=k), max_size=9
            ).map(lambda rows: torch.tensor(rows, dtype=torch.int32).reshape(len(rows), k))
        ),
    )
)


@settings(max_examples=60, deadline=None)
@given(routing=routings, block=st.sampled_from([1, 4, 16]))
def test_sorting_loses_no_pair_and_gives_a_block_one_expert(routing, block):
    experts, ids = routing
    sorting = sort_tokens(ids, experts, block)
    flat = ids.reshape(-1)
    assert sorting.order_P.numel() == padded_rows(flat.numel(), experts, block)
    assert sorting.order_P.numel() == sorting.expert_B.numel() * block
    assert sorting.counts_E.tolist() == [int((flat == e).sum()) for e in range(experts)]
    seen = []
    for expert, rows in zip(
        sorting.expert_B.tolist(), sorting.order_P.view(-1, block).tolist(), strict=True
    ):
        pairs = [pair for pair in rows if pair < flat.numel()]
        assert bool(pairs) == (expert != NO_EXPERT)
        assert all(flat[pair] == expert for pair in pairs)
        seen += pairs
    assert sorted(seen) == list(range(flat.numel()))
    assert [int(flat[pair]) for pair in seen] == sorted(flat.tolist())


@settings(max_examples=40, deadline=None)
@given(routing=routings, block=st.sampled_from([1, 4, 16]))
def test_unpermuting_what_was_permuted_gives_every_pair_its_token(routing, block):
    experts, ids = routing
    tokens, k = ids.shape
    x = torch.randn(tokens, 5, generator=torch.Generator().manual_seed(tokens))
    sorting = sort_tokens(ids, experts, block)
    back = unpermute(permute(x, sorting), sorting)
    assert torch.equal(back.view(tokens, k, 5), x[:, None].expand(-1, k, -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "tanh", "k": 2}, "score is 'tanh'"),
        ({"score": "sigmoid", "k": 0}, "k is 0"),
        ({"score": "sigmoid", "k": 2, "num_groups": 2, "kept_groups": 3}, "kept_groups is 3"),
    ],
)
def test_a_rule_that_no_router_has_is_refused(options, message):
    with pytest.raises(ShapeError, match=message):
        Routing(**options)


@pytest.mark.parametrize(
    ("routing", "more", "message"),
    [
        (Routing(score="sigmoid", k=2, num_groups=3), {}, "16 experts do not divide"),
        (Routing(score="sigmoid", k=5, num_groups=4), {}, "only 4 experts"),
        (Routing(score="hash", k=2), {}, "a table and token ids belong"),
        (Routing(score="sigmoid", k=2), {"bias_E": torch.zeros(3)}, "bias has shape"),
    ],
)
def test_wrong_arguments_are_refused_by_name(routing, more, message):
    with pytest.raises(ShapeError, match=message):
        moe_router(logits_of(0), routing, **more)


def test_the_public_function_takes_the_reference_on_a_cpu():
    routing = Routing(score="softmax", k=2)
    ids, weights = moe_router(logits_of(0), routing)
    expected = reference(logits_of(0), routing)
    assert torch.equal(ids, expected[0])
    assert torch.equal(weights, expected[1])
