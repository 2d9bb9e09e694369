"""Launching the push kernel: what it is compiled for, and how many programs run."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernels.collectives.calls import Reduction
from kernels.collectives.push.layout import CHANNELS, Rounds
from kernels.collectives.push.memory import PushMemory
from kernels.collectives.push.triton_kernel import exchange_kernel

TILE, NUM_WARPS = 2048, 16
_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
_DTYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int64: tl.int64,
}


def launch(
    memory: PushMemory,
    sent: torch.Tensor,
    taken: torch.Tensor,
    *,
    rounds: Rounds,
    word_bytes: int,
    dtype: torch.dtype,
    reduction: Reduction | None,
) -> None:
    """One exchange. `sent` and `taken` (2 · ranks,) int64: see `exchange_kernel`."""
    group, inbox = memory.group, memory.inbox
    kernel: Any = exchange_kernel  # Triton's stubs know nothing of options
    kernel[(rounds.num_channels,)](
        memory.addresses,
        memory.state,
        sent,
        taken,
        memory.notice.data_ptr(),
        group.rank,
        rounds.num_rounds,
        rounds.piece_bytes,
        memory.max_polls,
        SIZE=group.size,
        CHANNELS=CHANNELS,
        FIRST_SLOT=inbox.first_slot,
        SLOT_BYTES=inbox.slot_bytes,
        WORD=_WORDS[word_bytes],
        # Bytes that are only moved are of no dtype, so one build serves them all.
        DTYPE=_DTYPES[dtype] if reduction else tl.int8,
        REDUCTION=reduction or "none",
        TILE=TILE,
        num_warps=NUM_WARPS,
    )
