"""The one kernel of the push transport: write to all, raise flags, wait for all, take or add up.

In an epoch a channel writes its piece for every rank into that rank's inbox, raises its flag there
to the epoch, waits until the flags of all others have reached it, and takes what lies in its own
inbox. Epochs are counted on the device, one count a channel, and never start again.

Two turns of slots are enough, without a barrier: rank r writes turn e % 2 of rank p's inbox again
in epoch e + 2. By then r has seen p's flag of epoch e + 1, which p raised behind its reads of
epoch e. So every epoch has a flag between all pairs of ranks, also where nothing is to be moved.

Peers are written in the order rank + 1, rank + 2, …: at each step every rank writes to another
one, because writes of many ranks to one collapse on PCIe.
Source: the flags and turns are those of published one-shot all-reduces over peer memory (vLLM,
FlashInfer pull request 4393); epochs per channel and the spreading of blame are ours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.collectives.push.flag_code import ANY, AWAIT, RAISE, TRAP
from kernels.triton_numerics import IS_INTERPRETED, cast


@triton.jit
def raise_flag(address, value):
    """Set a flag behind everything that this program has read and written."""
    if IS_INTERPRETED:
        tl.store(address.to(tl.pointer_type(tl.int64)), value)
    else:
        tl.inline_asm_elementwise(
            RAISE, "=r,l,l", [address, value], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def await_flag(address, epoch, max_polls, source, state_ptr, notice):
    """Wait until a flag has reached the epoch; whether it has failed to, alike on all threads.

    Then `state_ptr` and `notice` hold who is to blame, counted from 1.
    """
    if IS_INTERPRETED:
        flag_ptr = address.to(tl.pointer_type(tl.int64))
        seen = tl.load(flag_ptr)
        polls = 1
        while (seen < epoch) & (seen >= 0) & (polls < max_polls):
            seen = tl.load(flag_ptr)
            polls += 1
        is_lost = (seen < epoch).to(tl.int32)
        if is_lost != 0:
            blame = tl.where(seen < 0, -seen, source.to(tl.int64) + 1)
            tl.store(state_ptr, blame)
            tl.store(notice.to(tl.pointer_type(tl.int64)), blame)
    else:
        blamed = source.to(tl.int64) + 1
        is_lost = tl.inline_asm_elementwise(
            AWAIT, "=r,l,l,l,l,l,l",
            [address, epoch, max_polls, blamed, state_ptr.to(tl.int64), notice],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    return is_lost


@triton.jit
def any_thread(value):
    """Whether a number is not 0 for any thread of the program."""
    if IS_INTERPRETED:
        found = (value != 0).to(tl.int32)
    else:
        found = tl.inline_asm_elementwise(
            ANY, "=r,r", [(value != 0).to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
        )
    return found


@triton.jit
def end_device():
    """Stop the device, so that nothing can be read of a result that is not complete."""
    if not IS_INTERPRETED:
        tl.inline_asm_elementwise(TRAP, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _bytes_left(total, begin, piece):
    """Bytes of a message from `begin` on, a piece at most."""
    return tl.maximum(tl.minimum(total - begin, piece), 0)


@triton.jit
def _copy(target, source, num_bytes, WORD: tl.constexpr, TILE: tl.constexpr):
    """Copy bytes between two addresses, in words that divide both and their number."""
    WORD_BYTES: tl.constexpr = WORD.primitive_bitwidth // 8
    source_ptr = source.to(tl.pointer_type(WORD))
    target_ptr = target.to(tl.pointer_type(WORD))
    num_words = num_bytes // WORD_BYTES
    at = tl.zeros([], tl.int64)
    while at < num_words:
        word = at + tl.arange(0, TILE)
        inside = word < num_words
        tl.store(target_ptr + word, tl.load(source_ptr + word, mask=inside), mask=inside)
        at += TILE


@triton.jit
def _join(total, part, REDUCTION: tl.constexpr):
    """The next rank's values joined to those of the ranks before."""
    if REDUCTION == "sum":
        joined = total + part
    else:
        joined = tl.maximum(total, part, propagate_nan=tl.PropagateNan.ALL)
    return joined


@triton.jit
def _combine(
    out, own, slots, num_bytes, rank, SIZE: tl.constexpr, SLOT_BYTES: tl.constexpr,
    DTYPE: tl.constexpr, REDUCTION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out = what all ranks hold, joined in their order in float32 and rounded once."""
    WIDE: tl.constexpr = tl.int64 if tl.int64 == DTYPE else tl.float32
    count = num_bytes // (DTYPE.primitive_bitwidth // 8)
    out_ptr = out.to(tl.pointer_type(DTYPE))
    at = tl.zeros([], tl.int64)
    while at < count:
        element = at + tl.arange(0, TILE)
        inside = element < count
        first = tl.where(rank == 0, own, slots).to(tl.pointer_type(DTYPE))
        total = tl.load(first + element, mask=inside, other=0).to(WIDE)
        for source in tl.static_range(1, SIZE):
            part = tl.where(rank == source, own, slots + source * SLOT_BYTES)
            values = tl.load(part.to(tl.pointer_type(DTYPE)) + element, mask=inside, other=0)
            total = _join(total, values.to(WIDE), REDUCTION)
        if tl.int64 == DTYPE:
            tl.store(out_ptr + element, total, mask=inside)
        else:
            tl.store(out_ptr + element, cast(total, DTYPE), mask=inside)
        at += TILE


@triton.jit(do_not_specialize=["notice", "rank", "num_rounds", "max_polls"])
def exchange_kernel(
    inbox_ptr, state_ptr, sent_ptr, taken_ptr, notice, rank, num_rounds, piece, max_polls,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, FIRST_SLOT: tl.constexpr, SLOT_BYTES: tl.constexpr,
    WORD: tl.constexpr, DTYPE: tl.constexpr, REDUCTION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One channel a program. See `kernels.collectives.push.layout` for inboxes and rounds.

    `inbox_ptr` (SIZE,) addresses of the inboxes of all ranks; `state_ptr` (1 + CHANNELS,) who is to
    blame and the epochs; `sent_ptr` and `taken_ptr` (2, SIZE) addresses and bytes of what goes to
    and comes from each rank, all int64. With REDUCTION "none" parts are copied, this rank's own is
    not; otherwise the parts of all are added to what is taken from this rank itself.
    """
    channel = tl.program_id(0)
    epoch = tl.load(state_ptr + 1 + channel)
    is_lost = any_thread(tl.load(state_ptr))
    my_inbox = tl.load(inbox_ptr + rank)
    begin = channel.to(tl.int64) * piece
    num_done = 0
    while (num_done < num_rounds) & (is_lost == 0):
        epoch += 1
        first_slot = FIRST_SLOT + ((epoch % 2) * CHANNELS + channel) * SIZE * SLOT_BYTES
        for step in range(1, SIZE):
            peer = (rank + step) % SIZE
            inbox = tl.load(inbox_ptr + peer)
            num_bytes = _bytes_left(tl.load(sent_ptr + SIZE + peer), begin, piece)
            source = tl.load(sent_ptr + peer) + begin
            _copy(inbox + first_slot + rank * SLOT_BYTES, source, num_bytes, WORD, TILE)
            raise_flag(inbox + (channel * SIZE + rank) * 8, epoch)
        for step in range(1, SIZE):
            if is_lost == 0:
                peer = (rank + SIZE - step) % SIZE
                flag = my_inbox + (channel * SIZE + peer) * 8
                is_lost = await_flag(flag, epoch, max_polls, peer, state_ptr, notice)
        if is_lost == 0:
            if REDUCTION == "none":
                for step in range(1, SIZE):
                    peer = (rank + SIZE - step) % SIZE
                    num_bytes = _bytes_left(tl.load(taken_ptr + SIZE + peer), begin, piece)
                    target = tl.load(taken_ptr + peer) + begin
                    slot = my_inbox + first_slot + peer * SLOT_BYTES
                    _copy(target, slot, num_bytes, WORD, TILE)
            else:
                num_bytes = _bytes_left(tl.load(taken_ptr + SIZE + rank), begin, piece)
                own = tl.load(sent_ptr + rank) + begin
                out = tl.load(taken_ptr + rank) + begin
                _combine(
                    out, own, my_inbox + first_slot, num_bytes, rank,
                    SIZE, SLOT_BYTES, DTYPE, REDUCTION, TILE,
                )  # fmt: skip
        begin += piece * tl.num_programs(0)
        num_done += 1
    tl.store(state_ptr + 1 + channel, epoch)
    if is_lost != 0:
        for step in range(1, SIZE):
            peer = (rank + step) % SIZE
            flag = tl.load(inbox_ptr + peer) + (channel * SIZE + rank) * 8
            raise_flag(flag, -tl.load(state_ptr))
        end_device()
