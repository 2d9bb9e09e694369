"""Choose the experts of each token from the router's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.ops.moe_router.routing import Routing


def moe_router(
    logits_TE: torch.Tensor,
    routing: Routing,
    bias_E: torch.Tensor | None = None,
    table_Vk: torch.Tensor | None = None,
    token_ids_T: torch.Tensor | None = None,
    *,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids = top-k of s + bias in the best groups; weights = scale · s[ids] / (Σ s[ids] + 1e-20).

    s is softmax(l), σ(l) or sqrt(softplus(l)). The bias selects and never weighs. A group is worth
    the sum of the two best s + bias in it; experts outside the kept groups count as −∞. With score
    "hash" ids = table[token id], and s = sqrt(softplus(l)) weighs them.

    Shapes: logits (T, E) with any row stride; bias (E); table (V, k) and token_ids (T) for "hash"
    alone, integers. Returns ids (T, k) int32, the best first, and weights (T, k) float32.
    Numerics: scores in float32. Of equal values the lowest expert id comes first.
    Cost: logits once; about 8 operations for each of T·E values and k·E comparisons a token.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2 (bias and groups).
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.errors import ShapeError
    from kernels.ops.moe_router.spec import SPEC
    from kernels.runtime import implementation

    check_shape(logits_TE, "T E", {}, name="logits")
    num_tokens, num_experts = logits_TE.shape
    routing.check_experts(num_experts)
    is_hashed = table_Vk is not None and token_ids_T is not None
    if (routing.score == "hash") != is_hashed:
        raise ShapeError(f'score is {routing.score!r}; a table and token ids belong to "hash"')
    if table_Vk is not None and token_ids_T is not None:
        check_shape(table_Vk, "V k", {"k": routing.k}, name="table")
        check_shape(token_ids_T, "T", {"T": num_tokens}, name="token_ids")
    if bias_E is not None:
        check_shape(bias_E, "E", {"E": num_experts}, name="bias")
    sizes = {"T": num_tokens, "E": num_experts, "k": routing.k, "G": routing.num_groups}
    run = implementation(
        SPEC,
        logits_TE.device,
        DTYPE_NAMES[logits_TE.dtype],
        sizes=sizes,
        options={"score": routing.score},
        asked=impl,
    )
    return run(logits_TE, routing, bias_E, table_Vk, token_ids_T)
