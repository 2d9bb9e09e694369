"""The cases that are timed on a GPU: layers of the engines' large models, whole where they fit.

Sizes keep the float64 reference within a few gigabytes and its random weights within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

# The ones that decide a step's time, checked and timed first.
TEN = (
    "moe_gemm",
    "block_fp8_gemm",
    "paged_prefill",
    "paged_decode",
    "full_attention",
    "sparse_shared_kv",
    "sparse_mla",
    "indexer_topk",
    "rms_norm",
    "adaln_modulate",
)

GPU_CASES: Mapping[str, Mapping[str, str]] = {
    "adaln_modulate": {
        "Wan 14B, 8190 tokens": "bf16 T=8190 C=5120 norm=layer residual=yes",
        "MiniMax-H3": "bf16 T=8192 C=5376 norm=rms residual=yes table=yes",
    },
    "block_fp8_gemm": {
        "V3.2 prefill": "bf16 M=4096 N=1536 K=7168 block=128x128",
        "V3.2 decode": "bf16 M=16 N=1536 K=7168 block=128x128",
        "V4.1 prefill": "bf16 M=4096 N=1536 K=4096 block=32x32 scale=e8m0 x=wide",
    },
    "full_attention": {
        "Wan 14B, a quarter of the heads": "bf16 S=4680 N=4680 H=10 D=128",
        "Wan 14B, text": "bf16 S=8190 N=512 H=40 D=128",
    },
    "gemm": {"Qwen3-30B-A3B qkv": "bf16 M=4096 N=5120 K=2048"},
    "indexer_topk": {
        "V3.2 decode": "bf16 T=16 H=64 D=128 S=16384 K=2048 keys=fp8 candidates=none",
        "V3.2 prefill": "bf16 T=128 H=64 D=128 S=8192 K=2048 keys=bf16 candidates=none",
    },
    "int8_wire": {"64 MiB of bf16": "bf16 N=33554432 pack=all_to_all"},
    "moe_gemm": {
        "Qwen3-30B-A3B decode, 32 experts": "bf16 T=16 E=32 k=8 D=2048 I=768 weights=bf16",
        "Qwen3-30B-A3B prefill, 32 experts": "bf16 T=2048 E=32 k=8 D=2048 I=768 weights=bf16",
        "V4-Flash decode, 8 experts": "bf16 T=16 E=8 k=6 D=4096 I=2048 weights=mxfp4 clamp=yes",
    },
    "moe_router": {
        "Qwen3-30B-A3B": "bf16 T=4096 E=128 k=8 G=1 score=softmax",
        "V3.2": "fp32 T=4096 E=256 k=8 G=8 score=sigmoid",
    },
    "paged_decode": {
        "Qwen3-30B-A3B": "bf16 B=32 S=4096 H=32 K=4 D=128 page=16",
        "one long sequence": "bf16 B=1 S=32768 H=32 K=4 D=128 page=16",
    },
    "paged_prefill": {
        "Qwen3-30B-A3B": "bf16 T=4096 S=4096 H=32 K=4 D=128 page=16",
        "chunk after 8K": "bf16 T=512 S=8192 H=32 K=4 D=128 page=16",
    },
    "rms_norm": {
        "V3.2 prefill": "bf16 T=4096 D=7168 residual=yes",
        "V3.2 prefill, fp8": "bf16 T=4096 D=7168 residual=yes quant=fp8",
        "decode": "bf16 T=16 D=4096 residual=yes",
    },
    "rotary_insert": {
        "Qwen3-30B-A3B": (
            "bf16 T=4096 H=32 K=4 D=128 R=128 page=16 style=half qk_norm=yes cache=bf16"
        ),
        "Wan 14B": "bf16 T=8190 H=40 K=40 D=128 R=128 page=0 style=interleaved cache=none",
    },
    "sampler": {
        "Qwen3, 64 rows": "fp32 B=64 V=151936 top=yes",
        "Qwen3, 64 rows, all": "fp32 B=64 V=151936 penalties=yes top=yes",
    },
    "sparse_mla": {
        "V3.2 decode": "bf16 T=32 H=128 L=512 R=64 K=2048 page=1 phase=decode cache=bf16",
        "V3.2 prefill": "bf16 T=256 H=16 L=512 R=64 K=2048 page=1 phase=prefill cache=fp8",
    },
    "sparse_shared_kv": {
        "V4 decode": "bf16 T=32 H=64 D=512 W=128 K=512 page=1 phase=decode rows=fp8 sink=yes",
        "V4 prefill": "bf16 T=512 H=64 D=512 W=128 K=512 page=1 phase=prefill rows=bf16 sink=yes",
    },
    "swiglu": {
        "Qwen3-30B-A3B": "bf16 T=32768 I=768",
        "V4-Flash": "bf16 T=8192 I=2048 clamp=yes quant=fp8",
    },
}
