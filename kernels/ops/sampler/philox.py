"""Philox4x32-10 in torch: the random numbers that reference, CPU form and kernel share.

Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import torch

LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10
BOTH_LOW_31 = 0x7FFFFFFF_7FFFFFFF
LARGEST = 1 - 2.0**-24  # the largest float32 below 1
SPAN = 2.0**-31


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    key: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four words of 32 random bits for each counter, int64 in [0, 2^32).

    Shapes: words of the counter and the key broadcast together, int64 in [0, 2^32).
    """
    even = torch.stack(torch.broadcast_tensors(counter[0], counter[2]))
    odd = torch.stack(torch.broadcast_tensors(counter[1], counter[3]))
    device = even.device
    multiplier = torch.tensor(MULTIPLIERS, device=device)
    multiplier = multiplier.view(2, *[1] * counter[0].dim())
    steps = (
        torch.tensor(KEY_STEPS, device=device) * torch.arange(NUM_ROUNDS, device=device)[:, None]
    )
    keys = torch.stack(torch.broadcast_tensors(*key))
    round_keys = (keys + steps.view(NUM_ROUNDS, *multiplier.shape)) & LOW
    for round_key in round_keys.unbind():
        # int64 products wrap, and their low 64 bits are those of the unsigned product. The odd
        # words are the low halves of products: what stands above them goes when `even` is masked.
        product = (even * multiplier).flip(0)
        even, odd = ((product >> 32) ^ (odd ^ round_key)) & LOW, product
    odd = odd & LOW
    return even[0], odd[0], even[1], odd[1]


def _high(product: torch.Tensor) -> torch.Tensor:
    return (product >> 32) & LOW


def uniforms(
    seed_B1: torch.Tensor,
    counter_B1: torch.Tensor,
    num: int,
    *,
    first_B1: torch.Tensor | None = None,
    stream: int = 0,
) -> torch.Tensor:
    """Uniform float32 in (0, 1): numbers first … first + num - 1 of a stream, (B, num).

    (low 31 bits + 1/2) / 2^31, kept below 1: small values keep all their bits. Number v is word
    v % 4 of the counter (v // 4, draw, stream); `first` is a multiple of 4, by default 0.
    """
    seed_B1, counter_B1 = seed_B1.long(), counter_B1.long()
    group_BN = torch.arange(-(-num // 4), device=seed_B1.device).unsqueeze(0)
    if first_B1 is not None:
        group_BN = group_BN + first_B1 // 4
    w0, w1, w2, w3 = philox(
        (group_BN, counter_B1 & LOW, _high(counter_B1), torch.full_like(group_BN, stream)),
        (seed_B1 & LOW, _high(seed_B1)),
    )
    # Two words share an int64, so that their int32 halves lie in the order of the numbers.
    pairs = torch.stack(torch.broadcast_tensors((w1 << 32) | w0, (w3 << 32) | w2), dim=-1)
    halves_BN = (pairs & BOTH_LOW_31).flatten(-2).view(torch.int32)[:, :num]
    return halves_BN.float().add_(0.5).mul_(SPAN).clamp_(max=LARGEST)
