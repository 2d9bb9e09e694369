"""Ways to run a step: which kernels, which layout, overlapped or not, on which wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernels.collectives.calls import Contract

Kernels = Literal["generic", "generic, fused attention", "fused"]
Split = Literal["tp", "cp"]
Computation = tuple[str, str, int, int]
NUM_ANSWERS = 64  # of the steps that decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One way to run a step over the ranks. With one chunk nothing can overlap.

    `num_answers` sequences get a token each in the step; 0: it is a prefill.
    """

    name: str
    kernels: Kernels = "fused"
    split: Split = "tp"
    num_chunks: int = 1
    is_overlapped: bool = False
    contract: Contract = "exact"
    num_answers: int = 0

    @property
    def computation(self) -> Computation:
        """Stages of equal computation share its measurement."""
        return self.kernels, self.split, self.num_chunks, self.num_answers


def staircase(num_chunks: int) -> tuple[Stage, ...]:
    """From generic kernels and blocking reductions to all that the engine has.

    `num_chunks` is what the gate chose for the token split, 1 for none.
    """
    return (
        Stage(name="generic kernels, blocking TP", kernels="generic"),
        Stage(name="fused kernels, blocking TP"),
        Stage(
            name="+ overlap of TP by token chunks",
            num_chunks=num_chunks,
            is_overlapped=num_chunks > 1,
        ),
        Stage(name="+ layout: CP, overlapped", split="cp", num_chunks=2, is_overlapped=True),
        Stage(
            name="+ wire: int8",
            split="cp",
            num_chunks=2,
            is_overlapped=True,
            contract="int8",
        ),
    )


# Not in the staircase, but beside it: plain eager torch with torch's own fused attention.
GENERIC_SDPA = Stage(
    name="generic kernels, torch's fused attention, blocking TP",
    kernels="generic, fused attention",
)
# The first, the second and the last stage are the levels of the published staircase.
LEVELS: Mapping[str, int] = {"generic": 0, "kernels": 1, "all": -1}
