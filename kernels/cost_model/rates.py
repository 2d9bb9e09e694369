"""What devices reach in practice: published peaks times assumed efficiencies, errors stated.

Assumed until a calibration replaces them. Published anchors lie between 52 and 205 TFLOP/s on
cards of 504 in bf16, so kernels decide more than cards do, and the errors here are wide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.cost_model.parts import Parts

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.hardware.products import Product

_UNKNOWN_FLOPS_S = 150e12  # below every accelerator of the tables with a published bf16 peak
_UNKNOWN_BYTES_S = 0.6e12
_GRAPH_START_S, _EAGER_START_S, _CPU_START_S = 2e-6, 6e-6, 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Rates that kernels of a fused tier are expected to reach on one device.

    Units: operations and bytes per second; seconds; bytes of memory. `half_rows`: a product of so
    many rows reaches half of its rate. `errors` are relative, by cause; `assumed` says in words
    what nobody told or measured.
    """

    dense_flops_s: float
    fp8_flops_s: float
    expert_flops_s: float
    attention_flops_s: float
    memory_bytes_s: float
    memory_bytes: int
    start_s: float
    half_rows: float
    errors: Parts
    assumed: tuple[str, ...]

    def scaled(self, *, flops: float = 1.0, memory: float = 1.0, size: float = 1.0) -> DeviceRates:
        """The same device with more of something."""
        return replace(
            self,
            dense_flops_s=self.dense_flops_s * flops,
            fp8_flops_s=self.fp8_flops_s * flops,
            expert_flops_s=self.expert_flops_s * flops,
            attention_flops_s=self.attention_flops_s * flops,
            memory_bytes_s=self.memory_bytes_s * memory,
            memory_bytes=round(self.memory_bytes * size),
        )


def flat_rates(flops_s: float, memory_bytes_s: float, memory_bytes: int) -> DeviceRates:
    """A device that does everything at one rate: for back-tests of published figures."""
    return DeviceRates(
        dense_flops_s=flops_s,
        fp8_flops_s=flops_s,
        expert_flops_s=flops_s,
        attention_flops_s=flops_s,
        memory_bytes_s=memory_bytes_s,
        memory_bytes=memory_bytes,
        start_s=0.0,
        half_rows=0.0,
        errors=Parts(),
        assumed=(),
    )


def rates_of(machine: Machine, *, has_fp8_math: bool) -> DeviceRates:
    """The slowest device's rates: a step waits for it."""
    found = [_rates(product, has_fp8_math) for product in dict.fromkeys(machine.products)]
    return min(found, key=lambda rates: (rates.expert_flops_s, rates.memory_bytes))


def _rates(product: Product, has_fp8_math: bool) -> DeviceRates:
    traits = product.traits
    is_cpu = traits.kind == "cpu"
    assumed = ["efficiencies of kernels"]
    bf16 = product.peak.bf16 or product.peak.fp16 or product.peak.fp32
    memory = product.memory_bandwidth_bytes_s
    if bf16 is None:
        assumed.append(f"bf16 peak of {product.name} (taken as {_UNKNOWN_FLOPS_S / 1e12:.0f} TF)")
    if memory is None:
        assumed.append(
            f"memory rate of {product.name} (taken as {_UNKNOWN_BYTES_S / 1e9:.0f} GB/s)"
        )
    gemm_error = 0.35 if bf16 else 0.6
    memory_error = 0.2 if memory else 0.5
    bf16, memory = bf16 or _UNKNOWN_FLOPS_S, memory or _UNKNOWN_BYTES_S
    fp8 = product.peak.fp8 if has_fp8_math and product.peak.fp8 else None
    start_s = _GRAPH_START_S if traits.graph_capture else _EAGER_START_S
    return DeviceRates(
        dense_flops_s=bf16 * (0.85 if is_cpu else 0.6),
        fp8_flops_s=fp8 * 0.4 if fp8 else bf16 * (0.7 if is_cpu else 0.5),
        expert_flops_s=bf16 * (0.6 if is_cpu else 0.4),
        attention_flops_s=bf16 * (0.4 if is_cpu else 0.35),
        memory_bytes_s=memory * 0.8,
        memory_bytes=product.memory_bytes,
        start_s=_CPU_START_S if is_cpu else start_s,
        half_rows=4.0 if is_cpu else 16.0,
        errors=Parts(gemm=gemm_error, attention=0.4, memory=memory_error, wire=0.25, latency=0.4),
        assumed=tuple(assumed),
    )
