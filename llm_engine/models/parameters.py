"""The tensors a model needs, by name and shape: checked, and sized, before any is read."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from kernels.spec import ITEM_BYTES
from llm_engine.errors import UnsupportedModel
from llm_engine.layers.linear import can_pack
from llm_engine.model_config import ModelConfig
from llm_engine.weights.checkpoint import Checkpoint, StoredTensor
from llm_engine.weights.facts import IN_NUMBERS, StoredForm, WeightFacts
from llm_engine.weights.fp8_blocks import FP8_KIND, Fp8Blocks
from llm_engine.weights.stacked_experts import MXFP4_KIND

Shape = tuple[int, ...]
_EXPERTS = ".experts."
_PACKED_BITS: Mapping[str, float] = {
    # Quants of a value, and scales and minima spread over the group that shares them: 16 bits
    # where the file stores them so, 32 where they are products.
    "Q4_0": 4 + 32 / 32,
    "Q4_1": 4 + 32 / 32,
    "Q4_K": 4 + 64 / 32,
    "Q8_0": 8 + 16 / 32,
    "Q6_K": 8 + 32 / 16,
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Shapes by name: what must be there, and biases that may be."""

    weights: Mapping[str, Shape]
    biases: Mapping[str, Shape]

    @classmethod
    def of(cls, config: ModelConfig) -> "Parameters":
        """Those of a model of the Llama family, with norms, experts and sinks where it has them."""
        linears = dict(_linears(config))
        weights = {f"{name}.weight": shape for name, shape in (*_norms(config), *linears.items())}
        weights["model.embed_tokens.weight"] = (config.vocab_size, config.hidden_size)
        if not config.is_tied:
            weights["lm_head.weight"] = (config.vocab_size, config.hidden_size)
        biases = {f"{name}.bias": shape[:1] for name, shape in linears.items()}
        needed = [name for name in biases if _is_needed(config, name)]
        weights |= {name: biases.pop(name) for name in needed}
        if config.has_sinks:
            weights |= {f"{name}.self_attn.sinks": (config.num_heads,) for name in _layers(config)}
        return cls(weights, biases)

    def check(self, checkpoint: Checkpoint) -> None:
        """Compare with what the files' headers say.

        Raises: UnsupportedModel naming a tensor that is missing, or its shape and the expected.
        """
        missing = [name for name in self.weights if not checkpoint.has(name)]
        if missing:
            raise UnsupportedModel(
                f"the files lack {len(missing)} tensors that the config asks for: "
                f"{', '.join(missing[:5])}"
            )
        for name, expected in (*self.weights.items(), *self.biases.items()):
            if not checkpoint.has(name):
                continue
            shape = checkpoint.stored(name).shape
            if shape != expected:
                raise UnsupportedModel(
                    f"{name} has the shape {shape}, but the config asks for {expected}"
                )

    def facts(
        self, checkpoint: Checkpoint, dtype: torch.dtype, place: torch.device | None = None
    ) -> WeightFacts:
        """What the headers alone say of the memory that weights take on `place`, or on the CPU."""
        stored = {name: checkpoint.stored(name) for name in self._matrices}
        kinds = {tensor.kind for tensor in stored.values()}
        experts = [tensor for name, tensor in stored.items() if _EXPERTS in name]
        others = [tensor for name, tensor in stored.items() if _EXPERTS not in name]
        form = _stored_form(checkpoint, experts, others)
        block = form.fp8_block or 1
        has_extra = place is None or place.type == "cpu"
        return WeightFacts(
            unpacked_bytes=self._planned_bytes(
                checkpoint, dtype, packed=False, has_extra=has_extra
            ),
            packed_bytes=self._planned_bytes(checkpoint, dtype, packed=True, has_extra=has_extra),
            is_quantised=kinds <= _PACKED_BITS.keys(),
            stored=form,
            fp8_saved_bytes=sum(_saved_bytes(tensor, dtype, block) for tensor in others),
            experts_saved_bytes=sum(_saved_bytes(tensor, dtype, block) for tensor in experts),
        )

    @property
    def _matrices(self) -> list[str]:
        """The linear maps of the layers, without the small ones that choose experts."""
        return [
            name
            for name, shape in self.weights.items()
            if len(shape) == 2 and ".layers." in name and not name.endswith("mlp.gate.weight")
        ]

    def _planned_bytes(
        self, checkpoint: Checkpoint, dtype: torch.dtype, *, packed: bool, has_extra: bool
    ) -> int:
        """`has_extra`: a tied head may get a layout of its own."""
        names = [name for name in (*self.weights, *self.biases) if checkpoint.has(name)]
        total = sum(_planned_bytes(checkpoint.stored(n), dtype, packed=packed) for n in names)
        embedding = checkpoint.stored("model.embed_tokens.weight")
        is_tied = "lm_head.weight" not in self.weights
        is_shared = packed and embedding.kind in _PACKED_BITS
        if has_extra and is_tied and not is_shared and can_pack(torch.empty(0, dtype=dtype)):
            total += _planned_bytes(embedding, dtype, packed=False)
        return total


def _stored_form(
    checkpoint: Checkpoint, experts: list[StoredTensor], others: list[StoredTensor]
) -> StoredForm:
    """What is stored in small floats: experts only where all are alike."""
    blocks = Fp8Blocks.from_config(checkpoint.config)
    kinds = {tensor.kind for tensor in experts}
    names = {FP8_KIND: "fp8", MXFP4_KIND: "mxfp4"}
    has_fp8 = FP8_KIND in kinds or any(tensor.kind == FP8_KIND for tensor in others)
    return StoredForm(
        fp8_block=blocks.block if blocks is not None and has_fp8 else None,
        experts=names.get("".join(kinds), IN_NUMBERS.experts),
    )


def _saved_bytes(stored: StoredTensor, dtype: torch.dtype, block: int) -> int:
    """What a matrix saves that stays in small floats; scales of blocks are float32 then."""
    num_values = math.prod(stored.shape)
    if stored.kind == FP8_KIND:
        num_scales = math.prod(-(-size // block) for size in stored.shape)
        return num_values * (dtype.itemsize - 1) - 4 * num_scales
    if stored.kind == MXFP4_KIND:
        return int(num_values * (dtype.itemsize - ITEM_BYTES["mxfp4"]))
    return 0


def _planned_bytes(stored: StoredTensor, dtype: torch.dtype, *, packed: bool) -> int:
    num_values = math.prod(stored.shape)
    if packed and stored.kind in _PACKED_BITS:
        return int(num_values * _PACKED_BITS[stored.kind] / 8)
    return num_values * dtype.itemsize


def _layers(config: ModelConfig) -> list[str]:
    return [f"model.layers.{layer}" for layer in range(config.num_layers)]


def _is_needed(config: ModelConfig, bias: str) -> bool:
    """Whether the config asks for a bias, so that a file without it is refused."""
    part = bias.split(".")[-2]
    if part in ("q_proj", "k_proj", "v_proj"):
        return config.has_qkv_bias
    if part == "o_proj":
        return config.has_out_bias
    return config.moe is not None and config.moe.has_biases


def _norms(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    wide, head = (config.hidden_size,), (config.head_dim,)
    yield "model.norm", wide
    for prefix in _layers(config):
        yield f"{prefix}.input_layernorm", wide
        yield f"{prefix}.post_attention_layernorm", wide
        if config.has_head_norms:
            yield f"{prefix}.self_attn.q_norm", head
            yield f"{prefix}.self_attn.k_norm", head


def _linears(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    wide = config.hidden_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    for layer, prefix in enumerate(_layers(config)):
        yield f"{prefix}.self_attn.q_proj", (q_rows, wide)
        yield f"{prefix}.self_attn.k_proj", (kv_rows, wide)
        yield f"{prefix}.self_attn.v_proj", (kv_rows, wide)
        yield f"{prefix}.self_attn.o_proj", (wide, q_rows)
        if config.moe is None or not config.moe.is_sparse(layer):
            yield from _mlp(f"{prefix}.mlp", wide, config.intermediate_size)
            continue
        yield f"{prefix}.mlp.gate", (config.moe.num_experts, wide)
        for expert in range(config.moe.num_held(layer)):
            name = f"{prefix}.mlp.experts.{expert}"
            yield from _mlp(name, wide, config.moe.intermediate_size)


def _mlp(prefix: str, wide: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_proj", (inner, wide)
    yield f"{prefix}.up_proj", (inner, wide)
    yield f"{prefix}.down_proj", (wide, inner)
