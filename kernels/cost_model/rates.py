"""What devices reach in practice: published peaks times shares that kernels reach, errors stated.

Published anchors lie between 52 and 205 TFLOP/s on cards of 504 in bf16, so kernels decide more
than cards do, and the errors here are wide. What was measured on this machine replaces the shares
(calibrated.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from kernels.cost_model.efficiency import Efficiency, efficiencies_of, sparse_heads_of
from kernels.cost_model.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.cost_model.calibrated import MeasuredRates
    from kernels.hardware.machine import Machine
    from kernels.hardware.products import Product

_UNKNOWN_FLOPS_S = 150e12  # below every accelerator of the tables with a published bf16 peak
_UNKNOWN_BYTES_S = 0.6e12
# A processor that was only detected: float32 on one Zen 4 core, and a memory channel.
_UNKNOWN_CORE_FLOPS_S, _UNKNOWN_HOST_BYTES_S = 0.08e12, 20e9
_GRAPH_START_S, _EAGER_START_S, _CPU_START_S = 2e-6, 6e-6, 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Rates that kernels of a fused tier are expected to reach on one device.

    Units: operations and bytes per second; seconds; bytes of memory. `expert_4bit_flops_s` is that
    of experts with 4-bit weights, `sparse_flops_s` attention over gathered rows, `indexer_flops_s`
    scores of keys in bf16 and `fp8_indexer_flops_s` in fp8.
    `half_rows`: a product of so many rows reaches half of its rate; with fewer than `sparse_heads`
    on a rank, attention over gathered rows takes as long as with those. `errors` are relative, by
    cause. `assumed` says in words what nobody told or measured, `sourced` what somebody measured
    elsewhere, `calibrated` what was measured on this very machine, whose `fingerprint` it is.
    `origins` says of each kind of work, as in efficiency.py, where its rate comes from; those
    `measured` are of this machine.
    """

    dense_flops_s: float
    fp8_flops_s: float
    expert_flops_s: float
    expert_4bit_flops_s: float
    attention_flops_s: float
    sparse_flops_s: float
    indexer_flops_s: float
    fp8_indexer_flops_s: float
    memory_bytes_s: float
    memory_bytes: int
    start_s: float
    half_rows: float
    errors: Parts
    assumed: tuple[str, ...]
    sparse_heads: int = 1
    sourced: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = ()
    fingerprint: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)
    measured: frozenset[str] = frozenset()

    def scaled(self, *, flops: float = 1.0, memory: float = 1.0, size: float = 1.0) -> DeviceRates:
        """The same device with more of something."""
        faster = {name: getattr(self, name) * flops for name in _FLOPS}
        return replace(
            self,
            **faster,
            memory_bytes_s=self.memory_bytes_s * memory,
            memory_bytes=round(self.memory_bytes * size),
        )


_FLOPS = tuple(f.name for f in fields(DeviceRates) if f.name.endswith("_flops_s"))


def flat_rates(flops_s: float, memory_bytes_s: float, memory_bytes: int) -> DeviceRates:
    """A device that computes everything at one rate: for figures of unknown hardware."""
    return DeviceRates(
        dense_flops_s=flops_s,
        fp8_flops_s=flops_s,
        expert_flops_s=flops_s,
        expert_4bit_flops_s=flops_s,
        attention_flops_s=flops_s,
        sparse_flops_s=flops_s,
        indexer_flops_s=flops_s,
        fp8_indexer_flops_s=flops_s,
        memory_bytes_s=memory_bytes_s,
        memory_bytes=memory_bytes,
        start_s=0.0,
        half_rows=0.0,
        errors=Parts(),
        assumed=(),
        sparse_heads=16,
    )


def rates_of(
    machine: Machine, *, has_fp8_math: bool, measured: MeasuredRates | None = None
) -> DeviceRates:
    """The slowest device's rates: a step waits for it.

    `measured` are those of this machine's processor; where a device is none, they do not apply.
    """
    products = dict.fromkeys(machine.products)
    found = [product_rates(p, has_fp8_math=has_fp8_math, measured=measured) for p in products]
    return min(found, key=lambda rates: (rates.expert_flops_s, rates.memory_bytes))


def product_rates(
    product: Product, *, has_fp8_math: bool, measured: MeasuredRates | None = None
) -> DeviceRates:
    """The rates of one product: peaks of its data sheet times the shares of its table.

    Raises: MalformedEfficiency.
    """
    traits = product.traits
    is_cpu = traits.kind == "cpu"
    shares = efficiencies_of(product)
    told_bf16 = product.peak.bf16 or product.peak.fp16 or product.peak.fp32
    told_memory = product.memory_bandwidth_bytes_s
    unknown_flops_s, unknown_bytes_s = _unknown(product)
    bf16, memory = told_bf16 or unknown_flops_s, told_memory or unknown_bytes_s
    fp8 = product.peak.fp8 if has_fp8_math and product.peak.fp8 else None
    start_s = _GRAPH_START_S if traits.graph_capture else _EAGER_START_S
    rates = {work: entry.share * bf16 for work, entry in shares.items()}
    found = DeviceRates(
        dense_flops_s=rates["dense"],
        fp8_flops_s=shares["fp8"].share * fp8 if fp8 else rates["fp8_as_bf16"],
        expert_flops_s=rates["experts"],
        expert_4bit_flops_s=rates["experts_4bit"],
        attention_flops_s=rates["attention"],
        sparse_flops_s=rates["sparse"],
        indexer_flops_s=rates["indexer"],
        fp8_indexer_flops_s=shares["indexer"].share * (fp8 or bf16),
        memory_bytes_s=shares["memory"].share * memory,
        memory_bytes=product.memory_bytes,
        start_s=_CPU_START_S if is_cpu else start_s,
        half_rows=4.0 if is_cpu else 16.0,
        errors=Parts(
            gemm=0.35 if told_bf16 else 0.6,
            attention=0.4,
            memory=0.2 if told_memory else 0.5,
            wire=0.25,
            latency=0.4,
        ),
        assumed=_assumed(product, shares, frozenset()),
        sparse_heads=sparse_heads_of(product),
        sourced=tuple(
            f"{entry.work} {entry.share:g}: {entry.source}"
            for entry in shares.values()
            if not entry.is_assumed
        ),
        origins={
            work: f"{entry.share:g} of {_peak_text(product, work)}, {entry.source}"
            for work, entry in shares.items()
        },
    )
    if not (is_cpu and measured):
        return found
    return _with_measured(found, measured, _assumed(product, shares, measured.work))


def _with_measured(
    rates: DeviceRates, measured: MeasuredRates, assumed: tuple[str, ...]
) -> DeviceRates:
    """What was measured in place of what was assumed. Products in bf16 are taken as in float32."""
    flops_s, errors = measured.flops_s, measured.errors
    return replace(
        rates,
        dense_flops_s=flops_s.get("dense", rates.dense_flops_s),
        expert_flops_s=flops_s.get("experts", rates.expert_flops_s),
        attention_flops_s=flops_s.get("attention", rates.attention_flops_s),
        memory_bytes_s=measured.memory_bytes_s or rates.memory_bytes_s,
        start_s=measured.start_s,
        errors=replace(
            rates.errors,
            gemm=errors.get("dense", rates.errors.gemm),
            attention=errors.get("attention", rates.errors.attention),
        ),
        assumed=assumed,
        calibrated=measured.texts,
        fingerprint=measured.fingerprint,
        measured=measured.work,
        origins={**rates.origins, **dict.fromkeys(measured.work, f"measured here {measured.made}")},
    )


def _peak_text(product: Product, work: str) -> str:
    peak = product.peak
    if work == "memory":
        is_told = product.memory_bandwidth_bytes_s is not None
    else:
        is_told = bool(peak.bf16 or peak.fp16 or peak.fp32)
    what = "memory rate" if work == "memory" else "peak"
    return f"the data sheet's {what}" if is_told else f"an assumed {what}"


def _unknown(product: Product) -> tuple[float, float]:
    """(operations, bytes) a second where nothing is published of a product."""
    if product.traits.kind == "cpu":
        return _UNKNOWN_CORE_FLOPS_S * (product.num_sms or 1), _UNKNOWN_HOST_BYTES_S
    return _UNKNOWN_FLOPS_S, _UNKNOWN_BYTES_S


def _assumed(
    product: Product, shares: Mapping[str, Efficiency], measured: frozenset[str]
) -> tuple[str, ...]:
    """In words, what nobody has told or measured of a product."""
    flops_s, bytes_s = _unknown(product)
    names = [e.work for e in shares.values() if e.is_assumed and e.work not in measured]
    found = [f"efficiencies of kernels ({', '.join(names)})"] if names else []
    if measured:
        found.append("products of other dtypes as fast as those of float32")
    if not (product.peak.bf16 or product.peak.fp16 or product.peak.fp32):
        found.append(f"bf16 peak of {product.name} (taken as {flops_s / 1e12:.3g} TF)")
    if not product.memory_bandwidth_bytes_s and "memory" not in measured:
        found.append(f"memory rate of {product.name} (taken as {bytes_s / 1e9:.0f} GB/s)")
    return tuple(found)
