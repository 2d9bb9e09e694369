"""Sort (token, choice) pairs by expert, each expert padded to whole blocks of rows.

Nothing here waits for the device, so a graph can capture it: lengths are upper bounds that follow
from shapes alone, and blocks past the end carry expert -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# T tokens, k choices, E experts, P padded rows, B blocks, D width. A pair is token · k + choice.

NO_EXPERT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """Which pair stands in which row.

    Shapes: order (P) int32, the pair of each row, T·k where the row is padding; expert (B) int32,
    the expert of each block of `block` rows, -1 past the end; counts (E) int32, pairs by expert.
    Invariants: P = B · block; pairs of an expert stand in rising order; every pair stands once.
    """

    order_P: torch.Tensor
    expert_B: torch.Tensor
    counts_E: torch.Tensor
    block: int
    num_pairs: int


def padded_rows(num_pairs: int, num_experts: int, block: int) -> int:
    """The most rows that any routing can need: each expert with a pair may waste block - 1."""
    most = num_pairs + min(num_pairs, num_experts) * (block - 1)
    return most // block * block


def sort_tokens(ids_Tk: torch.Tensor, num_experts: int, block: int) -> Sorting:
    """Rows by expert, padded for each expert to a multiple of `block`.

    Shapes: ids (T, k), each in 0 ... E - 1.
    Cost: one stable sort of T·k integers and a few passes over E.
    """
    device, num_pairs = ids_Tk.device, ids_Tk.numel()
    rows = padded_rows(num_pairs, num_experts, block)
    flat = ids_Tk.reshape(-1).long()
    sorted_ids, pairs = torch.sort(flat, stable=True)
    ones = torch.ones_like(flat)
    counts_E = torch.zeros(num_experts, dtype=torch.long, device=device).scatter_add_(0, flat, ones)
    padded_E = (counts_E + block - 1) // block * block
    ends_E = padded_E.cumsum(0)
    shift_E = ends_E - padded_E - (counts_E.cumsum(0) - counts_E)
    place = torch.arange(num_pairs, device=device) + shift_E[sorted_ids]
    order_P = torch.full((rows,), num_pairs, dtype=torch.int32, device=device)
    order_P[place] = pairs.int()
    starts_B = torch.arange(0, rows, block, device=device)
    expert_B = torch.searchsorted(ends_E, starts_B, right=True)
    expert_B = torch.where(expert_B < num_experts, expert_B, NO_EXPERT)
    return Sorting(
        order_P=order_P,
        expert_B=expert_B.int(),
        counts_E=counts_E.int(),
        block=block,
        num_pairs=num_pairs,
    )


def permute(x_TD: torch.Tensor, sorting: Sorting) -> torch.Tensor:
    """Rows of x in the order of a sorting, (P, D); rows of padding are zero."""
    num_tokens = x_TD.shape[0]
    if num_tokens == 0:
        return x_TD.new_zeros(sorting.order_P.shape[0], x_TD.shape[1])
    k = sorting.num_pairs // num_tokens
    is_pair = sorting.order_P < sorting.num_pairs
    token = torch.where(is_pair, sorting.order_P, 0).long() // k
    return torch.where(is_pair[:, None], x_TD[token], 0)


def unpermute(rows_PD: torch.Tensor, sorting: Sorting) -> torch.Tensor:
    """Rows back in the order of pairs, (T·k, D); padding is dropped."""
    pairs = rows_PD.new_zeros(sorting.num_pairs + 1, rows_PD.shape[1])
    pairs[sorting.order_P.long()] = rows_PD
    return pairs[: sorting.num_pairs]
