"""The machine's own limits, measured: memory rate and the matrix product's rate of each dtype.

A case cannot take less than its bytes at the copy rate and its operations at the rate of a large
product; the larger of the two is its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.timing import Effort, Stopwatch, interleaved
from kernels.dtypes import TORCH_DTYPES
from kernels.spec import Case, OpSpec

GEMM_DTYPES = ("fp32", "bf16", "fp16", "int8", "fp8")
COPY_BYTES = 256 << 20
GPU_COPY_BYTES = 2 << 30
# A dtype that is slower than this at full size is measured at a quarter of the side alone.
LONGEST_PRODUCT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The least time of a case, and what binds it: "memory" or the dtype of the product."""

    seconds: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one device reached in this run. Units: bytes a second, operations a second.

    `copy_bytes_s` counts what is read and what is written. A dtype that torch cannot multiply
    there is missing from `gemm_flop_s`.
    """

    copy_bytes_s: float
    read_bytes_s: float
    gemm_flop_s: Mapping[str, float]

    def of(self, spec: OpSpec, case: Case) -> Limit:
        """The larger of traffic at the copy rate and work at the product's rate."""
        dtype = self.product_dtype(spec, case)
        memory_s = spec.read_write_bytes(case) / self.copy_bytes_s
        work_s = spec.flops(case) / self.gemm_flop_s[dtype]
        if work_s > memory_s:
            return Limit(seconds=work_s, bound=f"{dtype} product")
        return Limit(seconds=memory_s, bound="memory")

    def product_dtype(self, spec: OpSpec, case: Case) -> str:
        """The fastest dtype in which the case may multiply: its own, or e4m3 where both are."""
        both_fp8 = spec.name == "block_fp8_gemm" and case.options.get("x", "none") != "wide"
        allowed = [case.dtype, "fp8"] if both_fp8 else [case.dtype]
        measured = [dtype for dtype in allowed if dtype in self.gemm_flop_s] or ["fp32"]
        return max(measured, key=lambda dtype: self.gemm_flop_s[dtype])

    def better(self, other: Limits) -> Limits:
        """The higher of each rate: a machine that was busy once reached less than it can."""
        names = {*self.gemm_flop_s, *other.gemm_flop_s}
        rates = {n: max(self.gemm_flop_s.get(n, 0), other.gemm_flop_s.get(n, 0)) for n in names}
        return Limits(
            copy_bytes_s=max(self.copy_bytes_s, other.copy_bytes_s),
            read_bytes_s=max(self.read_bytes_s, other.read_bytes_s),
            gemm_flop_s={n: rates[n] for n in GEMM_DTYPES if n in rates},
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "copy_bytes_s": self.copy_bytes_s,
            "read_bytes_s": self.read_bytes_s,
            "gemm_flop_s": dict(self.gemm_flop_s),
        }


def measure_limits(watch: Stopwatch, *, quick: bool = False) -> Limits:
    """Copy, read and products on the device of `watch`; the best round counts."""
    is_cpu = watch.device.type == "cpu"
    size = COPY_BYTES if is_cpu else GPU_COPY_BYTES
    effort = Effort(budget_s=0.1 if quick else 1.0, min_rounds=3, max_rounds=40)
    count = size // 8  # half is read, half is written
    source = torch.ones(count, dtype=torch.float32, device=watch.device)
    target = torch.empty_like(source)
    side = (1024 if quick else 2048) if is_cpu else 8192
    calls = {"copy": lambda: target.copy_(source), "read": lambda: source.sum()}
    best = {name: min(s) for name, s in interleaved(calls, watch, effort).items()}
    return Limits(
        copy_bytes_s=size / best["copy"],
        read_bytes_s=size / 2 / best["read"],
        gemm_flop_s=_gemm_rates(watch, side, effort),
    )


def _gemm_rates(watch: Stopwatch, side: int, effort: Effort) -> Mapping[str, float]:
    rates: dict[str, float] = {}
    for dtype in GEMM_DTYPES:
        try:
            rates[dtype] = _gemm_rate(watch, dtype, side // 4, effort)
        except (RuntimeError, NotImplementedError):
            continue  # torch has no such product on this device
        if 2.0 * side**3 / rates[dtype] < LONGEST_PRODUCT_S:
            rates[dtype] = max(rates[dtype], _gemm_rate(watch, dtype, side, effort))
    return rates


def _gemm_rate(watch: Stopwatch, dtype: str, side: int, effort: Effort) -> float:
    samples = interleaved({dtype: _product(dtype, side, watch.device)}, watch, effort)
    return 2.0 * side**3 / min(samples[dtype])


def _product(dtype: str, side: int, device: torch.device) -> Callable[[], torch.Tensor]:
    wide = torch.randn(side, side, device=device)
    if dtype == "int8":
        a = wide.clamp(-1, 1).mul(127).to(torch.int8)
        return lambda: torch._int_mm(a, a)
    a = wide.to(TORCH_DTYPES[dtype])
    if dtype == "fp8":
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
    return lambda: a @ a
