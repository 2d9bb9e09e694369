"""The sampler: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import at_most, dtype_in, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.sampler"


def _bytes(case: Case) -> float:
    """Reads the logits twice, with penalties also counts, prompt and bias; later passes hit L2."""
    item = ITEM_BYTES[case.dtype]
    if case.options.get("penalties") == "yes":
        item += 4 + 1 + 4
    return 2.0 * case.sizes["B"] * case.sizes["V"] * item


def _flops(case: Case) -> float:
    """Noise and exponentials: about 60 operations a token; 33 for each of 16 search passes."""
    searches = 16 * 33 if case.options.get("top") == "yes" else 0
    return (60.0 + searches) * case.sizes["B"] * case.sizes["V"]


def _case(dtype: str, rows: int, vocabulary: int, **options: str) -> Case:
    return Case(dtype=dtype, sizes={"B": rows, "V": vocabulary}, options=options)


SPEC = OpSpec(
    name="sampler",
    summary="Penalties, temperature, top-k, top-p, min-p and a Gumbel draw from Philox",
    reference=f"{_FOLDER}.reference:sampler",
    example=f"{_FOLDER}.example:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:sampler",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("V", 1 << 24, "tokens are counted in float32"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:sampler",
            requires=(on_backends("cpu"), dtype_in("fp32", "bf16", "fp16")),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:sampler",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1, 1000),
        _case("fp32", 7, 123, top="yes"),
        _case("fp32", 3, 123, penalties="yes", top="yes"),
        _case("bf16", 2, 4500, penalties="yes"),
        _case("fp16", 1, 1, top="yes"),
        _case("fp32", 0, 64),
    ),
    peers=("vllm",),
)

_SIGNATURE = {
    "logits_ptr": "*fp32",
    "bias_ptr": "*fp32",
    "prompt_ptr": "*i8",
    "counts_ptr": "*i32",
    "repetition_ptr": "*fp32",
    "presence_ptr": "*fp32",
    "frequency_ptr": "*fp32",
    "temperature_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "top_p_ptr": "*fp32",
    "min_p_ptr": "*fp32",
    "seed_ptr": "*i64",
    "counter_ptr": "*i64",
    "token_ptr": "*i64",
    "logprob_ptr": "*fp32",
    "logits_stride": "i32",
    "vocabulary": "i32",
}


def _build(name: str, *, has_penalties: bool, has_top: bool) -> Build:
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:sampler_kernel",
        signature=_SIGNATURE,
        constexprs={
            "HAS_PENALTIES": has_penalties,
            "HAS_BIAS": has_penalties,
            "HAS_TOP_K": has_top,
            "HAS_TOP_P": has_top,
            "HAS_MIN_P": has_top,
            "BLOCK": 2048,
            "SEARCH": 1024,
        },
        num_warps=16,
    )


# The vocabulary does not enter the tile.
BUILDS = (
    _build("any V", has_penalties=False, has_top=False),
    _build("any V top", has_penalties=False, has_top=True),
    _build("any V penalties top", has_penalties=True, has_top=True),
)
