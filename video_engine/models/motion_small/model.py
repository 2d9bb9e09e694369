"""MotionSmall: the engine's offline default, a motion diffusion model of stock diffusers parts.

Legend: B batch, C channels, F latent frames, G grid, L text tokens, D text width.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from diffusers.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file

from video_engine.models.denoiser import Lay, StockDenoiser
from video_engine.models.device import choose_dtype, finish, plain_config
from video_engine.models.folder import weight_hashes
from video_engine.models.motion_small.config import MotionConfig
from video_engine.models.motion_small.latents import unpack
from video_engine.models.motion_small.layout import picture_layout
from video_engine.models.motion_small.network import (
    TRAIN_TIMESTEPS,
    motion_inputs,
    velocity_from_motion,
)
from video_engine.models.motion_small.render import render
from video_engine.models.motion_small.text_encoder import TextEncoder
from video_engine.models.pipelines import Stock
from video_engine.picture import fit_picture
from video_engine.types import Clip, Conditioning, Latents, VideoLimits, VideoRequest

LIMITS = VideoLimits(
    min_side=64,
    max_side=4096,
    side_multiple=2,  # H.264 halves the colour planes: odd sides cannot be encoded
    max_area=2560 * 1440,
    default_area=512 * 512,
    min_frames=2,
    max_frames=361,
    frame_step=1,
    frame_offset=0,
    default_fps=24.0,
    min_fps=1.0,
    max_fps=60.0,
    default_seconds=3.0,
    default_steps=6,
    min_steps=1,
    max_steps=50,
    max_prompt_chars=2000,
    default_guidance_scale=1.0,
    has_negative_prompt=False,
)

_PART = "transformer"


class MotionSmall:
    """One loaded motion-small.

    Invariants: holds nothing of a request; the transformer and the scheduler class are stock.
    """

    name = "motion-small"

    def __init__(
        self, folder: Path, *, device: str, dtype: torch.dtype, lay: Lay = StockDenoiser
    ) -> None:
        """Loads a weights folder."""
        self.source = "built-in" if folder == weights_folder() else str(folder)
        self.limits = LIMITS
        self.config = MotionConfig.load(folder)
        self.transformer = _load_transformer(folder, device, dtype)
        self.scheduler: Stock = FlowMatchEulerDiscreteScheduler.from_pretrained(
            folder / "scheduler"
        )
        self.text_encoder = TextEncoder.from_folder(folder / "text_encoder")
        self._hashes = weight_hashes(folder)
        self._denoise = lay({_PART: self.transformer})

    @classmethod
    def load(cls, *, device: str, dtype: str, lay: Lay = StockDenoiser) -> Self:
        """Loads the weights that come with the package."""
        return cls(weights_folder(), device=device, dtype=choose_dtype(dtype, device), lay=lay)

    @classmethod
    def load_transformers(cls, *, device: str, dtype: str) -> dict[str, Stock]:
        """The transformer alone, by name."""
        return {_PART: _load_transformer(weights_folder(), device, choose_dtype(dtype, device))}

    @torch.no_grad()
    def encode(self, request: VideoRequest) -> Conditioning:
        """Fits the picture, reads its layout, and encodes the prompt.

        Shapes: condition (1, 7, G, G); prompt_embeds (1, L, D); null_embeds alike with guidance.
        """
        picture = fit_picture(request.image, request.width, request.height, request.fit)
        layout = picture_layout(picture, self.config.grid)
        tensors = {
            "condition": torch.from_numpy(layout.condition()).unsqueeze(0),
            "prompt_embeds": self.text_encoder.encode([request.prompt]),
        }
        scale = 1.0 if request.guidance_scale is None else request.guidance_scale
        if scale != 1.0:
            tensors["null_embeds"] = self.text_encoder.encode([None])
        placed = {name: self._place(tensor) for name, tensor in tensors.items()}
        return Conditioning(picture=picture, tensors=placed, scalars={"guidance_scale": scale})

    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        """Noise (1, C, F, G, G) and a scheduler of this request's own."""
        scheduler: Stock = FlowMatchEulerDiscreteScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(request.steps, device=self.transformer.device)
        generator = torch.Generator("cpu").manual_seed(request.seed)
        config = self.config
        shape = (1, config.num_latent_channels, config.num_latent_frames, config.grid, config.grid)
        noise = torch.randn(shape, generator=generator, dtype=torch.float32)
        return Latents(
            tensors={"motion": noise.to(self.transformer.device)},
            schedulers={"motion": scheduler},
            index=0,
            steps=len(scheduler.timesteps),
        )

    @torch.no_grad()
    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        """One forward (two with guidance) and one Euler update."""
        scheduler, x_t = latents.schedulers["motion"], latents.tensors["motion"]
        t = scheduler.timesteps[latents.index]
        predicted = self._predict(conditioning, x_t, t)
        motion = predicted[0]
        if len(predicted) == 2:
            without = predicted[1]
            motion = without + conditioning.scalars["guidance_scale"] * (motion - without)
        velocity = velocity_from_motion(x_t, motion, float(scheduler.sigmas[latents.index]))
        x_t = scheduler.step(velocity, t, x_t, return_dict=False)[0]
        finish(self.transformer.device)
        return replace(latents, tensors={"motion": x_t}, index=latents.index + 1)

    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Clip:
        """Motion to frames; frame 0 is the fitted picture, bit for bit."""
        flow = unpack(latents.tensors["motion"].float().cpu(), self.config)[0].numpy()
        layout = picture_layout(conditioning.picture, self.config.grid)
        return Clip(frames=render(conditioning.picture, flow, layout, request.num_frames))

    def recipe(self) -> dict[str, Any]:
        """Family, number format, weights and scheduler settings."""
        return {
            "family": "motion-small",
            "dtype": str(self.transformer.dtype).removeprefix("torch."),
            "scheduler": plain_config(self.scheduler),
            "weights": self._hashes,
        }

    def _predict(
        self, conditioning: Conditioning, x_t: torch.Tensor, t: torch.Tensor
    ) -> list[torch.Tensor]:
        """The clean latent with the prompt; and, with guidance, without one."""
        tensors = conditioning.tensors
        noise_level = (t / TRAIN_TIMESTEPS).reshape(1)
        noisy = x_t.to(self.transformer.dtype)
        shared = motion_inputs(noisy, tensors["condition"], noise_level)
        texts = [tensors[name] for name in ("prompt_embeds", "null_embeds") if name in tensors]
        branches = [{"encoder_hidden_states": text} for text in texts]
        return [output[0].float() for output in self._denoise(_PART, shared, branches)]

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self.transformer.device, dtype=self.transformer.dtype)


def weights_folder() -> Path:
    """The folder of the weights that come with the package."""
    return Path(__file__).parent / "weights"


def _load_transformer(folder: Path, device: str, dtype: torch.dtype) -> Stock:
    """The stock class with the stored tensors; what it keeps in float32 stays there.

    ``from_pretrained`` would do the same, but needs the accelerate package for that.
    """
    settings: Stock = WanTransformer3DModel.load_config(
        folder / "transformer", local_files_only=True
    )
    transformer: Stock = WanTransformer3DModel.from_config(settings)
    transformer.load_state_dict(load_file(folder / "transformer" / SAFETENSORS_WEIGHTS_NAME))
    for name, parameter in transformer.named_parameters():
        is_kept = any(part in name for part in transformer._keep_in_fp32_modules)
        parameter.data = parameter.data.to(torch.float32 if is_kept else dtype)
    return transformer.to(device).eval().requires_grad_(False)
