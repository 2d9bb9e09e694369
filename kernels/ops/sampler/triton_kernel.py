"""The sampler in one launch: a program a row, which reads its logits in blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.sampler.philox import LARGEST, SPAN
from kernels.ops.sampler.reference import BLOCK_TOKENS
from kernels.ops.sampler.rows import Draws, Penalties

# B rows, V vocabulary.

GROUP = tl.constexpr(BLOCK_TOKENS)
HIGHEST = tl.constexpr(LARGEST)
STEP = tl.constexpr(SPAN)
DIGITS = tl.constexpr(16)  # borders tried in one pass: four bits of a key
NUM_PASSES = tl.constexpr(8)
FIRST_WEIGHT = tl.constexpr(1 << 28)


@triton.jit
def _log1p_of_minus(u):
    """log(1 - u) of u in (0, 1), exact to float32 rounding where 1 - u would lose bits."""
    series = -u * (1.0 + u * (0.5 + u * (0.3333333333 + u * (0.25 + u * 0.2))))
    return tl.where(u < 0.015625, series, tl.log(1.0 - u))


@triton.jit
def _gumbel(seed, counter, first, stream, NUM: tl.constexpr):
    """Gumbel noise first … first + NUM - 1 of a stream; `first` is a multiple of 4."""
    group = (tl.arange(0, NUM // 4) + first // 4).to(tl.uint32)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    zero = group * 0
    w0, w1, w2, w3 = tl.philox(seed, group, zero + low, zero + high, zero + stream)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (NUM,))
    u = ((words & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * STEP
    return -tl.log(-_log1p_of_minus(tl.minimum(u, HIGHEST)))


@triton.jit
def _key(x):
    """float32 as an unsigned integer of the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _adjusted(
    logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
    token, inside, HAS_PENALTIES: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """A block of logits as they are, and after penalties and bias; -inf outside."""
    raw = tl.load(logits_ptr + token, mask=inside, other=float("-inf")).to(tl.float32)
    x = raw
    if HAS_PENALTIES:
        count = tl.load(counts_ptr + token, mask=inside, other=0)
        in_prompt = tl.load(prompt_ptr + token, mask=inside, other=0) != 0
        lowered = tl.where(x > 0, x / repetition, x * repetition)
        x = tl.where((count > 0) | in_prompt, lowered, x)
        x = x - tl.where(count > 0, presence, 0.0)
        x = x - frequency * count.to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias_ptr + token, mask=inside, other=0.0)
    return raw, x


@triton.jit
def _mass(
    logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
    largest, temperature, floor, vocabulary, BLOCK: tl.constexpr,
    HAS_PENALTIES: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Probability of the tokens with keys from `floor` on, over that of the likeliest."""
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        token = first + tl.arange(0, BLOCK)
        inside = token < vocabulary
        x = _adjusted(
            logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
            token, inside, HAS_PENALTIES, HAS_BIAS,
        )[1]  # fmt: skip
        scaled = (x - largest) / temperature
        mass += tl.where(inside & (_key(scaled) >= floor), tl.exp(scaled), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _border(
    logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
    largest, temperature, floor, target, vocabulary, BLOCK: tl.constexpr,
    BY_MASS: tl.constexpr, HAS_PENALTIES: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The largest key t with measure(keys ≥ t) ≥ target, four bits a pass.

    The measure counts tokens, or adds their probabilities over the largest one; tokens with keys
    below `floor` have none.
    """
    prefix = floor * 0
    digit = tl.arange(0, DIGITS).to(tl.uint32)
    weight = prefix + FIRST_WEIGHT
    for _ in range(NUM_PASSES):
        border = prefix + digit * weight
        measure = tl.zeros((BLOCK, DIGITS), tl.float32)
        for first in range(0, vocabulary, BLOCK):
            token = first + tl.arange(0, BLOCK)
            inside = token < vocabulary
            x = _adjusted(
                logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
                token, inside, HAS_PENALTIES, HAS_BIAS,
            )[1]  # fmt: skip
            scaled = (x - largest) / temperature
            key = _key(scaled)
            share = tl.exp(scaled) if BY_MASS else tl.full((BLOCK,), 1.0, tl.float32)
            share = tl.where(inside & (key >= floor), share, 0.0)
            measure += tl.where(key[:, None] >= border[None, :], share[:, None], 0.0)
        reached = (tl.sum(measure, axis=0) >= target) & (digit > 0)
        prefix += tl.sum(reached.to(tl.int32), axis=0).to(tl.uint32) * weight
        weight = weight >> 4
    return prefix


@triton.jit
def sampler_kernel(
    logits_ptr,
    bias_ptr,
    prompt_ptr,
    counts_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    counter_ptr,
    token_ptr,
    logprob_ptr,
    logits_stride,
    vocabulary,
    HAS_PENALTIES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCH: tl.constexpr,
):
    """Maximum and log-sum-exp; borders of top-k and top-p; a block by its mass, then a token."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    bias_ptr += row * vocabulary
    prompt_ptr += row * vocabulary
    counts_ptr += row * vocabulary
    repetition, presence, frequency = 1.0, 0.0, 0.0
    if HAS_PENALTIES:
        repetition = tl.load(repetition_ptr + row)
        presence = tl.load(presence_ptr + row)
        frequency = tl.load(frequency_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    is_greedy = temperature <= 0
    temperature = tl.where(is_greedy, 1.0, temperature)

    raw_top = tl.full((BLOCK,), float("-inf"), tl.float32)
    raw_sum = tl.zeros((BLOCK,), tl.float32)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    top_token = tl.zeros((BLOCK,), tl.int32)
    is_unsound = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, vocabulary, BLOCK):
        token = first + tl.arange(0, BLOCK)
        inside = token < vocabulary
        raw, x = _adjusted(
            logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
            token, inside, HAS_PENALTIES, HAS_BIAS,
        )  # fmt: skip
        higher = tl.maximum(raw_top, raw)
        pivot = tl.where(higher == float("-inf"), 0.0, higher)
        raw_sum = raw_sum * tl.exp(raw_top - pivot) + tl.exp(raw - pivot)
        raw_top = higher
        is_better = x > top
        top = tl.where(is_better, x, top)
        top_token = tl.where(is_better, token, top_token)
        is_unsound |= (x != x).to(tl.int32)
    largest = tl.max(top, axis=0)
    raw_largest = tl.max(raw_top, axis=0)
    log_sum = tl.log(tl.sum(raw_sum * tl.exp(raw_top - raw_largest), axis=0)) + raw_largest
    is_sound = (tl.max(is_unsound, axis=0) == 0) & (tl.abs(largest) < float("inf"))

    floor = (row * 0).to(tl.uint32)
    if HAS_TOP_K:
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocabulary) & is_sound & (is_greedy == 0):
            floor = _border(
                logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
                largest, temperature, floor, top_k.to(tl.float32), vocabulary, SEARCH,
                False, HAS_PENALTIES, HAS_BIAS,
            )  # fmt: skip
    if HAS_TOP_P:
        top_p = tl.load(top_p_ptr + row)
        top_p = tl.maximum(top_p, 1e-30)
        if (top_p < 1) & is_sound & (is_greedy == 0):
            mass = _mass(
                logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
                largest, temperature, floor, vocabulary, BLOCK, HAS_PENALTIES, HAS_BIAS,
            )  # fmt: skip
            floor = _border(
                logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
                largest, temperature, floor, top_p * mass, vocabulary, SEARCH,
                True, HAS_PENALTIES, HAS_BIAS,
            )  # fmt: skip
    lowest = float("-inf")
    if HAS_MIN_P:
        lowest = tl.log(tl.load(min_p_ptr + row))

    winner = tl.max(top, axis=0)
    chosen = tl.min(tl.where(top == winner, top_token, 2147483647), axis=0)
    if is_sound & (is_greedy == 0):
        seed = tl.load(seed_ptr + row)
        counter = tl.load(counter_ptr + row)
        GROUPS: tl.constexpr = BLOCK // GROUP
        best = tl.full((GROUPS,), float("-inf"), tl.float32)
        best_group = tl.zeros((GROUPS,), tl.int32)
        for first in range(0, vocabulary, BLOCK):
            token = first + tl.arange(0, BLOCK)
            inside = token < vocabulary
            x = _adjusted(
                logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
                token, inside, HAS_PENALTIES, HAS_BIAS,
            )[1]  # fmt: skip
            scaled = (x - largest) / temperature
            is_kept = inside & (_key(scaled) >= floor) & (scaled >= lowest)
            share = tl.where(is_kept, tl.exp(scaled), 0.0)
            mass = tl.sum(tl.reshape(share, (GROUPS, GROUP)), axis=1)
            group = tl.arange(0, GROUPS) + first // GROUP
            score = tl.log(mass) + _gumbel(seed, counter, first // GROUP, 1, GROUPS)
            is_better = score > best
            best = tl.where(is_better, score, best)
            best_group = tl.where(is_better, group, best_group)
        highest = tl.max(best, axis=0)
        group = tl.min(tl.where(best == highest, best_group, 2147483647), axis=0)
        token = group * GROUP + tl.arange(0, GROUP)
        inside = token < vocabulary
        x = _adjusted(
            logits_ptr, bias_ptr, prompt_ptr, counts_ptr, repetition, presence, frequency,
            token, inside, HAS_PENALTIES, HAS_BIAS,
        )[1]  # fmt: skip
        scaled = (x - largest) / temperature
        is_kept = inside & (_key(scaled) >= floor) & (scaled >= lowest)
        score = scaled + _gumbel(seed, counter, group * GROUP, 0, GROUP)
        score = tl.where(is_kept, score, float("-inf"))
        highest = tl.max(score, axis=0)
        chosen = tl.min(tl.where(score == highest, token, 2147483647), axis=0)
    chosen = tl.where(is_sound, chosen, 0)
    logprob = tl.load(logits_ptr + chosen).to(tl.float32) - log_sum
    tl.store(token_ptr + row, tl.where(is_sound, chosen.to(tl.int64), -1))
    tl.store(logprob_ptr + row, tl.where(is_sound, logprob, float("nan")))


BLOCK = 2048  # tokens of a pass, 4 a lane of sixteen warps; with 8 it spills on sm_90
SEARCH = 1024  # tokens of a pass of the search, each against 16 borders
NUM_WARPS = 16


def sampler(
    logits_BV: torch.Tensor,
    draws: Draws,
    penalties: Penalties | None = None,
    bias_BV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program a row. See `kernels.ops.sampler.sampler` for the contract."""
    num_rows, vocabulary = logits_BV.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits_BV.device)
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits_BV.device)
    if num_rows == 0 or vocabulary == 0:
        return tokens.fill_(-1), logprobs.fill_(float("nan"))
    x = logits_BV if logits_BV.stride(-1) == 1 else logits_BV.contiguous()
    temperature = draws.temperature.float().contiguous()
    sampler_kernel[(num_rows,)](
        x,
        x if bias_BV is None else bias_BV.contiguous(),
        x if penalties is None else penalties.prompt.contiguous().view(torch.int8),
        x if penalties is None else penalties.counts.contiguous(),
        temperature if penalties is None else penalties.repetition.float(),
        temperature if penalties is None else penalties.presence.float(),
        temperature if penalties is None else penalties.frequency.float(),
        temperature,
        temperature if draws.top_k is None else draws.top_k.contiguous(),
        temperature if draws.top_p is None else draws.top_p.float().contiguous(),
        temperature if draws.min_p is None else draws.min_p.float().contiguous(),
        draws.seed.long().contiguous(),
        draws.counter.long().contiguous(),
        tokens,
        logprobs,
        x.stride(0),
        vocabulary,
        HAS_PENALTIES=penalties is not None,
        HAS_BIAS=bias_BV is not None,
        HAS_TOP_K=draws.top_k is not None,
        HAS_TOP_P=draws.top_p is not None,
        HAS_MIN_P=draws.min_p is not None,
        BLOCK=BLOCK,
        SEARCH=SEARCH,
        num_warps=NUM_WARPS,
    )
    return tokens, logprobs
