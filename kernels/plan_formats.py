"""What a machine's devices decide before a model is laid out: precision, cache format, pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.hardware.profile import load_profile
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine

_CACHED_FP8 = "e4m3fn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The formats of one model on one machine, and the decisions behind them.

    Units: `vendor_page` in tokens, 0 where no vendor operator dictates a page.
    """

    dtype: str
    cache: str
    has_fp8_math: bool
    vendor_page: int
    decisions: tuple[Decision, ...]


def choose_formats(machine: Machine, *, is_quantised: bool, asked_cache: str = "auto") -> Formats:
    """Precision of activations, format of cached rows and pages, for all devices alike.

    Raises:
        ValueError: an explicit cache format that a device cannot hold.
    """
    dtype = _activation_dtype(machine)
    cache, decision = _cache(machine, is_quantised, asked_cache)
    has_fp8_math = is_quantised and all(traits.fp8_mma for traits in machine.traits)
    decisions = (decision, *_fp8_math(machine)) if is_quantised else (decision,)
    return Formats(
        dtype=dtype,
        cache=cache,
        has_fp8_math=has_fp8_math,
        vendor_page=_vendor_page(machine),
        decisions=decisions,
    )


def _activation_dtype(machine: Machine) -> str:
    if all(traits.bf16_mma for traits in machine.traits):
        return "bf16"
    return "fp16" if all(traits.fp16_mma for traits in machine.traits) else "fp32"


def _cache(machine: Machine, is_quantised: bool, asked: str) -> tuple[str, Decision]:
    reasons = tuple(
        f"{traits.name} holds no {_CACHED_FP8} rows (fp8_format: {traits.fp8_format})"
        for traits in machine.traits
        if traits.fp8_format != _CACHED_FP8
    )
    if asked == "fp8" and reasons:
        raise ValueError(f"cached rows in fp8 were asked for: {'; '.join(reasons)}")
    if asked == "auto" and not is_quantised:
        reasons = ("the checkpoint is not quantised: its rows stay exact unless fp8 is asked for",)
    chosen = asked if asked != "auto" else ("bf16" if reasons else "fp8")
    rejected = (Rejection(candidate="fp8", reasons=reasons),) if chosen != "fp8" else ()
    decision = Decision(
        kind="cache",
        where="cached rows of every layer",
        what="format",
        asked=asked,
        chosen=chosen,
        tier=Tier.FUSED,
        source="default" if asked == "auto" else "explicit",
        rejected=rejected if asked == "auto" else (),
    )
    return chosen, decision


def _fp8_math(machine: Machine) -> tuple[Decision, ...]:
    """How 8-bit weights are multiplied, by family, from the vendor's profile."""
    found: list[Decision] = []
    for traits in machine.traits:
        profile = load_profile(traits.backend)
        ways = [way for way in profile.fp8_gemm if way != "native" or traits.fp8_mma]
        without = f"fp8_mma is {'not known' if traits.fp8_mma is None else 'absent'}"
        is_native = ways[:1] == ["native"]
        found.append(
            Decision(
                kind="kernel",
                where=f"8-bit projections on {traits.name}",
                what="operands",
                asked="auto",
                chosen=ways[0] if ways else "decoded weights",
                tier=Tier.FUSED,
                source="default",
                reasons=(profile.reason("fp8_gemm"),),
                rejected=()
                if is_native
                else (Rejection(candidate="native", reasons=(f"{without} on {traits.name}",)),),
            )
        )
    return tuple(found)


def _vendor_page(machine: Machine) -> int:
    """The page that vendor operators dictate where our own kernels are not relied on."""
    for traits in machine.traits:
        profile = load_profile(traits.backend)
        if traits.kind != "cpu" and "triton" not in profile.kernel_classes:
            return profile.page_size
    return 0
