"""How much memory the tensors of a loaded model take."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import cast

import torch


def tensor_bytes(root: object) -> int:
    """Bytes of every tensor that an object holds, however deep, each counted once.

    Looks into attributes, dataclass fields and containers. Tensors that share memory (views)
    count as one; a tensor in a vendor's opaque layout counts its elements, without its padding.
    """
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[object] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            sizes.update([_memory(value)])
        elif id(value) not in seen:
            seen.add(id(value))
            pending.extend(_parts(value))
    return sum(sizes.values())


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.layout != torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast(Mapping[object, object], value).values()
    if isinstance(value, list | tuple | set | frozenset):
        return cast(Iterable[object], value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, type) or not type(value).__module__.startswith(("llm_engine", "kernels")):
        return ()
    return vars(value).values() if hasattr(value, "__dict__") else ()
