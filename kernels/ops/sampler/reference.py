"""The sampler in plain torch: the oracle."""

from __future__ import annotations

import torch

from kernels.ops.sampler.philox import uniforms
from kernels.ops.sampler.rows import Draws, Penalties

NEVER = float("-inf")
BLOCK_TOKENS = 128  # tokens among which one number decides first
BLOCK_STREAM = 1  # stream of the numbers of blocks; those of tokens are stream 0


def sampler(
    logits_BV: torch.Tensor,
    draws: Draws,
    penalties: Penalties | None = None,
    bias_BV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.sampler.sampler`; computes in float32, or in float64 when given it."""
    wide_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    adjusted_BV = adjust(wide_BV, penalties, bias_BV)
    largest_B1 = adjusted_BV.amax(-1, keepdim=True)
    tokens_B = choose(adjusted_BV - largest_B1, draws)
    return finish(wide_BV, largest_B1, tokens_B)


def choose(lowered_BV: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Tokens of rows whose largest logit lies at 0."""
    is_greedy_B1 = draws.temperature.unsqueeze(1) <= 0
    temperature_B1 = draws.temperature.unsqueeze(1).to(lowered_BV.dtype)
    scaled_BV = lowered_BV / temperature_B1.masked_fill(is_greedy_B1, 1.0)
    drawn_B = draw(scaled_BV, lowest_kept(scaled_BV, draws), draws)
    return torch.where(is_greedy_B1.squeeze(1), scaled_BV.argmax(-1), drawn_B)


def draw(scaled_BV: torch.Tensor, lowest_B1: torch.Tensor | None, draws: Draws) -> torch.Tensor:
    """A block of tokens by its mass, then one of its tokens; none below `lowest`."""
    mass_BV = scaled_BV.exp()
    if lowest_B1 is not None:
        mass_BV = mass_BV.masked_fill_(scaled_BV < lowest_B1, 0.0)
    missing = -scaled_BV.shape[1] % BLOCK_TOKENS
    if missing:
        mass_BV = torch.nn.functional.pad(mass_BV, (0, missing))
    mass_BG = mass_BV.unflatten(1, (-1, BLOCK_TOKENS)).sum(-1)
    return draw_from_blocks(mass_BG, scaled_BV, lowest_B1, draws)


def draw_from_blocks(
    mass_BG: torch.Tensor, scaled_BV: torch.Tensor, lowest_B1: torch.Tensor | None, draws: Draws
) -> torch.Tensor:
    """As `draw`, with the masses of the blocks given."""
    key = draws.seed.unsqueeze(1), draws.counter.unsqueeze(1)
    noise_BG = gumbel(uniforms(*key, mass_BG.shape[1], stream=BLOCK_STREAM))
    block_B1 = (mass_BG.log() + noise_BG.to(mass_BG.dtype)).argmax(-1, keepdim=True)
    first_B1 = block_B1 * BLOCK_TOKENS
    token_BN = first_B1 + torch.arange(BLOCK_TOKENS, device=first_B1.device)
    is_outside_BN = token_BN >= scaled_BV.shape[1]
    inside_BN = scaled_BV.gather(1, token_BN.masked_fill(is_outside_BN, 0))
    if lowest_B1 is not None:
        is_outside_BN |= inside_BN < lowest_B1
    noise_BN = gumbel(uniforms(*key, BLOCK_TOKENS, first_B1=first_B1))
    score_BN = (inside_BN + noise_BN.to(scaled_BV.dtype)).masked_fill(is_outside_BN, NEVER)
    return token_BN.gather(1, score_BN.argmax(-1, keepdim=True)).squeeze(1)


def gumbel(uniform: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise from uniform numbers; the smallest give the largest noise."""
    return torch.log1p(-uniform.double()).neg_().log_().neg_()


def adjust(
    logits_BV: torch.Tensor, penalties: Penalties | None, bias_BV: torch.Tensor | None
) -> torch.Tensor:
    """Logits after penalties and bias."""
    if penalties is not None:
        was_said = penalties.counts > 0
        repetition_B1 = penalties.repetition.unsqueeze(1).to(logits_BV.dtype)
        lowered_BV = torch.where(
            logits_BV > 0, logits_BV / repetition_B1, logits_BV * repetition_B1
        )
        logits_BV = torch.where(was_said | penalties.prompt, lowered_BV, logits_BV)
        logits_BV = logits_BV - penalties.presence.unsqueeze(1) * was_said
        logits_BV = logits_BV - penalties.frequency.unsqueeze(1) * penalties.counts
    return logits_BV if bias_BV is None else logits_BV + bias_BV


def lowest_kept(scaled_BV: torch.Tensor, draws: Draws) -> torch.Tensor | None:
    """The value (B, 1) from which on tokens may be drawn, of logits over temperature, maximum 0."""
    if not draws.has_top or scaled_BV.shape[1] == 0:
        return None
    return lowest_of_sorted(scaled_BV.sort(-1, descending=True).values, draws)


def lowest_of_sorted(
    sorted_BK: torch.Tensor, draws: Draws, total_B1: torch.Tensor | None = None
) -> torch.Tensor:
    """As `lowest_kept`, of the K largest values of a row whose mass is `total`, in falling order.

    A border beyond them yields the last of them; -inf where everything is kept.
    """
    lowest_B1 = torch.full_like(sorted_BK[:, :1], NEVER)
    mass_BK = sorted_BK.exp()
    if draws.top_k is not None:
        top_k_B1 = draws.top_k.long().unsqueeze(1)
        last_B1 = sorted_BK.gather(1, top_k_B1.clamp(1, sorted_BK.shape[1]) - 1)
        lowest_B1 = last_B1.masked_fill(top_k_B1 <= 0, NEVER)
        mass_BK = mass_BK.masked_fill(sorted_BK < lowest_B1, 0.0)
    if draws.top_p is not None:
        whole_B1 = mass_BK.sum(-1, keepdim=True)
        if total_B1 is not None:
            whole_B1 = torch.where(lowest_B1 == NEVER, total_B1, whole_B1)
        share_B1 = draws.top_p.unsqueeze(1).to(sorted_BK.dtype)
        is_inside_BK = mass_BK.cumsum(-1) - mass_BK < share_B1 * whole_B1
        last_B1 = is_inside_BK.sum(-1, keepdim=True).clamp(min=1) - 1
        border_B1 = sorted_BK.gather(1, last_B1).masked_fill(share_B1 >= 1, NEVER)
        lowest_B1 = torch.maximum(lowest_B1, border_B1)
    if draws.min_p is not None:
        lowest_B1 = torch.maximum(lowest_B1, draws.min_p.unsqueeze(1).to(lowest_B1.dtype).log())
    return lowest_B1


def finish(
    logits_BV: torch.Tensor, largest_B1: torch.Tensor, tokens_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with their log probabilities under the logits as given; -1 and NaN without one."""
    logprobs_B = logits_BV.log_softmax(-1).gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    is_sound_B = largest_B1.squeeze(1).isfinite()
    tokens_B = torch.where(is_sound_B, tokens_B, -1)
    return tokens_B, torch.where(is_sound_B, logprobs_B, float("nan")).float()
