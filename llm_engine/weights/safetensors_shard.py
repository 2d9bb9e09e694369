"""What the header of an open safetensors file says of a tensor."""

import math
import re
from typing import Any, cast

from llm_engine.weights.checkpoint import StoredTensor


def stored_tensor(shard: Any, name: str) -> StoredTensor:  # noqa: ANN401 - a safe_open handle
    """Shape, dtype and size. Raises: SafetensorError if the file holds no such tensor."""
    part = shard.get_slice(name)
    shape = tuple(cast(list[int], part.get_shape()))
    kind = str(part.get_dtype())
    return StoredTensor(shape, kind, math.prod(shape) * _bytes_per_element(kind))


def _bytes_per_element(kind: str) -> int:
    """Of a dtype's name in a header, such as BF16 or F8_E4M3; BOOL takes a byte."""
    bits = re.search(r"\d+", kind)
    return 1 if bits is None else int(bits[0]) // 8
