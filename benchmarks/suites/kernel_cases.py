"""The cases that are timed, by op: shapes of real models, at sizes that the device can carry.

The CPU's are SmolLM2-135M (9 heads of 64 on 3, width 576, inner 1536), Qwen3-0.6B (16 heads of 128
on 8, width 1024, inner 3072), motion-small (width 192), and slices of the large models: fewer
tokens, heads or experts, with every width as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suites.kernel_cases_gpu import GPU_CASES
from kernels.ops.registry import OPS, op_spec
from kernels.spec import Case

Cases = Mapping[str, tuple[tuple[str, Case], ...]]


def parse_case(text: str) -> Case:
    """A case as its `str` shows it: `bf16 T=8 D=576 quant=none`; digits make a size."""
    dtype, *parts = text.split()
    pairs = [part.partition("=")[::2] for part in parts]
    return Case(
        dtype=dtype,
        sizes={name: int(value) for name, value in pairs if value.isdigit()},
        options={name: value for name, value in pairs if not value.isdigit()},
    )


CPU_CASES: Mapping[str, Mapping[str, str]] = {
    "adaln_modulate": {
        "motion-small": "fp32 T=1024 C=192 norm=layer residual=yes",
        "Wan 5B, 512 tokens": "bf16 T=512 C=3072 norm=layer",
        "Wan 5B, 512 tokens, gate": "bf16 T=512 C=3072 norm=layer residual=yes",
        "MiniMax-H3, 256 tokens": "bf16 T=256 C=5376 norm=rms residual=yes table=yes",
    },
    "block_fp8_gemm": {
        "V4 projection, 16 rows": "bf16 M=16 N=1536 K=4096 block=128x128",
        "V4.1 projection, 16 rows": "bf16 M=16 N=1536 K=4096 block=32x32 scale=e8m0 x=wide",
    },
    "full_attention": {
        "motion-small": "fp32 S=256 N=256 H=6 D=32",
        "Wan, one head group": "bf16 S=1560 N=1560 H=4 D=128",
        "Wan, text": "bf16 S=1560 N=512 H=4 D=128",
    },
    "gemm": {
        "SmolLM2 gate+up, 1 row": "bf16 M=1 N=3072 K=576",
        "SmolLM2 gate+up, 512 rows": "bf16 M=512 N=3072 K=576",
        "Qwen3-0.6B head, 8 rows": "bf16 M=8 N=151936 K=1024",
    },
    "indexer_topk": {
        "V3.2 decode, 2K keys": "bf16 T=1 H=64 D=128 S=2048 K=512 keys=bf16 candidates=none",
        "V3.2 prefill, 2K keys": "bf16 T=8 H=64 D=128 S=2048 K=512 keys=fp8 candidates=none",
    },
    "int8_wire": {
        "4 MiB of bf16": "bf16 N=2097152 pack=none",
        "heads of 4 MiB": "bf16 N=2097152 pack=all_to_all",
    },
    "moe_gemm": {
        "Qwen3-30B-A3B, 16 experts, 1 token": "bf16 T=1 E=16 k=8 D=2048 I=768 weights=bf16",
        "Qwen3-30B-A3B, 16 experts, 64 tokens": "bf16 T=64 E=16 k=8 D=2048 I=768 weights=bf16",
        "V4-Flash, 8 experts, 8 tokens": "bf16 T=8 E=8 k=6 D=1024 I=2048 weights=mxfp4",
    },
    "moe_router": {
        "Qwen3-30B-A3B": "bf16 T=256 E=128 k=8 G=1 score=softmax",
        "V3.2": "fp32 T=256 E=256 k=8 G=8 score=sigmoid",
    },
    "paged_decode": {
        "SmolLM2, 1 sequence": "bf16 B=1 S=1024 H=9 K=3 D=64 page=16",
        "SmolLM2, 8 sequences": "bf16 B=8 S=1024 H=9 K=3 D=64 page=16",
        "Qwen3-0.6B, 4 sequences": "bf16 B=4 S=1024 H=16 K=8 D=128 page=16",
    },
    "paged_prefill": {
        "SmolLM2, 512 tokens": "bf16 T=512 S=512 H=9 K=3 D=64 page=16",
        "Qwen3-0.6B, 256 tokens": "bf16 T=256 S=512 H=16 K=8 D=128 page=16",
    },
    "rms_norm": {
        "SmolLM2, 1 row": "bf16 T=1 D=576 residual=yes",
        "SmolLM2, 512 rows": "bf16 T=512 D=576 residual=yes",
        "Qwen3-0.6B, 8 rows": "bf16 T=8 D=1024 residual=yes",
        "V3.2, 64 rows": "bf16 T=64 D=7168",
    },
    "rotary_insert": {
        "SmolLM2, 1 token": "bf16 T=1 H=9 K=3 D=64 R=64 page=16 style=half cache=bf16",
        "SmolLM2, 512 tokens": "bf16 T=512 H=9 K=3 D=64 R=64 page=16 style=half cache=bf16",
        "Qwen3-0.6B, 8 tokens": (
            "bf16 T=8 H=16 K=8 D=128 R=128 page=16 style=half qk_norm=yes cache=bf16"
        ),
        "Wan, 512 tokens": "bf16 T=512 H=12 K=12 D=128 R=128 page=0 style=interleaved cache=none",
    },
    "sampler": {
        "SmolLM2, 1 row": "fp32 B=1 V=49152",
        "SmolLM2, 8 rows, top": "fp32 B=8 V=49152 top=yes",
        "Qwen3-0.6B, 4 rows, all": "fp32 B=4 V=151936 penalties=yes top=yes",
    },
    "sparse_mla": {
        "V3.2, 16 heads": "bf16 T=4 H=16 L=512 R=64 K=512 page=1 phase=decode cache=bf16",
    },
    "sparse_shared_kv": {
        "V4, 16 heads": "bf16 T=4 H=16 D=512 W=128 K=512 page=1 phase=decode rows=bf16 sink=yes",
    },
    "swiglu": {
        "SmolLM2, 1 row": "bf16 T=1 I=1536",
        "SmolLM2, 512 rows": "bf16 T=512 I=1536",
        "Qwen3-0.6B, 8 rows": "bf16 T=8 I=3072",
        "V4-Flash, 64 rows": "bf16 T=64 I=2048 clamp=yes",
    },
}


def cases_for(device_kind: str) -> Cases:
    """By op, what is timed on a "cpu" or a "cuda" device: (where it comes from, case).

    An op without a line takes the largest case of its own tests.
    """
    table = CPU_CASES if device_kind == "cpu" else GPU_CASES
    return {op: _cases_of(op, table) for op in OPS}


def _cases_of(op: str, table: Mapping[str, Mapping[str, str]]) -> tuple[tuple[str, Case], ...]:
    if op in table:
        return tuple((model, parse_case(text)) for model, text in table[op].items())
    spec = op_spec(op)
    return (("largest of its tests", max(spec.cases, key=spec.read_write_bytes)),)
