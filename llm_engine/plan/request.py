"""What a plan is made for: the sizes of a step, the precision, the pages the machine dictates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Sizes of the two phases and what the machine decides beforehand.

    Units: tokens, but `prompts` and `batch` count sequences. A prefill step computes the last
    `prefill_tokens` of `prompts` of `context` tokens each, evenly; a decode step adds one token to
    each of `batch` sequences of `context` tokens. `has_fp8_math` says that activations are
    quantised in front of fp8 weights. `vendor_page` is 0 unless the vendor's operators dictate a
    page.
    """

    prefill_tokens: int = 4096
    context: int = 8192
    prompts: int = 1
    batch: int = 1
    dtype: str = "bf16"
    cache: str = "bf16"
    has_fp8_math: bool = True
    vendor_page: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that no step has."""
        for name in ("prefill_tokens", "context", "prompts", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.prefill_tokens > self.context * self.prompts:
            raise ValueError(
                f"prefill_tokens {self.prefill_tokens} is above context {self.context}: the "
                "context counts the tokens of the step; raise it or take a smaller chunk"
            )
