"""Optimisers, learning-rate course and weight averaging of the training run."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MUON_RATE = 0.02
ADAMW_RATE = 2e-3
_WARMUP_STEPS = 30
_FINAL_RATIO = 0.02
_EMA_DECAY = 0.997


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisers:
    """Muon for the matrices of the transformer blocks, AdamW for all else."""

    muon: torch.optim.Muon
    adamw: torch.optim.AdamW

    @classmethod
    def build(cls, model: nn.Module) -> "Optimisers":
        """Sorts the parameters by name and shape."""
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in model.named_parameters():
            is_block_matrix = ".blocks." in f".{name}" and parameter.ndim == 2
            (matrices if is_block_matrix else others).append(parameter)
        muon = torch.optim.Muon(
            matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.0, adjust_lr_fn="original"
        )
        adamw = torch.optim.AdamW(
            others, lr=ADAMW_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        return cls(muon=muon, adamw=adamw)

    def step(self, ratio: float) -> None:
        """One update of every parameter at ``ratio`` of the base learning rates."""
        for optimiser, rate in ((self.muon, MUON_RATE), (self.adamw, ADAMW_RATE)):
            for group in optimiser.param_groups:
                group["lr"] = rate * ratio
            optimiser.step()
            optimiser.zero_grad(set_to_none=False)


def rate_ratio(step: int, progress: float) -> float:
    """Warm-up over 30 steps, then a cosine over the time budget (progress 0..1) down to 2 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (_FINAL_RATIO + (1 - _FINAL_RATIO) * cosine)


class WeightAverage:
    """Exponential moving average of the parameters, with a shorter memory in the first steps."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Moves the average towards the model: decay min(0.997, (1 + i) / (10 + i))."""
        decay = min(_EMA_DECAY, (1 + step) / (10 + step))
        for name, parameter in model.named_parameters():
            self.tensors[name].lerp_(parameter, 1 - decay)
