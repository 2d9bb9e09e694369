"""What is compiled of the push kernel for families that are not here."""

from __future__ import annotations

import triton.language as tl

from kernels.collectives.push.launch import NUM_WARPS, TILE
from kernels.collectives.push.layout import CHANNELS, Inbox
from kernels.collectives.slots import SLOT_BYTES
from kernels.offline import Build

_SIGNATURE = {
    **dict.fromkeys(("inbox_ptr", "state_ptr", "sent_ptr", "taken_ptr"), "*i64"),
    **dict.fromkeys(("notice", "max_polls"), "i64"),
    **dict.fromkeys(("rank", "num_rounds", "piece"), "i32"),
}
_NOT_IN_GCN = "flags are raised in NVIDIA's assembly: the transport is refused there"


def _build(name: str, num_ranks: int, dtype: tl.dtype, reduction: str) -> Build:
    inbox = Inbox(num_ranks=num_ranks, slot_bytes=SLOT_BYTES // CHANNELS)
    return Build(
        name=f"{name}, {num_ranks} ranks",
        kernel="kernels.collectives.push.triton_kernel:exchange_kernel",
        signature=_SIGNATURE,
        constexprs={
            "SIZE": num_ranks,
            "CHANNELS": CHANNELS,
            "FIRST_SLOT": inbox.first_slot,
            "SLOT_BYTES": inbox.slot_bytes,
            "WORD": tl.int64,
            "DTYPE": dtype,
            "REDUCTION": reduction,
            "TILE": TILE,
        },
        num_warps=NUM_WARPS,
        skip={"gfx942": _NOT_IN_GCN, "gfx1100": _NOT_IN_GCN},
    )


BUILDS = (
    _build("sum bf16", 2, tl.bfloat16, "sum"),
    _build("sum bf16", 8, tl.bfloat16, "sum"),
    _build("max fp32", 4, tl.float32, "max"),
    _build("move", 8, tl.int8, "none"),
)
