"""What the limits need to know of a GGUF file: bytes and operations per token, vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a decoder. `weight_bytes` are those a decoded token reads, as the file packs them.

    `linear_flops` are the operations of one prompt token in the layers' matrices (the head works
    on the last token alone); `attention_flops` those of one token against one earlier token.
    """

    weight_bytes: int
    linear_flops: float
    attention_flops: float
    vocabulary: tuple[str, ...]

    def prefill_s(self, num_tokens: int, linear_flop_s: float, attention_flop_s: float) -> float:
        """Least time of a prompt, causal attention counted at its half."""
        attention = self.attention_flops * num_tokens * (num_tokens + 1) / 2
        return self.linear_flops * num_tokens / linear_flop_s + attention / attention_flop_s


@cache
def read_model_facts(path: Path) -> ModelFacts:
    """Read the header of a GGUF file."""
    reader = gguf.GGUFReader(str(path))
    layers = [t for t in reader.tensors if t.name.startswith("blk.")]
    matrices = [t for t in layers if len(t.shape) > 1]
    names = {tensor.name: tensor for tensor in reader.tensors}
    head = names.get("output.weight", names["token_embd.weight"])
    arch = str(_value(reader, "general.architecture"))
    heads = int(_value(reader, f"{arch}.attention.head_count"))
    width = int(_value(reader, f"{arch}.embedding_length"))
    head_size = _value(reader, f"{arch}.attention.key_length") or width // heads
    num_layers = int(_value(reader, f"{arch}.block_count"))
    return ModelFacts(
        weight_bytes=sum(int(t.n_bytes) for t in [*layers, head]),
        linear_flops=2.0 * sum(math.prod(int(n) for n in t.shape) for t in matrices),
        attention_flops=4.0 * num_layers * heads * int(head_size),
        vocabulary=tuple(_value(reader, "tokenizer.ggml.tokens")),
    )


def _value(reader: gguf.GGUFReader, key: str) -> Any:  # noqa: ANN401 - number, text or list
    found = reader.get_field(key)
    return None if found is None else found.contents()
