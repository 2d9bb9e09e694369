"""Updates of all experts at once, as PEFT writes those of a stacked weight (`target_parameters`).

An update of a weight of E experts is one pair of matrices: A has the rows of the experts one below
the other, B has the experts of a rank side by side. Whether A stands at the weight's second or
third dimension follows PEFT's version: up to 0.18 (E, x, y) is read as inputs x and outputs y,
from 0.19 on as outputs x and inputs y unless the model says otherwise. The sizes tell which.
Source: PEFT's `lora.ParamWrapper`.
"""

# E experts, r rank, O outputs and I inputs of an expert's map.

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from llm_engine.adapters.fused_parts import FusedPart, expert_part, fused_parts
from llm_engine.adapters.peft_config import LoraConfig
from llm_engine.adapters.update import Update
from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import GPT_OSS, ModelConfig

_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.mlp\.experts\.((?:base_layer\.)*)lora_([AB])\.weight"
)


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """The pairs of an adapter that update stacked weights, by layer and depth of nesting."""

    name: str
    config: ModelConfig
    lora: LoraConfig
    pairs: Mapping[tuple[int, str], Mapping[str, torch.Tensor]]

    @classmethod
    def split(
        cls,
        name: str,
        config: ModelConfig,
        lora: LoraConfig,
        tensors: Mapping[str, torch.Tensor],
    ) -> "tuple[StackedExperts, dict[str, torch.Tensor]]":
        """Those among an adapter's tensors, and the others."""
        pairs: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
        others: dict[str, torch.Tensor] = {}
        for key, tensor in tensors.items():
            match = _NAME.fullmatch(key)
            if match is None:
                others[key] = tensor
            else:
                pairs.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
        return cls(name, config, lora, pairs), others

    def updates(self, dtype: torch.dtype) -> Iterator[tuple[tuple[int, str], Update]]:
        """The update of each expert, by layer and part.

        Numerics: scaled in float32, then rounded to `dtype`.
        Raises: UnsupportedModel naming the adapter and the tensor that does not fit.
        """
        if self.pairs and (self.lora.rank_by_pattern or self.lora.alpha_by_pattern):
            raise self._refusal("rank_pattern and alpha_pattern together with target_parameters")
        for (layer, nesting), pair in self.pairs.items():
            where = f"layers.{layer}.mlp.experts.{nesting}lora"
            if set(pair) != {"A", "B"}:
                raise self._refusal(f"{where}_{min(pair)} alone")
            part, fused = self._part(layer, where, pair)
            a_ErI, b_ErO = self._by_expert(where, fused, pair["A"].float(), pair["B"].float())
            scaling = self.lora.scaling_of("")
            for expert, (a_rI, b_rO) in enumerate(zip(a_ErI, b_ErO, strict=True)):
                update = Update(
                    a_rI.contiguous().to(dtype), (b_rO.mT * scaling).contiguous().to(dtype)
                )
                yield (layer, expert_part(expert, part)), update

    def _part(
        self, layer: int, where: str, pair: Mapping[str, torch.Tensor]
    ) -> tuple[str, FusedPart]:
        """Which of the two stacked weights a pair belongs to, by its sizes."""
        moe = self.config.moe
        if self.config.architecture == GPT_OSS:
            raise self._refusal(
                f"{where}, of a stack in which rows of gate and up take turns; merge it into the "
                "weights"
            )
        if moe is None or layer >= self.config.num_layers or not moe.is_sparse(layer):
            raise self._refusal(f"{where}, but layer {layer} has no experts")
        widths = {pair["A"].shape[-1], pair["B"].shape[0]}
        parts = fused_parts(self.config, layer)
        known = {name: parts[expert_part(0, name)] for name in ("gate_up", "down")}
        for name, fused in known.items():
            if widths == {fused.num_inputs, fused.num_outputs}:
                return name, fused
        sizes = ", ".join(f"{f.num_outputs} x {f.num_inputs}" for f in known.values())
        raise self._refusal(f"{where} with the widths {sorted(widths)}; experts have {sizes}")

    def _by_expert(
        self, where: str, fused: FusedPart, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(E, r, I) and (E, r, O), whichever way round PEFT read the weight."""
        if fused.num_inputs == fused.num_outputs:
            raise self._refusal(
                f"{where} of a square map of {fused.num_inputs}, whose sizes do not tell which way "
                "round it was trained; merge it into the weights"
            )
        moe = self.config.moe
        assert moe is not None
        rank = self.lora.rank
        rows = moe.num_experts * rank
        if (a.shape[0], b.shape[1]) != (rows, rows):
            raise self._refusal(
                f"{where}_A of {a.shape[0]} rows and B of {b.shape[1]} columns; {moe.num_experts} "
                f"experts of rank {rank} ask for {rows}"
            )
        first_Erx = a.reshape(moe.num_experts, rank, a.shape[1])
        second_Ery = b.reshape(b.shape[0], rank, moe.num_experts).permute(2, 1, 0)
        is_swapped = a.shape[1] == fused.num_inputs
        return (first_Erx, second_Ery) if is_swapped else (second_Ery, first_Erx)

    def _refusal(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(f"adapter {self.name!r} adapts {what}: not supported")
