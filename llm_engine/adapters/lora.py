"""One LoRA adapter: its matrices, stacked as the engine fuses the maps they belong to.

Source: PEFT's file format; Hu et al. 2021, arXiv:2106.09685.
"""

# O outputs and I inputs of a fused map, r rank of one module, R sum of the ranks of its modules.

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from llm_engine.adapters.peft_config import LoraConfig
from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import ModelConfig

_FILE = "adapter_model.safetensors"
_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.lora_([AB])\.weight"
)


@dataclass(frozen=True, slots=True)
class Update:
    """y + x A^T B^T. Shapes: a (R, I); b (O, R), scaled, zero where a module has no part."""

    a_RI: torch.Tensor
    b_OR: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The updates of one adapter, by layer and fused map (qkv, out, gate_up, down)."""

    name: str
    updates: Mapping[tuple[int, str], Update]

    @classmethod
    def load(
        cls, name: str, folder: Path, config: ModelConfig, dtype: torch.dtype
    ) -> "LoraAdapter":
        """Read a PEFT folder and check it against the base model.

        Numerics: the scaling is folded into B in float32, then A and B are rounded to `dtype`.
        Raises: UnsupportedModel naming the adapter and the tensor that does not fit.
        """
        lora = LoraConfig.read(folder)
        try:
            tensors = load_file(str(folder / _FILE))
        except (OSError, SafetensorError) as error:
            raise UnsupportedModel(
                f"adapter {name!r}: cannot read {folder / _FILE}: {error}"
            ) from error
        pairs = _pairs(name, tensors)
        if not pairs:
            raise UnsupportedModel(f"adapter {name!r}: {folder / _FILE} holds no LoRA matrices")
        parts = fused_parts(config)
        for layer, module in pairs:
            _check(name, config, parts, layer, module)
        updates: dict[tuple[int, str], Update] = {}
        for layer in range(config.num_layers):
            for part, rows in parts.items():
                found = {m: pairs[layer, m] for m in rows.outputs if (layer, m) in pairs}
                if found:
                    maker = _Stack(name, layer, rows, lora)
                    updates[layer, part] = maker.stack(found, dtype)
        return cls(name, updates)


@dataclass(frozen=True, slots=True)
class FusedPart:
    """A fused map: its input width, and the modules in it with their number of rows, in order."""

    num_inputs: int
    outputs: Mapping[str, int]


def fused_parts(config: ModelConfig) -> Mapping[str, FusedPart]:
    """The maps of a layer, as `llm_engine.layers.blocks` fuses them."""
    wide, inner = config.hidden_size, config.intermediate_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    return {
        "qkv": FusedPart(wide, qkv),
        "out": FusedPart(q_rows, {"o_proj": wide}),
        "gate_up": FusedPart(wide, {"gate_proj": inner, "up_proj": inner}),
        "down": FusedPart(inner, {"down_proj": wide}),
    }


_Pair = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Stack:
    """Puts the modules of one fused map together."""

    name: str
    layer: int
    part: FusedPart
    lora: LoraConfig

    def stack(self, found: Mapping[str, _Pair], dtype: torch.dtype) -> Update:
        """A of the modules one below the other; B of each in its own rows and columns."""
        total_rank = sum(pair["A"].shape[0] for pair in found.values())
        b_OR = torch.zeros(sum(self.part.outputs.values()), total_rank)
        row = column = 0
        for module, num_rows in self.part.outputs.items():
            if module in found:
                scaling, rank = self._scaling_and_rank(module, num_rows, found[module])
                end = column + rank
                b_OR[row : row + num_rows, column:end] = found[module]["B"].float() * scaling
                column = end
            row += num_rows
        a_RI = torch.cat([pair["A"] for pair in found.values()])
        return Update(a_RI.to(dtype), b_OR.to(dtype))

    def _scaling_and_rank(self, module: str, num_rows: int, pair: _Pair) -> tuple[float, int]:
        group = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        full_name = f"model.layers.{self.layer}.{group}.{module}"
        rank = self.lora.rank_of(full_name)
        expected = {"A": (rank, self.part.num_inputs), "B": (num_rows, rank)}
        for side, shape in expected.items():
            if side not in pair:
                raise UnsupportedModel(f"adapter {self.name!r}: {full_name} has no lora_{side}")
            if tuple(pair[side].shape) != shape:
                raise UnsupportedModel(
                    f"adapter {self.name!r}: lora_{side} of {full_name} has the shape "
                    f"{tuple(pair[side].shape)}, but rank and base model ask for {shape}"
                )
        return self.lora.scaling_of(full_name), rank


def _pairs(name: str, tensors: Mapping[str, torch.Tensor]) -> dict[tuple[int, str], _Pair]:
    """A and B by layer and module."""
    pairs: dict[tuple[int, str], _Pair] = {}
    for key, tensor in tensors.items():
        match = _NAME.fullmatch(key)
        if match is None:
            raise UnsupportedModel(
                f"adapter {name!r}: {key} has no place in the engine; adapted can be "
                "q, k, v, o, gate, up and down projections of layers"
            )
        pairs.setdefault((int(match[1]), match[3]), {})[match[4]] = tensor
    return pairs


def _check(
    name: str, config: ModelConfig, parts: Mapping[str, FusedPart], layer: int, module: str
) -> None:
    if layer >= config.num_layers:
        raise UnsupportedModel(
            f"adapter {name!r} adapts layer {layer}, but the model has {config.num_layers}"
        )
    known = [known for part in parts.values() for known in part.outputs]
    if module not in known:
        raise UnsupportedModel(f"adapter {name!r} adapts {module}; supported: {', '.join(known)}")
    is_mlp = module in parts["gate_up"].outputs or module in parts["down"].outputs
    if is_mlp and config.moe is not None and config.moe.is_sparse(layer):
        raise UnsupportedModel(
            f"adapter {name!r} adapts {module} of layer {layer}, which is a layer of experts: "
            "only attention can be adapted there"
        )
