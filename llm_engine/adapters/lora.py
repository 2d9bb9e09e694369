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

from llm_engine.adapters.fused_parts import FusedPart, fused_parts
from llm_engine.adapters.peft_config import LoraConfig
from llm_engine.adapters.stacked_experts import StackedExperts
from llm_engine.adapters.update import Update
from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import ModelConfig

_FILE = "adapter_model.safetensors"
_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\."
    r"((?:self_attn|mlp|mlp\.experts\.\d+)\.\w+)\.lora_([AB])\.weight"
)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The updates of one adapter, by layer and fused map (see `fused_parts`)."""

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
        if not tensors:
            raise UnsupportedModel(f"adapter {name!r}: {folder / _FILE} holds no LoRA matrices")
        stacked, tensors = StackedExperts.split(name, config, lora, tensors)
        pairs = _pairs(name, tensors)
        updates = dict(stacked.updates(dtype))
        for layer in sorted({layer for layer, _ in pairs}):
            if layer >= config.num_layers:
                raise UnsupportedModel(
                    f"adapter {name!r} adapts layer {layer}, but the model has {config.num_layers}"
                )
            parts = fused_parts(config, layer)
            modules = {module: pair for (of, module), pair in pairs.items() if of == layer}
            _check(name, parts, layer, modules)
            for part, fused in parts.items():
                found = {m: modules[m] for m in fused.outputs if m in modules}
                if found:
                    updates[layer, part] = _Stack(name, layer, fused, lora).stack(found, dtype)
        return cls(name, updates)

    def to(self, place: torch.device) -> "LoraAdapter":
        """The same adapter, on a device."""
        return LoraAdapter(self.name, {key: u.to(place) for key, u in self.updates.items()})

    @property
    def place(self) -> torch.device:
        """Where its matrices are."""
        return next(iter(self.updates.values())).a_RI.device


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
        ranks = {module: self._checked_rank(module, pair) for module, pair in found.items()}
        b_OR = torch.zeros(self.part.num_outputs, sum(ranks.values()))
        row = column = 0
        for module, num_rows in self.part.outputs.items():
            if module in found:
                end = column + ranks[module]
                scaling = self.lora.scaling_of(self._full_name(module))
                b_OR[row : row + num_rows, column:end] = found[module]["B"].float() * scaling
                column = end
            row += num_rows
        a_RI = torch.cat([pair["A"] for pair in found.values()])
        return Update(a_RI.to(dtype), b_OR.to(dtype))

    def _full_name(self, module: str) -> str:
        return f"model.layers.{self.layer}.{module}"

    def _checked_rank(self, module: str, pair: _Pair) -> int:
        full_name = self._full_name(module)
        rank = self.lora.rank_of(full_name)
        expected = {"A": (rank, self.part.num_inputs), "B": (self.part.outputs[module], rank)}
        for side, shape in expected.items():
            if side not in pair:
                raise UnsupportedModel(f"adapter {self.name!r}: {full_name} has no lora_{side}")
            if tuple(pair[side].shape) != shape:
                raise UnsupportedModel(
                    f"adapter {self.name!r}: lora_{side} of {full_name} has the shape "
                    f"{tuple(pair[side].shape)}, but rank and base model ask for {shape}"
                )
        return rank


def _pairs(name: str, tensors: Mapping[str, torch.Tensor]) -> dict[tuple[int, str], _Pair]:
    """A and B by layer and module."""
    pairs: dict[tuple[int, str], _Pair] = {}
    for key, tensor in tensors.items():
        match = _NAME.fullmatch(key)
        if match is None:
            raise UnsupportedModel(
                f"adapter {name!r}: {key} has no place in the engine; adapted can be "
                "q, k, v, o, gate, up and down projections of layers and their experts"
            )
        pairs.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
    return pairs


def _check(
    name: str, parts: Mapping[str, FusedPart], layer: int, modules: Mapping[str, _Pair]
) -> None:
    known = {module for part in parts.values() for module in part.outputs}
    unknown = sorted(set(modules) - known)
    if unknown:
        dense = sorted(module for module in known if ".experts." not in module)
        num_experts = len({part for part in parts if part.startswith("experts.")}) // 2
        experts = f", and those of {num_experts} experts" if num_experts else ""
        raise UnsupportedModel(
            f"adapter {name!r} adapts {unknown[0]} of layer {layer}, which has "
            f"{', '.join(dense)}{experts}"
        )
