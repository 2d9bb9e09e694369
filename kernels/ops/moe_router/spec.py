"""Expert choice: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import at_most, dtype_in, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.moe_router"


def _bytes(case: Case) -> float:
    """Reads the logits, writes an id and a weight a choice."""
    return case.sizes["T"] * (case.sizes["E"] * ITEM_BYTES[case.dtype] + 8 * case.sizes["k"])


def _flops(case: Case) -> float:
    """About 8 operations a score, and a comparison of every expert for each choice."""
    return case.sizes["T"] * case.sizes["E"] * (8.0 + case.sizes["k"])


def _case(dtype: str, score: str, tokens: int, experts: int, k: int, groups: int = 1) -> Case:
    sizes = {"T": tokens, "E": experts, "k": k, "G": groups}
    return Case(dtype=dtype, sizes=sizes, options={"score": score})


SPEC = OpSpec(
    name="moe_router",
    summary="Experts and weights of each token: scores, bias, groups, top-k, renormalisation",
    reference=f"{_FOLDER}.reference:moe_router",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:moe_router",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("E", 1024, "the scores of a token are held in one warp's registers"),
            ),
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:moe_router",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", "softmax", 1, 128, 8),
        _case("bf16", "softmax", 7, 60, 4),
        _case("fp32", "sigmoid", 7, 256, 8, 8),
        _case("fp32", "sigmoid", 3, 123, 5),
        _case("fp16", "sigmoid", 3, 12, 2, 3),
        _case("bf16", "sqrtsoftplus", 7, 256, 6),
        _case("fp32", "hash", 7, 64, 6),
        _case("fp32", "sqrtsoftplus", 0, 64, 6),
    ),
    peers=("vllm", "sglang"),
)


def _build(name: str, score: int, k: int, choices: int, groups: int, members: int) -> Build:
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:moe_router_kernel",
        signature={
            "logits_ptr": "*fp32",
            "bias_ptr": "*fp32",
            "table_ptr": "*i32",
            "token_ptr": "*i64",
            "ids_ptr": "*i32",
            "weights_ptr": "*fp32",
            "logits_stride": "i32",
            "group_size": "i32",
            "scale": "fp32",
        },
        constexprs={
            "SCORE": score,
            "HAS_BIAS": score in (1, 2),
            "IS_RENORMALISED": True,
            "EPS": 1e-20,
            "K": k,
            "CHOICES": choices,
            "NUM_GROUPS": groups,
            "KEPT_GROUPS": max(1, groups // 2),
            "GROUPS": groups,
            "MEMBERS": members,
        },
        num_warps=1,
        num_stages=1,
    )


BUILDS = (
    _build("V4-Flash sqrtsoftplus E256 k6", 2, 6, 8, 1, 256),
    _build("V4-Flash hash E256 k6", 3, 6, 8, 1, 256),
    _build("V3.2 sigmoid E256 k8 G8", 1, 8, 8, 8, 32),
    _build("Qwen3-30B-A3B softmax E128 k8", 0, 8, 8, 1, 128),
)
