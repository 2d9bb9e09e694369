"""Choice of the best keys by an indexer: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.ops.indexer_topk.builds import builds
from kernels.requirements import at_most, dtype_in, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.indexer_topk"


def _bytes(case: Case) -> float:
    """Queries and weights, keys once, and the choice with its scores."""
    sizes = case.sizes
    key = ITEM_BYTES[case.dtype] * sizes["D"]
    if case.options.get("keys") == "fp8":
        key = sizes["D"] + 4
    queries = sizes["T"] * sizes["H"] * (sizes["D"] * ITEM_BYTES[case.dtype] + 4)
    return queries + sizes["S"] * key + 8.0 * sizes["T"] * sizes["K"]


def _flops(case: Case) -> float:
    """A product of D for each query head and key, a comparison and a weight."""
    sizes = case.sizes
    return 2.0 * sizes["T"] * sizes["H"] * sizes["S"] * (sizes["D"] + 1)


def _case(
    dtype: str, tokens: int, heads: int, width: int, keys_chosen: tuple[int, int], **options: str
) -> Case:
    num_keys, chosen = keys_chosen
    sizes = {"T": tokens, "H": heads, "D": width, "S": num_keys, "K": chosen}
    return Case(dtype=dtype, sizes=sizes, options=options)


SPEC = OpSpec(
    name="indexer_topk",
    summary="Top k of ReLU scores summed over heads, streamed: no matrix of all scores",
    reference=f"{_FOLDER}.reference:indexer_topk",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:indexer_topk",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("H", 128, "the heads of a token are one tile of the product"),
                at_most("D", 256, "a key's columns are one tile of the product"),
            ),
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:indexer_topk",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 3, 4, 32, (150, 12), keys="bf16", candidates="none"),
        _case("bf16", 1, 32, 128, (123, 16), keys="fp8", candidates="none"),
        _case("fp32", 2, 7, 40, (77, 7), keys="fp8", candidates="yes"),
        _case("fp16", 2, 64, 128, (70, 70), keys="bf16", candidates="none"),
        _case("bf16", 5, 16, 16, (33, 1), keys="bf16", candidates="yes"),
        _case("fp32", 0, 4, 32, (8, 5), keys="bf16", candidates="none"),
    ),
    peers=("deep_gemm", "flashinfer"),
)

BUILDS = builds()
