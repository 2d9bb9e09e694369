"""Int8 payloads: what runs them where, and what they cost."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.int8_wire.tiles import NUM_WARPS, TILE_BLOCKS
from kernels.requirements import at_most, dtype_in, native_build, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.int8_wire"


def _bytes(case: Case) -> float:
    """Values once, and 132 bytes for every 128 of them; as much again to decode."""
    return 2 * case.sizes["N"] * (ITEM_BYTES[case.dtype] + 132 / 128)


def _flops(case: Case) -> float:
    """A comparison, a division and a rounding; a product to decode."""
    return 4.0 * case.sizes["N"]


def _case(dtype: str, count: int, pack: str = "none") -> Case:
    return Case(dtype=dtype, sizes={"N": count}, options={"pack": pack})


SPEC = OpSpec(
    name="int8_wire",
    summary="Blocks of 128 int8 values and their scale in one payload, packed for all-to-all",
    reference=f"{_FOLDER}.reference:int8_wire",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:int8_wire",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("N", 2**31 - 4096, "the values of a piece are counted in 32 bits"),
            ),
        ),
        Implementation(
            name="native",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.native:int8_wire",
            requires=(on_backends("cpu"), dtype_in("fp32", "bf16", "fp16"), native_build()),
            evidence="run and compared with the reference on CPU, bit for bit",
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:int8_wire",
            requires=(on_backends("cpu"),),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:int8_wire",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1),
        _case("bf16", 123),
        _case("fp16", 1024),
        _case("bf16", 3000, "all_to_all"),
        _case("fp32", 700, "all_to_all"),
        _case("fp32", 0),
    ),
)

_SIGNATURE = {
    "x_ptr": "*bf16",
    "byte_ptr": "*i8",
    "scale_ptr": "*fp32",
    **dict.fromkeys(
        ("num_values", "num_blocks", "run_length", "run_stride", "piece_stride"), "i32"
    ),
}

BUILDS = tuple(
    Build(
        name=f"{direction} bf16",
        kernel=f"{_FOLDER}.triton_kernel:{direction}_kernel",
        signature=_SIGNATURE,
        constexprs={"TILE": TILE_BLOCKS},
        num_warps=NUM_WARPS,
    )
    for direction in ("encode", "decode")
)
