"""Scores, groups, top-k and renormalisation of one token in one program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.moe_router.routing import RENORMALISE_EPS, SCORES, Routing

# T tokens, E experts, G groups of E/G experts, k choices.

NEVER = tl.constexpr(float("-inf"))


@triton.jit
def sqrt_softplus(x):
    """sqrt(log(1 + e^x)) without losing e^x where it is small beside 1."""
    small = tl.exp(-tl.abs(x))
    rounded = 1.0 + small
    exact = tl.where(rounded == 1.0, small, tl.log(rounded) * (small / (rounded - 1.0)))
    return tl.sqrt_rn(tl.maximum(x, 0.0) + tl.where(small == 0.0, 0.0, exact))


@triton.jit
def first_best(values, index, COUNT: tl.constexpr):
    """Index of the largest value of a vector; of equal ones the lowest."""
    return tl.min(tl.where(values == tl.max(values, axis=0), index, COUNT), axis=0)


@triton.jit
def moe_router_kernel(
    logits_ptr,
    bias_ptr,
    table_ptr,
    token_ptr,
    ids_ptr,
    weights_ptr,
    logits_stride,
    group_size,
    scale,
    SCORE: tl.constexpr,  # 0 softmax, 1 sigmoid, 2 sqrt(softplus), 3 the same with a table
    HAS_BIAS: tl.constexpr,
    IS_RENORMALISED: tl.constexpr,
    EPS: tl.constexpr,
    K: tl.constexpr,
    CHOICES: tl.constexpr,  # K rounded up to a power of two
    NUM_GROUPS: tl.constexpr,
    KEPT_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,  # the same rounded up to powers of two
    MEMBERS: tl.constexpr,
):
    """One program a token. Experts lie as (GROUPS, MEMBERS), so that a group is a row."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    member = tl.arange(0, MEMBERS)
    is_expert = (group[:, None] < NUM_GROUPS) & (member[None, :] < group_size)
    expert = group[:, None] * group_size + member[None, :]
    at = logits_ptr + token * logits_stride + expert
    logits = tl.load(at, mask=is_expert, other=0.0).to(tl.float32)
    if SCORE == 0:
        logits = tl.where(is_expert, logits, NEVER)
        largest = tl.max(tl.max(logits, axis=1), axis=0)
        score = tl.exp(logits - largest)
        score = score / tl.sum(tl.sum(score, axis=1), axis=0)
    elif SCORE == 1:
        score = 1.0 / (1.0 + tl.exp(-logits))
    else:
        score = sqrt_softplus(logits)

    selection = score
    if HAS_BIAS:
        selection += tl.load(bias_ptr + expert, mask=is_expert, other=0.0).to(tl.float32)
    selection = tl.where(is_expert, selection, NEVER)
    if KEPT_GROUPS < NUM_GROUPS:
        best = tl.max(selection, axis=1)
        at_best = tl.where(selection == best[:, None], member[None, :], MEMBERS)
        others = tl.where(member[None, :] == tl.min(at_best, axis=1)[:, None], NEVER, selection)
        second = tl.max(others, axis=1)
        worth = best + tl.where(group_size > 1, second, 0.0)
        worth = tl.where(group < NUM_GROUPS, worth, NEVER)
        is_kept = group < 0
        for _ in tl.static_range(KEPT_GROUPS):
            chosen = group == first_best(tl.where(is_kept, NEVER, worth), group, GROUPS)
            is_kept = is_kept | chosen
        selection = tl.where(is_kept[:, None], selection, NEVER)

    choice = tl.arange(0, CHOICES)
    ids = tl.zeros((CHOICES,), dtype=tl.int32)
    weights = tl.zeros((CHOICES,), dtype=tl.float32)
    is_free = is_expert
    if SCORE == 3:
        row = table_ptr + tl.load(token_ptr + token).to(tl.int64) * K
    for slot in tl.static_range(K):
        if SCORE == 3:
            found = tl.load(row + slot).to(tl.int32)
        else:
            left = tl.where(is_free, selection, NEVER)
            top = tl.max(tl.max(left, axis=1), axis=0)
            is_top = is_free & (left == top)
            found = tl.min(tl.min(tl.where(is_top, expert, 1 << 30), axis=1), axis=0)
        here = is_expert & (expert == found)
        is_free = is_free & (expert != found)
        weight = tl.sum(tl.sum(tl.where(here, score, 0.0), axis=1), axis=0)
        ids = tl.where(choice == slot, found, ids)
        weights = tl.where(choice == slot, weight, weights)
    if IS_RENORMALISED:
        weights = weights / (tl.sum(weights, axis=0) + EPS)
    tl.store(ids_ptr + token * K + choice, ids, mask=choice < K)
    tl.store(weights_ptr + token * K + choice, weights * scale, mask=choice < K)


def moe_router(
    logits_TE: torch.Tensor,
    routing: Routing,
    bias_E: torch.Tensor | None = None,
    table_Vk: torch.Tensor | None = None,
    token_ids_T: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program a token. See `kernels.ops.moe_router.moe_router` for the contract."""
    num_tokens, num_experts = logits_TE.shape
    device, k = logits_TE.device, routing.k
    ids_Tk = torch.empty(num_tokens, k, dtype=torch.int32, device=device)
    weights_Tk = torch.empty(num_tokens, k, dtype=torch.float32, device=device)
    if num_tokens == 0:
        return ids_Tk, weights_Tk
    logits_TE = logits_TE if logits_TE.stride(-1) == 1 else logits_TE.contiguous()
    group_size = num_experts // routing.num_groups
    moe_router_kernel[(num_tokens,)](
        logits_TE,
        bias_E.contiguous() if bias_E is not None else logits_TE,
        table_Vk.contiguous() if table_Vk is not None else ids_Tk,
        token_ids_T.contiguous() if token_ids_T is not None else ids_Tk,
        ids_Tk,
        weights_Tk,
        logits_TE.stride(0),
        group_size,
        routing.scale,
        SCORE=SCORES.index(routing.score),
        HAS_BIAS=bias_E is not None,
        IS_RENORMALISED=routing.is_renormalised,
        EPS=RENORMALISE_EPS,
        K=k,
        CHOICES=triton.next_power_of_2(k),
        NUM_GROUPS=routing.num_groups,
        KEPT_GROUPS=routing.kept_groups,
        GROUPS=triton.next_power_of_2(routing.num_groups),
        MEMBERS=triton.next_power_of_2(group_size),
        num_warps=1,
    )
    return ids_Tk, weights_Tk
