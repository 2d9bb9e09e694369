"""What layers compute with: real operations, or ones that only write down what they are.

Legend: T rows, C channels, H heads, D head dim, I inner channels, Q output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.calibration.computing import EPS
from kernels.calibration.work import Work
from kernels.ops.full_attention import full_attention
from kernels.ops.gemm import gemm
from kernels.ops.rms_norm import rms_norm
from kernels.ops.swiglu import swiglu


class Ops(Protocol):
    """What layers compute with: real operations, or ones that only write down what they are."""

    def gemm(self, x_TC: torch.Tensor, weight_QC: torch.Tensor) -> torch.Tensor:
        """x · weightᵀ."""
        ...

    def attend(self, q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor) -> torch.Tensor:
        """Attention of every query to every key given."""
        ...

    def norm(self, x_TC: torch.Tensor, weight_C: torch.Tensor) -> torch.Tensor:
        """RMSNorm."""
        ...

    def gate(self, x_T2I: torch.Tensor) -> torch.Tensor:
        """SwiGLU."""
        ...

    def add(self, a_TC: torch.Tensor, b_TC: torch.Tensor) -> torch.Tensor:
        """a + b."""
        ...

    def copy(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """x to another place, in another order."""
        ...

    def rows(self, x_TC: torch.Tensor, index_T: torch.Tensor) -> torch.Tensor:
        """Rows by index."""
        ...

    def scatter(self, into: torch.Tensor, index_T: torch.Tensor, x_TC: torch.Tensor) -> None:
        """Rows added by index."""
        ...


class Wire(Protocol):
    """The collectives that steps use; see `kernels.collectives.protocol.Communicator`."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks, in place."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' rows."""
        ...

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum."""
        ...

    def all_to_all(self, x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Rows to their ranks, and what arrived."""
        ...


class RealOps:
    """The kernels that a plan chooses on this processor."""

    def gemm(self, x_TC: torch.Tensor, weight_QC: torch.Tensor) -> torch.Tensor:
        """x · weightᵀ."""
        return gemm(x_TC, weight_QC)

    def attend(self, q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor) -> torch.Tensor:
        """Attention of every query to every key given."""
        return full_attention(q_THD, k_THD, v_THD)[0]

    def norm(self, x_TC: torch.Tensor, weight_C: torch.Tensor) -> torch.Tensor:
        """RMSNorm."""
        return rms_norm(x_TC, weight_C, eps=EPS)[0]

    def gate(self, x_T2I: torch.Tensor) -> torch.Tensor:
        """SwiGLU."""
        return swiglu(x_T2I)[0]

    def add(self, a_TC: torch.Tensor, b_TC: torch.Tensor) -> torch.Tensor:
        """a + b."""
        return a_TC + b_TC

    def copy(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """x to another place, in another order."""
        into.copy_(x)

    def rows(self, x_TC: torch.Tensor, index_T: torch.Tensor) -> torch.Tensor:
        """Rows by index."""
        return x_TC.index_select(0, index_T)

    def scatter(self, into: torch.Tensor, index_T: torch.Tensor, x_TC: torch.Tensor) -> None:
        """Rows added by index."""
        into.index_add_(0, index_T, x_TC)


class TracingOps:
    """Writes down every work of the node at hand; tensors have shapes and no values."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def _note(self, kind: str, *sizes: int) -> None:
        self.works.append(Work(kind, sizes))

    def gemm(self, x_TC: torch.Tensor, weight_QC: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._note("gemm", len(x_TC), *weight_QC.shape)
        return x_TC.new_empty(len(x_TC), len(weight_QC))

    def attend(self, q_THD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._note("attention", len(q_THD), *k_THD.shape)
        return torch.empty_like(q_THD)

    def norm(self, x_TC: torch.Tensor, weight_C: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._note("norm", *x_TC.shape)
        return torch.empty_like(x_TC)

    def gate(self, x_T2I: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        num_rows, doubled = x_T2I.shape
        self._note("gate", num_rows, doubled // 2)
        return x_T2I.new_empty(num_rows, doubled // 2)

    def add(self, a_TC: torch.Tensor, b_TC: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._note("add", *a_TC.shape)
        return torch.empty_like(a_TC)

    def copy(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """See `Ops`."""
        self._note("copy", x.numel() // x.shape[-1], x.shape[-1])

    def rows(self, x_TC: torch.Tensor, index_T: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._note("rows", len(index_T), x_TC.shape[1])
        return x_TC.new_empty(len(index_T), x_TC.shape[1])

    def scatter(self, into: torch.Tensor, index_T: torch.Tensor, x_TC: torch.Tensor) -> None:
        """See `Ops`."""
        self._note("scatter", *x_TC.shape)
