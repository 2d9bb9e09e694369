"""The forms of their files that weights keep in memory, with the products that read them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.ledger import Decision
from llm_engine.weights.facts import WeightFacts

Op = Callable[..., Any]
NUMBERS = "bf16"  # experts in the engine's dtype, as `kernels.ops.moe_gemm` calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptForms:
    """How weights are built; as it stands, every matrix is numbers in a linear map of its own.

    `fp8_gemm` multiplies matrices that stay in e4m3 blocks; None where they become numbers.
    `moe_gemm` multiplies all experts of a layer, stacked in the format `experts`; None where each
    expert's maps are applied by themselves. Signatures are those of `kernels.ops.block_fp8_gemm`
    and, the gate's options bound, of `kernels.ops.moe_gemm`. `counts_on_device` says that the
    processor is not asked how many tokens an expert has. `decisions` say why.
    """

    fp8_gemm: Op | None = None
    moe_gemm: Op | None = None
    experts: str = NUMBERS
    counts_on_device: bool = False
    decisions: tuple[Decision, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """What stays as the files hold it, in words."""
        matrices = () if self.fp8_gemm is None else ("matrices in FP8 blocks",)
        return matrices if self.experts == NUMBERS else (*matrices, f"experts in {self.experts}")

    def weight_bytes(self, facts: WeightFacts) -> int:
        """What the weights take in these forms."""
        saved = 0 if self.fp8_gemm is None else facts.fp8_saved_bytes
        saved += 0 if self.experts == NUMBERS else facts.experts_saved_bytes
        return facts.unpacked_bytes - saved


PLAIN = KeptForms()
