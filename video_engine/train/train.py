"""The training loop: two single-threaded processes with averaged gradients, stopped by the clock.

x_t = (1 - t) x0 + t noise; the network predicts x0; loss = weight * |x0' - x0|^2 / max(t, 0.15)^2.
t is a logit-normal draw shifted to high noise, t' = s t / (1 + (s - 1) t) with s log-uniform in
4..400: motion has few degrees of freedom, so only at high noise is the prompt needed.
"""

import json
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from video_engine.models.motion_small.config import MotionConfig
from video_engine.models.motion_small.layout import Layout
from video_engine.models.motion_small.network import predict_motion, transformer_config
from video_engine.models.motion_small.text_encoder import TextEncoder
from video_engine.train.data import Batch, build_bank, draw_batch, measure_frame_scales
from video_engine.train.optimiser import Optimisers, WeightAverage, rate_ratio

_LOG = logging.getLogger(__name__)
_SHIFT_RANGE = (4.0, 400.0)
_MIN_T = 0.15
_MAX_GRAD_NORM = 1.0
_LOG_EVERY_STEPS = 20
CHECKPOINT_NAME = "checkpoint.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Budget and sizes of one run."""

    out: Path
    minutes: float
    resume: bool = False
    warm_start: Path | None = None
    num_processes: int = 2
    batch_size: int = 24
    num_layouts: int = 2500
    checkpoint_every_s: float = 180.0
    seed: int = 0


class MotionNet(nn.Module):
    """Text encoder and transformer, trained together."""

    def __init__(self, config: MotionConfig) -> None:
        super().__init__()
        self.text_encoder = TextEncoder(config.text)
        self.transformer = WanTransformer3DModel(**transformer_config(config))

    def forward(
        self, x_t: Tensor, condition: Tensor, prompts: list[str | None], t: Tensor
    ) -> Tensor:
        """Predicted clean latents; shapes as in ``predict_motion``."""
        text = self.text_encoder.encode(prompts)
        return predict_motion(self.transformer, x_t, condition, text, t)


def draw_noise_levels(size: int, generator: torch.Generator) -> Tensor:
    """Noise levels (size,): logit-normal, each shifted by its own s, log-uniform in 4..400."""
    t = torch.sigmoid(torch.randn(size, generator=generator))
    low, high = (math.log(s) for s in _SHIFT_RANGE)
    shift = torch.exp(low + (high - low) * torch.rand(size, generator=generator))
    return shift * t / (1 + (shift - 1) * t)


def _has_bfloat16_units() -> bool:
    """Whether the CPU multiplies bfloat16 itself: where it is emulated, a step takes minutes."""
    return bool(cast(Any, torch.ops.mkldnn)._is_mkldnn_bf16_supported())


def loss_of(net: MotionNet, batch: Batch, generator: torch.Generator) -> Tensor:
    """Weighted mean loss of one batch."""
    x0 = batch.latents
    t = draw_noise_levels(len(x0), generator)
    noise = torch.randn(x0.shape, generator=generator)
    t_view = t.view(-1, 1, 1, 1, 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=_has_bfloat16_units()):
        predicted = net((1 - t_view) * x0 + t_view * noise, batch.conditions, batch.prompts, t)
    error = (predicted.float() - x0).square().mean(dim=(1, 2, 3, 4))
    return (batch.weights * error / t.clamp(min=_MIN_T).square()).mean()


def average_gradients(net: nn.Module, scalars: list[float], num_processes: int) -> list[float]:
    """Replaces every gradient by its mean over the processes; returns the means of the scalars."""
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads] + [torch.tensor(scalars)])
    if num_processes > 1:
        dist.all_reduce(flat)
        flat /= num_processes
    parts = flat.split([g.numel() for g in grads] + [len(scalars)])
    for grad, part in zip(grads, parts[:-1], strict=True):
        grad.copy_(part.view_as(grad))
    return parts[-1].tolist()


class Trainer:
    """One process of the run.

    Invariants: all processes hold equal parameters, averages and optimiser states after each step.
    """

    def __init__(self, config: TrainConfig, rank: int) -> None:
        self.config = config
        self.rank = rank
        self.step = 0
        self.spent_s = 0.0
        torch.manual_seed(config.seed)
        self.bank: list[Layout] = build_bank(config.num_layouts, MotionConfig().grid, config.seed)
        scales = measure_frame_scales(self.bank, 3000, config.seed)
        self.motion = MotionConfig(frame_scales=scales)
        self.net = MotionNet(self.motion)
        self.optimisers = Optimisers.build(self.net)
        self.average = WeightAverage(self.net)
        if config.resume:
            self._load()
        elif config.warm_start is not None:
            self._warm_start(config.warm_start)
        stream = [config.seed, rank, self.step]
        self.rng = np.random.default_rng(stream)
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))

    def run(self) -> None:
        """Trains until the time budget is spent; writes checkpoints on the way and at the end."""
        start = time.monotonic() - self.spent_s
        last_save_s, progress = self.spent_s, self.spent_s / (60 * self.config.minutes)
        while progress < 1:
            batch = draw_batch(self.rng, self.bank, self.config.batch_size, self.motion)
            loss = loss_of(self.net, batch, self.generator)
            loss.backward()
            self.spent_s = time.monotonic() - start
            progress, mean_loss = average_gradients(
                self.net,
                [self.spent_s / (60 * self.config.minutes), float(loss.detach())],
                self.config.num_processes,
            )
            nn.utils.clip_grad_norm_(self.net.parameters(), _MAX_GRAD_NORM)
            self.optimisers.step(rate_ratio(self.step, progress))
            self.average.update(self.net, self.step)
            self.step += 1
            if self.rank == 0 and self.step % _LOG_EVERY_STEPS == 0:
                _LOG.info("step %d  %.0f s  loss %.4f", self.step, self.spent_s, mean_loss)
            if self.rank == 0 and self.spent_s - last_save_s > self.config.checkpoint_every_s:
                self._save()
                last_save_s = self.spent_s
        if self.rank == 0:
            self._save()

    def _save(self) -> None:
        state = {
            "step": self.step,
            "spent_s": self.spent_s,
            "motion": self.motion.to_json(),
            "net": self.net.state_dict(),
            "average": self.average.tensors,
            "muon": self.optimisers.muon.state_dict(),
            "adamw": self.optimisers.adamw.state_dict(),
        }
        self.config.out.mkdir(parents=True, exist_ok=True)
        partial = self.config.out / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.config.out / CHECKPOINT_NAME)

    def _load(self) -> None:
        state = torch.load(self.config.out / CHECKPOINT_NAME, weights_only=True)
        self.step, self.spent_s = state["step"], state["spent_s"]
        self.motion = MotionConfig.from_json(state["motion"])
        self.net.load_state_dict(state["net"])
        self.average.tensors = state["average"]
        self.optimisers.muon.load_state_dict(state["muon"])
        self.optimisers.adamw.load_state_dict(state["adamw"])

    def _warm_start(self, checkpoint: Path) -> None:
        """Takes over every tensor of another run's checkpoint that has the same shape here."""
        found = torch.load(checkpoint, weights_only=True)["net"]
        own = self.net.state_dict()
        fitting = {k: v for k, v in found.items() if k in own and own[k].shape == v.shape}
        self.net.load_state_dict(fitting, strict=False)
        self.average = WeightAverage(self.net)


def train_process(rank: int, config: TrainConfig, rendezvous: str) -> None:
    """Entry point of one process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    if config.num_processes > 1:
        dist.init_process_group(
            "gloo", init_method=rendezvous, rank=rank, world_size=config.num_processes
        )
    trainer = Trainer(config, rank)
    if rank == 0:
        sizes = sum(p.numel() for p in trainer.net.parameters())
        _LOG.info("training %s with %d parameters", json.dumps(str(config.out)), sizes)
    trainer.run()
    if config.num_processes > 1:
        dist.destroy_process_group()
