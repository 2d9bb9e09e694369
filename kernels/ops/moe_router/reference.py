"""Expert choice in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.moe_router.routing import RENORMALISE_EPS, Routing
from kernels.spec import Case

# T tokens, E experts, k choices of a token, G groups, V vocabulary.


def expert_scores(logits_TE: torch.Tensor, score: str) -> torch.Tensor:
    """Scores in float32, or in float64 when given it."""
    wide_TE = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    if score == "softmax":
        return torch.softmax(wide_TE, -1)
    if score == "sigmoid":
        return torch.sigmoid(wide_TE)
    return F.softplus(wide_TE, threshold=1e9).sqrt()  # no linear shortcut


def best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest along the last dim, equal ones in the order of index."""
    return torch.argsort(values, dim=-1, descending=True, stable=True)[..., :count]


def choose_experts(selection_TE: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The k best experts of the best groups, int64 (T, k)."""
    if routing.num_groups > 1:
        groups_TGe = selection_TE.unflatten(-1, (routing.num_groups, -1))
        top = min(2, groups_TGe.shape[-1])
        worth_TG = groups_TGe.topk(top, dim=-1).values.sum(-1)
        kept_TG = torch.zeros_like(worth_TG, dtype=torch.bool)
        kept_TG.scatter_(-1, best(worth_TG, routing.kept_groups), True)
        groups_TGe = groups_TGe.masked_fill(~kept_TG[..., None], -torch.inf)
        selection_TE = groups_TGe.flatten(-2)
    return best(selection_TE, routing.k)


def moe_router(
    logits_TE: torch.Tensor,
    routing: Routing,
    bias_E: torch.Tensor | None = None,
    table_Vk: torch.Tensor | None = None,
    token_ids_T: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.moe_router.moe_router`; float64 logits give float64 weights."""
    scores_TE = expert_scores(logits_TE, routing.score)
    if routing.score == "hash":
        assert table_Vk is not None
        assert token_ids_T is not None
        ids_Tk = table_Vk[token_ids_T.long()].long()
    else:
        selection_TE = scores_TE if bias_E is None else scores_TE + bias_E.to(scores_TE.dtype)
        ids_Tk = choose_experts(selection_TE, routing)
    weights_Tk = scores_TE.gather(-1, ids_Tk)
    if routing.is_renormalised:
        weights_Tk = weights_Tk / (weights_Tk.sum(-1, keepdim=True) + RENORMALISE_EPS)
    return ids_Tk.int(), weights_Tk * routing.scale


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random logits (a view with a stride) and what the score needs beside them."""
    num_tokens, num_experts, k, groups = (case.sizes[s] for s in "TEkG")
    score = case.options["score"]
    logits = torch.randn(num_tokens, 2 * num_experts, generator=generator)
    logits_TE = logits.to(TORCH_DTYPES[case.dtype])[:, :num_experts]
    routing = Routing(
        score=score,
        k=k,
        num_groups=groups,
        kept_groups=max(1, groups // 2),
        scale=1.0 if score == "softmax" else 1.5,
    )
    if score == "hash":
        rows = torch.rand(64, num_experts, generator=generator).argsort(-1)[:, :k].int()
        token_ids_T = torch.randint(0, 64, (num_tokens,), generator=generator)
        return (logits_TE, routing, None, rows, token_ids_T), {}
    bias_E = None
    if score != "softmax":
        bias_E = 0.1 * torch.randn(num_experts, generator=generator)
    return (logits_TE, routing, bias_E), {}
