"""One step of a phase: the op uses that families share, in the sizes of the step.

Sizes: T rows of the step, S context, D width, I inner width, H heads, K key heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.layer_groups import LayerGroup, OpUse, use
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The rows of one step and the formats of the model; makes op uses in those sizes.

    `rows` are those of all of `batch` sequences, each with a context of its own. `block` is the
    scale block of fp8 weights, None for plain ones.
    """

    phase: str
    rows: int
    context: int
    batch: int
    dtype: str
    cache: str
    block: str | None
    has_fp8_math: bool
    expert_weights: str

    @property
    def is_prefill(self) -> bool:
        """Whether the rows are parts of prompts, not one of each sequence."""
        return self.phase == "prefill"

    @property
    def quant(self) -> dict[str, str]:
        """The option of what feeds a quantised projection."""
        return {"quant": "fp8"} if self.block and self.has_fp8_math else {}

    @property
    def cache_rows(self) -> str:
        """Format of cached rows as ops name it."""
        return "fp8" if self.cache == "fp8" else "bf16"

    @property
    def _cache_items(self) -> str:
        """What an inserted row is written in: fp8, or the activations' own dtype."""
        return "fp8" if self.cache == "fp8" else self.dtype

    def attended(self, ratio: int = 1, at_most: int | None = None) -> float:
        """Mean rows that a query sees when `ratio` tokens share a row, causally."""
        own = self.rows / self.batch
        mean = self.context - (own - 1) / 2 if self.is_prefill else float(self.context)
        return mean / ratio if at_most is None else min(mean / ratio, float(at_most))

    def linear(self, width: int, depth: int, count: int = 1, *, is_cut: bool = False) -> OpUse:
        """A projection depth -> width in the checkpoint's format; `is_cut` as in OpUse."""
        sizes = {"M": self.rows, "N": width, "K": depth}
        if self.block is None:
            return use("gemm", self.dtype, sizes, count=count, is_cut=is_cut)
        options = {"block": self.block}
        return use("block_fp8_gemm", self.dtype, sizes, options=options, count=count, is_cut=is_cut)

    def plain(
        self,
        width: int,
        depth: int,
        count: int = 1,
        rows: int | None = None,
        *,
        is_cut: bool = False,
    ) -> OpUse:
        """A projection that stays in the activations' dtype in every checkpoint."""
        sizes = {"M": rows or self.rows, "N": width, "K": depth}
        return use("gemm", self.dtype, sizes, count=count, is_cut=is_cut)

    def norm(
        self, width: int, *, residual: bool = False, is_quantised: bool = True, count: int = 1
    ) -> OpUse:
        """RMSNorm, with the quantisation that a projection behind it wants."""
        options = {"residual": "yes"} if residual else {}
        options |= self.quant if is_quantised else {}
        sizes = {"T": self.rows, "D": width}
        return use("rms_norm", self.dtype, sizes, options=options, count=count)

    def rotary(
        self,
        heads: tuple[int, int],
        width: int,
        rotated: int,
        page: int,
        *,
        style: str,
        has_norm: bool = False,
        is_cached: bool = True,
        is_inverse: bool = False,
    ) -> OpUse:
        """Rotation of `heads` (query, key) and the insertion of the keys into their pages."""
        sizes = {"T": self.rows, "H": heads[0], "K": heads[1], "D": width, "R": rotated}
        options = {
            "style": style,
            "qk_norm": "yes" if has_norm else "none",
            "cache": self._cache_items if is_cached else "none",
        }
        options |= {"inverse": "yes"} if is_inverse else {}
        return use("rotary_insert", self.dtype, sizes | {"page": page}, options=options)

    def mlp(self, width: int, inner: int, *, is_clamped: bool = False) -> tuple[OpUse, ...]:
        """Gate and up in one product, SwiGLU, down."""
        options = ({"clamp": "yes"} if is_clamped else {}) | self.quant
        sizes = {"T": self.rows, "I": inner}
        activation = use("swiglu", self.dtype, sizes, options=options)
        up = self.linear(2 * inner, width, is_cut=True)
        return (up, activation, self.linear(width, inner, is_cut=True))

    def experts(
        self, num: int, chosen: int, width: int, inner: int, *, score: str, groups: int = 1
    ) -> tuple[OpUse, ...]:
        """Router product, choice, and the experts with their combination."""
        sizes = {"T": self.rows, "E": num, "k": chosen}
        router = use("moe_router", self.dtype, sizes | {"G": groups}, options={"score": score})
        weights = {"weights": self.expert_weights}
        moe = use("moe_gemm", self.dtype, sizes | {"D": width, "I": inner}, options=weights)
        return (self.plain(num, width), router, moe)

    def head(self, width: int, vocabulary: int) -> LayerGroup:
        """Final norm, logits of the last row of each sequence, and the sampler."""
        rows = self.batch
        sizes = {"T": rows, "D": width}
        uses = (
            use("rms_norm", self.dtype, sizes, options={"residual": "yes"}),
            self.plain(vocabulary, width, rows=rows, is_cut=True),
            use(
                "sampler", "fp32", {"B": rows, "V": vocabulary},
                options={"penalties": "none", "top": "yes"},
            ),
        )  # fmt: skip
        return LayerGroup(name="head and sampler", layers=(), uses=uses)


def steps(fields: ConfigFields, request: PlanRequest) -> tuple[Step, Step]:
    """The prefill step and the decode step of a request."""

    def step(phase: str, rows: int) -> Step:
        return Step(
            phase=phase,
            rows=rows,
            context=request.context,
            batch=request.prompts if phase == "prefill" else request.batch,
            dtype=request.dtype,
            cache=request.cache,
            block=fields.block,
            has_fp8_math=request.has_fp8_math,
            expert_weights=fields.expert_weights,
        )

    return step("prefill", request.prefill_tokens), step("decode", request.batch)
