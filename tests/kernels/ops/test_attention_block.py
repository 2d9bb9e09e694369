"""The attention block over pages: the same bits however a step is cut, shared or threaded."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ImplUnavailable, ShapeError
from kernels.native.build import find_compiler
from kernels.native.library import Pool, library, pool
from kernels.ops.attention_block import attention_block
from kernels.ops.attention_block.native import CACHE_DTYPE, HeadShape, NativeAttentionBlock, attend
from kernels.ops.attention_block.reference import example
from kernels.ops.attention_block.step import PagedStep, TurnTable
from kernels.ops.mlp_block.native import NativeMlpBlock
from kernels.ops.packed_gemm.quantised import PackedMatrix
from kernels.ops.packed_gemm.reference import random_matrix
from kernels.spec import Case

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

LENGTH = 600  # three segments of keys
SIZES = {"N": LENGTH, "C": 64, "H": 6, "K": 2, "D": 32, "page": 16}


@dataclass
class Span:
    start: int
    num_tokens: int
    pages: list[int]


class Setup:
    """One block with random weights, and a cache that every call begins anew."""

    def __init__(self, page_size: int = 16) -> None:
        generator = torch.Generator().manual_seed(11)
        case = Case(dtype="fp32", sizes=SIZES, options={"minima": "yes", "qk_norm": "yes"})
        (self.x_NC, weights, cos, sin), _ = example(case, generator)
        self.table = TurnTable(cos, sin)
        self.shape = HeadShape(
            num_heads=6, num_kv_heads=2, head_dim=32, page_size=page_size, eps=1e-5
        )
        self.block = NativeAttentionBlock(
            self.shape,
            norm_C=weights.norm_C,
            qkv=PackedMatrix(weights.qkv, None, pool(1)),
            out=PackedMatrix(weights.out, None, pool(1)),
            q_norm_D=weights.q_norm_D,
            k_norm_D=weights.k_norm_D,
        )
        self.pages = torch.randperm(200, generator=generator).tolist()

    def cache(self) -> torch.Tensor:
        return torch.full((200, *self.shape.page_shape), 3, dtype=CACHE_DTYPE)

    def run(self, cache: torch.Tensor, spans: list[Span], threads: Pool | None = None):
        rows = [row for s in spans for row in range(s.start, s.start + s.num_tokens)]
        step = PagedStep(spans, self.table)
        return self.block(self.x_NC[rows].clone(), cache, step, threads or pool(1))


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup()


@pytest.fixture(scope="module")
def whole(setup: Setup) -> torch.Tensor:
    return setup.run(setup.cache(), [Span(0, LENGTH, setup.pages)])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, LENGTH - 1), max_size=6, unique=True), st.data())
def test_chunks_pages_and_threads_change_no_bit(setup, whole, cuts, data) -> None:
    bounds = [0, *sorted(cuts), LENGTH]
    pages = data.draw(st.permutations(range(60)))
    threads = pool(data.draw(st.sampled_from([1, 2, 3])))
    cache = setup.cache()
    parts = [
        setup.run(cache, [Span(start, end - start, pages)], threads)
        for start, end in pairwise(bounds)
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("page_size", [16, 32, 64, 48])
def test_decoding_gives_the_bits_of_the_prompt(whole, page_size: int) -> None:
    setup = Setup(page_size)
    cache, start = setup.cache(), LENGTH - 80
    setup.run(cache, [Span(0, start, setup.pages)])
    for position in range(start, LENGTH):
        row = setup.run(cache, [Span(position, 1, setup.pages)], pool(2))
        assert torch.equal(row[0], whole[position])


def test_other_sequences_change_no_bit(setup: Setup, whole: torch.Tensor) -> None:
    cache = setup.cache()
    mine, other, third = setup.pages[:40], setup.pages[40:80], setup.pages[80:120]
    setup.run(cache, [Span(0, 300, mine), Span(0, 513, other)])
    together = [Span(513, 1, other), Span(300, 3, mine), Span(0, 200, third), Span(514, 40, other)]
    rows = setup.run(cache, together, pool(2))
    assert torch.equal(rows[0], whole[513])
    assert torch.equal(rows[1:4], whole[300:303])
    assert torch.equal(rows[4:204], whole[:200])
    assert torch.equal(rows[204:], whole[514:554])


def test_rejected_drafts_are_written_over(setup: Setup, whole: torch.Tensor) -> None:
    cache = setup.cache()
    setup.run(cache, [Span(0, 250, setup.pages)])
    drafts = PagedStep([Span(250, 9, setup.pages)], setup.table)
    setup.block(torch.randn(9, 64), cache, drafts, pool(1))
    for position in range(250, 262):
        row = setup.run(cache, [Span(position, 1, setup.pages)])
        assert torch.equal(row[0], whole[position])


def test_attention_by_itself_equals_that_of_the_block(setup: Setup) -> None:
    """What composes the block from parts stores the same keys and attends to them alike."""
    generator = torch.Generator().manual_seed(3)
    fused = torch.randn(70, 10, 32, generator=generator)
    heads = setup.shape.struct()
    spans = [Span(0, 40, setup.pages[:5]), Span(0, 30, setup.pages[5:9])]
    step = PagedStep(spans, setup.table)
    ours = attend(fused.clone(), setup.cache(), heads, step, pool(2))
    for span, rows in zip(spans, fused.split([40, 30]), strict=True):
        q, k, v = (x.transpose(0, 1) for x in rows.split([6, 2, 2], dim=1))
        cos, sin = (t[: span.num_tokens] for t in (setup.table.cosines, setup.table.sines))
        q, k = (
            torch.cat(
                (x[..., :16] * cos - x[..., 16:] * sin, x[..., 16:] * cos + x[..., :16] * sin), -1
            )
            for x in (q, k)
        )
        exact = torch.nn.functional.scaled_dot_product_attention(
            q[None].double(), k[None].double(), v[None].double(), is_causal=True, enable_gqa=True
        )[0].transpose(0, 1)
        mine, ours = ours[: span.num_tokens], ours[span.num_tokens :]
        # Queries and weights have 12 bits and a sign, keys and values one more: about float16.
        assert (mine - exact).abs().max() <= 2**-11 * 8 * exact.abs().max()


def test_an_mlp_row_depends_on_nothing_else() -> None:
    generator = torch.Generator().manual_seed(2)
    block = NativeMlpBlock(
        norm_C=torch.rand(96, generator=generator),
        eps=1e-5,
        gate_up=PackedMatrix(random_matrix(320, 96, generator, minima="yes"), None, pool(1)),
        down=PackedMatrix(random_matrix(96, 160, generator, bits="8"), None, pool(1)),
    )
    x_NC = torch.randn(131, 96, generator=generator)
    together = block(x_NC.clone(), pool(2))
    for first, end in ((0, 1), (1, 3), (3, 20), (20, 131)):
        assert torch.equal(block(x_NC[first:end].clone(), pool(1)), together[first:end])
    assert torch.equal(block(x_NC.clone(), Pool(library(), 3)), together)


def test_other_shapes_are_refused(setup: Setup) -> None:
    case = Case(dtype="fp32", sizes=SIZES | {"N": 4}, options={})
    (x_NC, weights, cos, sin), _ = example(case, torch.Generator())
    with pytest.raises(ShapeError, match="x has shape"):
        attention_block(x_NC, weights, cos, sin, lengths=[3])
    with pytest.raises(ShapeError, match="cosines has shape"):
        attention_block(x_NC, weights, cos[:, :3], sin, lengths=[4])
    with pytest.raises(ImplUnavailable, match="dtype fp64"):
        attention_block(x_NC.double(), weights, cos, sin, lengths=[4], impl="native")
