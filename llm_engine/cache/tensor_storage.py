"""Pages that lie in tensors: one per layer, with the page as the first dimension."""

# L layers, P pages in all, M pages copied, ... the shape of a page in one layer.

from collections.abc import Sequence

import torch

from llm_engine.device import upload
from llm_engine.memory.lazy_tensor import LazyTensor


class TensorStorage:
    """The memory of one group's pages. Implements `llm_engine.cache.storage.PageStorage`."""

    def __init__(
        self, layers: Sequence[torch.Tensor], reservations: Sequence[LazyTensor] = ()
    ) -> None:
        """Serve `layers`, each (P, ...); `reservations` are those whose memory can be returned."""
        self._layers = list(layers)
        self._reservations = list(reservations)

    def copy_out(self, group: int, pages: Sequence[int]) -> list[torch.Tensor]:
        """The contents of pages, in host memory: for each layer a tensor (M, ...)."""
        self._check(group)
        index_M = self._index(pages)
        return [layer.index_select(0, index_M).to("cpu") for layer in self._layers]

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[torch.Tensor]) -> None:
        """Write what `copy_out` returned for as many pages."""
        self._check(group)
        index_M = self._index(pages)
        for layer, saved in zip(self._layers, contents, strict=True):
            layer.index_copy_(0, index_M, saved.to(layer.device))

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one page onto another."""
        self._check(group)
        for layer in self._layers:
            layer[target].copy_(layer[source])

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """Return the memory of pages to the system; they read as zeros afterwards."""
        self._check(group)
        for reservation in self._reservations:
            reservation.give_back(pages)

    def _index(self, pages: Sequence[int]) -> torch.Tensor:
        return upload(pages, torch.int64, self._layers[0].device)

    def _check(self, group: int) -> None:
        assert group == 0, f"group {group} has no tensors here"


class GroupedStorage:
    """The memory of several groups. Implements `llm_engine.cache.storage.PageStorage`."""

    def __init__(self, groups: Sequence[TensorStorage]) -> None:
        """Serve the groups, in the order of the cache's layout."""
        self._groups = list(groups)

    def copy_out(self, group: int, pages: Sequence[int]) -> list[torch.Tensor]:
        """See `TensorStorage`."""
        return self._groups[group].copy_out(0, pages)

    def copy_in(self, group: int, pages: Sequence[int], contents: Sequence[torch.Tensor]) -> None:
        """See `TensorStorage`."""
        self._groups[group].copy_in(0, pages, contents)

    def copy(self, group: int, source: int, target: int) -> None:
        """See `TensorStorage`."""
        self._groups[group].copy(0, source, target)

    def give_back(self, group: int, pages: Sequence[int]) -> None:
        """See `TensorStorage`."""
        self._groups[group].give_back(0, pages)
