"""The next token of every row: penalties, temperature, top-k, top-p, min-p and a Gumbel draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.sampler.rows import Draws, Penalties

if TYPE_CHECKING:
    import torch

__all__ = ["Draws", "Penalties", "sampler"]


def sampler(
    logits_BV: torch.Tensor,
    draws: Draws,
    penalties: Penalties | None = None,
    bias_BV: torch.Tensor | None = None,
    *,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """block = argmax of log(mass) + G, token = argmax of a/temperature + G in the block.

    a = penalised logits + bias; blocks are 128 neighbouring tokens. Gumbel-max twice is softmax,
    and a draw costs V/128 + 128 random numbers. G = -log(-log1p(-u)), u uniform from Philox4x32-10
    with the row's seed as key and (number // 4, counter, stream) as counter: a row draws the same
    whatever stands beside it. Kept are, in this order: the top_k likeliest; of those, tokens above
    which lies less than top_p of their mass; of those, tokens with at least min_p of the largest
    probability. Ties at a border are all kept. Temperature 0 takes the likeliest.

    Shapes: logits (B, V) with any row stride; bias (B, V) float32, -inf bans a token. Returns
    (tokens, logprobs): int64 (B) and float32 (B), the log probability under the logits as given.
    Numerics: float32; NaN, or no finite largest value after penalties and bias: token -1,
    logprob NaN. Equal scores: the lowest block or token.
    Cost: the logits once or twice from memory; 16 further passes through a cache level where
    top-k and top-p are searched.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox); Maddison
    et al. 2014, arXiv:1411.0030 (Gumbel-max); Holtzman et al. 2019, arXiv:1904.09751 (top-p).
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.sampler.rows import check_rows
    from kernels.ops.sampler.spec import SPEC
    from kernels.runtime import implementation

    check_shape(logits_BV, "B V", {}, name="logits")
    num_rows, vocabulary = logits_BV.shape
    check_rows(draws, penalties, bias_BV, (num_rows, vocabulary))
    options = {
        "penalties": "none" if penalties is None else "yes",
        "top": "yes" if draws.has_top else "none",
    }
    sizes = {"B": num_rows, "V": vocabulary}
    run = implementation(
        SPEC, logits_BV.device, DTYPE_NAMES[logits_BV.dtype], sizes=sizes, options=options,
        asked=impl,
    )  # fmt: skip
    return run(logits_BV, draws, penalties, bias_BV)
