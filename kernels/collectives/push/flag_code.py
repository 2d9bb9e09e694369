"""Flags between devices: a store behind what it announces, a load before it, in PTX.

A flag is raised with a plain store, never with an atomic operation: not every PCIe path carries
those to a peer. The store has release and the load acquire semantics at system scope, so whatever
the block's threads wrote before is seen by all threads of the block that waits (PTX ISA, "Memory
Consistency Model": a barrier of a block joins its threads to the release of one of them).
Triton's interpreter has one thread a program and runs on x86-64, which keeps stores in order.
"""

from __future__ import annotations

import triton.language as tl

# Thread 0 raises the flag once all threads have written.
RAISE = tl.constexpr(
    """{
    .reg .pred first;
    .reg .u32 thread;
    mov.u32 thread, %tid.x;
    setp.eq.u32 first, thread, 0;
    barrier.cta.sync 0;
    @first st.release.sys.global.b64 [$1], $2;
    mov.u32 $0, 0;
    }"""
)

# Thread 0 polls and the others wait at the barrier, whose reduction gives all the same answer. Out
# of patience, or on a negative flag, it writes down who is to blame: the flag's rank, or the one
# that rank blames.
AWAIT = tl.constexpr(
    """{
    .reg .pred others, more, bad;
    .reg .u32 thread;
    .reg .b64 seen, left, blame;
    mov.u32 thread, %tid.x;
    setp.ne.u32 others, thread, 0;
    setp.ne.u32 bad, 0, 0;
    @others bra JOIN;
    mov.b64 left, $3;
    POLL:
    ld.acquire.sys.global.b64 seen, [$1];
    sub.s64 left, left, 1;
    setp.lt.s64 more, seen, $2;
    setp.ge.and.s64 more, seen, 0, more;
    setp.gt.and.s64 more, left, 0, more;
    @more bra POLL;
    setp.lt.s64 bad, seen, $2;
    neg.s64 blame, seen;
    setp.lt.s64 more, seen, 0;
    selp.b64 blame, blame, $4, more;
    @bad st.relaxed.sys.global.b64 [$5], blame;
    @bad st.release.sys.global.b64 [$6], blame;
    JOIN:
    barrier.cta.red.or.pred bad, 0, bad;
    selp.u32 $0, 1, 0, bad;
    }"""
)

# The same answer for all threads.
ANY = tl.constexpr(
    """{
    .reg .pred bad;
    setp.ne.u32 bad, $1, 0;
    barrier.cta.red.or.pred bad, 0, bad;
    selp.u32 $0, 1, 0, bad;
    }"""
)

# Behind what was written last, also to peers.
TRAP = tl.constexpr("fence.sc.sys; barrier.cta.sync 0; trap; mov.u32 $0, 0;")
