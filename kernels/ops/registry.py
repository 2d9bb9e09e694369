"""Every op by name. A miss raises an error that lists the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels.spec import load_entry

if TYPE_CHECKING:
    from kernels.offline import Build
    from kernels.spec import OpSpec

OPS: Mapping[str, str] = {
    "adaln_modulate": "kernels.ops.adaln_modulate.spec",
    "attention_block": "kernels.ops.attention_block.spec",
    "block_fp8_gemm": "kernels.ops.block_fp8_gemm.spec",
    "full_attention": "kernels.ops.full_attention.spec",
    "gemm": "kernels.ops.gemm.spec",
    "indexer_topk": "kernels.ops.indexer_topk.spec",
    "int8_wire": "kernels.ops.int8_wire.spec",
    "mlp_block": "kernels.ops.mlp_block.spec",
    "moe_gemm": "kernels.ops.moe_gemm.spec",
    "moe_router": "kernels.ops.moe_router.spec",
    "packed_gemm": "kernels.ops.packed_gemm.spec",
    "paged_decode": "kernels.ops.paged_decode.spec",
    "paged_prefill": "kernels.ops.paged_prefill.spec",
    "rms_norm": "kernels.ops.rms_norm.spec",
    "rotary_insert": "kernels.ops.rotary_insert.spec",
    "sampler": "kernels.ops.sampler.spec",
    "sparse_mla": "kernels.ops.sparse_mla.spec",
    "sparse_shared_kv": "kernels.ops.sparse_shared_kv.spec",
    "swiglu": "kernels.ops.swiglu.spec",
}


def op_spec(name: str) -> OpSpec:
    """The spec of an op.

    Raises:
        KeyError: lists the ops there are.
    """
    if name not in OPS:
        raise KeyError(f"no op {name!r}; there are: {', '.join(sorted(OPS))}")
    spec: OpSpec = load_entry(f"{OPS[name]}:SPEC")  # type: ignore[assignment]
    return spec


def op_builds(name: str) -> tuple[Build, ...]:
    """The configurations of an op that are compiled offline."""
    builds: tuple[Build, ...] = load_entry(f"{OPS[name]}:BUILDS")  # type: ignore[assignment]
    return builds
