"""What all layers of one step share: its tokens, their attention, their adapters."""

# N tokens of all sequences in a step, P those of an expert, H query heads, K key/value heads,
# D head dim, I inputs and O outputs of a linear map.

from dataclasses import dataclass
from typing import Protocol

import torch


class Attend(Protocol):
    """Attention over the cache, as seen by a model: it knows nothing of pages or batches."""

    def __call__(
        self,
        layer: int,
        q_NHD: torch.Tensor,
        k_NKD: torch.Tensor,
        v_NKD: torch.Tensor,
        /,
    ) -> torch.Tensor:
        """Turn queries and keys, store the new keys and values of a layer, then attend.

        Shapes: q (N, H, D); k and v (N, K, D); result (N, H, D).
        """
        ...


class Adapters(Protocol):
    """Low-rank updates of the linear maps, for those rows of a step that use an adapter."""

    def update(self, layer: int, part: str, x_NI: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """The output with the update added; rows without an adapter keep their value.

        `part` is qkv, out, gate_up or down. Shapes: x (N, I), the map's input; y (N, O), its
        output, and so the result.
        """
        ...

    def update_expert(
        self,
        layer: int,
        expert: int,
        part: str,
        x_PI: torch.Tensor,
        y_PO: torch.Tensor,
        token_P: torch.Tensor,
    ) -> torch.Tensor:
        """As `update` of an expert's gate_up or down, over the rows `token_P` (P,) of the step."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step's tokens and what is prepared once for all layers.

    Shapes: token_ids (N,), int64. `adapters` is None where no row uses one.
    """

    token_ids_N: torch.Tensor
    attend: Attend
    adapters: Adapters | None = None
