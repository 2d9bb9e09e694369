"""The least time that the machine's measured rates allow the language engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.limits import Limits
from benchmarks.llm.contestants import Setting
from benchmarks.llm.model_facts import ModelFacts
from benchmarks.llm.process import Command, EngineFailed, EngineProcess

_LIMIT_S = 120.0
_PACKED_OPS = ("packed_gemm", "attention_block", "mlp_block")
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A model on a machine: what a row could reach, in the row's unit."""

    model: ModelFacts
    limits: Limits
    linear_dtype: str
    attention_dtype: str

    def decode_tok_s(self) -> float:
        """One sequence: every weight, as the file packs it, is read once a token."""
        return self.limits.read_bytes_s / self.model.weight_bytes

    def prefill_tok_s(self, num_tokens: int) -> float:
        """The prompt's products at the measured rate of the dtype that our path multiplies in."""
        return self._prefill(num_tokens, self.linear_dtype, self.attention_dtype)

    def prefill_by_dtype(self, num_tokens: int) -> dict[str, float]:
        """The same for every dtype of which the rate was measured."""
        dtypes = [d for d in ("fp32", "bf16", "int8") if d in self.limits.gemm_flop_s]
        return {d: self._prefill(num_tokens, d, self.attention_dtype) for d in dtypes}

    def _prefill(self, num_tokens: int, linear: str, attention: str) -> float:
        rates = self.limits.gemm_flop_s
        seconds = self.model.prefill_s(num_tokens, rates[linear], rates[attention])
        return num_tokens / seconds


def measured_limits(setting: Setting, *, quick: bool) -> Limits:
    """Measure now. Raises: EngineFailed."""
    command = Command(
        python=sys.executable,
        module="benchmarks.llm.limits_child",
        options={"threads": setting.threads},
        environment=setting.environment,
    )
    process = EngineProcess(command, setting.log_of("limits"))
    try:
        return Limits(**process.ask("measure", timeout_s=_LIMIT_S, quick=quick))
    finally:
        process.stop()


def bounds_of(model: ModelFacts, limits: Limits, facts: Mapping[str, Any]) -> Bounds:
    """The bounds of our engine as it says it is bound.

    Packed products may multiply in int8: then the faster of int8 and the engine's own dtype, as
    measured here, is the limit.
    Raises: EngineFailed if the machine's rate of the dtype was not measured.
    """
    dtype, rates = _SHORT[facts["dtype"]], limits.gemm_flop_s
    if dtype not in rates:
        raise EngineFailed(f"torch multiplies no {dtype} here: there is no limit to compare with")
    allowed = [dtype, *(["int8"] if _is_packed(facts["kernels"]) and "int8" in rates else [])]
    linear = max(allowed, key=lambda name: rates[name])
    return Bounds(model=model, limits=limits, linear_dtype=linear, attention_dtype=dtype)


def _is_packed(kernels: Sequence[Sequence[str]]) -> bool:
    """Whether the linear layers are bound to native products over packed weights."""
    return any(op in _PACKED_OPS and name == "native" for op, name, _ in kernels)
