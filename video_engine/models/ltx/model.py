"""LTX-Video over the stock components: the same pixels as the stock pipeline, stepwise.

Source: diffusers 0.42.1, pipelines/ltx/pipeline_ltx_image2video.py.
"""

# B batch, C channels, F latent frames, H height, W width, S tokens (F * H * W)

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from diffusers import LTXImageToVideoPipeline
from diffusers.pipelines.ltx.pipeline_ltx_image2video import calculate_shift, retrieve_timesteps
from PIL import Image

from video_engine.models.device import choose_dtype, finish, plain_config, to_uint8
from video_engine.models.folder import weight_hashes
from video_engine.models.ltx.limits import read_limits
from video_engine.models.pipelines import Stock, load_pipeline
from video_engine.picture import fit_picture
from video_engine.types import Clip, Conditioning, Latents, VideoRequest


class LTXVideo:
    """One loaded LTX-Video checkpoint.

    Invariants: the pipeline is only a box of components here; its `__call__` is never run and
    its scheduler is never stepped, so no request leaves anything in it.
    """

    def __init__(self, pipe: Stock, *, name: str, source: str, hashes: dict[str, str]) -> None:
        """Wrap a pipeline whose components are on their device."""
        self.pipe = pipe
        self.name = name
        self.source = source
        self.limits = read_limits(pipe)
        self._hashes = hashes

    @classmethod
    def load(cls, folder: Path, *, source: str, device: str, dtype: str) -> Self:
        """Load a folder saved by `LTXImageToVideoPipeline`.

        Numerics: all components in `dtype`, as the autoencoder is fed the text's type.
        """
        pipe = load_pipeline(LTXImageToVideoPipeline, folder, choose_dtype(dtype, device), ())
        pipe = pipe.to(device)
        return cls(pipe, name=Path(source).name, source=source, hashes=weight_hashes(folder))

    @torch.no_grad()
    def encode(self, request: VideoRequest) -> Conditioning:
        """Prompt (after the negative one, when there is guidance) to text tokens.

        Shapes: prompt_embeds (1 or 2, T, text_dim); prompt_mask (1 or 2, T).
        """
        picture = fit_picture(request.image, request.width, request.height, request.fit)
        scale = self._guidance_scale(request)
        embeds, mask, negative, negative_mask = self.pipe.encode_prompt(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            do_classifier_free_guidance=scale > 1.0,
            device=self._device,
        )
        if negative is not None:
            embeds, mask = torch.cat([negative, embeds]), torch.cat([negative_mask, mask])
        frames, height, width = self._latent_size(request)
        return Conditioning(
            picture=picture,
            tensors={"prompt_embeds": embeds, "prompt_mask": mask},
            scalars={
                "guidance_scale": scale,
                "fps": float(request.fps),
                "latent_frames": frames,
                "latent_height": height,
                "latent_width": width,
            },
        )

    @torch.no_grad()
    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        """Picture latents (their posterior is sampled first, then the noise) and a scheduler.

        Shapes: video (1, S, C); conditioning_mask (1, S), 1 on the given first frame.
        """
        embeds = conditioning.tensors["prompt_embeds"]
        pixels = self.pipe.video_processor.preprocess(
            Image.fromarray(conditioning.picture), height=request.height, width=request.width
        ).to(device=self._device, dtype=embeds.dtype)
        video, mask = self.pipe.prepare_latents(
            pixels,
            batch_size=1,
            num_channels_latents=self.pipe.transformer.config.in_channels,
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            dtype=torch.float32,
            device=self._device,
            generator=torch.Generator("cpu").manual_seed(request.seed),
        )
        scheduler = self._scheduler(request, num_tokens=video.shape[1])
        return Latents(
            tensors={"video": video, "conditioning_mask": mask},
            schedulers={"video": scheduler},
            index=0,
            steps=len(scheduler.timesteps),
        )

    @torch.no_grad()
    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        """One forward (both branches of the guidance in one batch), one scheduler update."""
        scheduler, x_BSC = latents.schedulers["video"], latents.tensors["video"]
        t = scheduler.timesteps[latents.index]
        velocity = self._predict(conditioning, latents, t)
        if velocity.shape[0] == 2:
            without, with_prompt = velocity.chunk(2)
            velocity = without + conditioning.scalars["guidance_scale"] * (with_prompt - without)
        velocity_BCFHW = self._unpack(conditioning, velocity)
        x_BCFHW = self._unpack(conditioning, x_BSC)
        later = scheduler.step(velocity_BCFHW[:, :, 1:], t, x_BCFHW[:, :, 1:], return_dict=False)
        x_BSC = self._pack(torch.cat([x_BCFHW[:, :, :1], later[0]], dim=2))
        finish(self._device)
        tensors = {**latents.tensors, "video": x_BSC}
        return replace(latents, tensors=tensors, index=latents.index + 1)

    @torch.no_grad()
    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Clip:
        """The frames as bytes."""
        return Clip(frames=to_uint8(self.decode_video(conditioning, latents)))

    @torch.no_grad()
    def decode_video(self, conditioning: Conditioning, latents: Latents) -> torch.Tensor:
        """Latents through the autoencoder, at timestep 0 where it takes one.

        Shapes: result (frames, 3, height, width), float in 0…1.
        """
        vae = self.pipe.vae
        x_BCFHW = self.pipe._denormalize_latents(
            self._unpack(conditioning, latents.tensors["video"]),
            vae.latents_mean,
            vae.latents_std,
            vae.config.scaling_factor,
        ).to(conditioning.tensors["prompt_embeds"].dtype)
        timestep = torch.zeros(1).to(x_BCFHW) if vae.config.timestep_conditioning else None
        video = vae.decode(x_BCFHW, timestep, return_dict=False)[0]
        return self.pipe.video_processor.postprocess_video(video, output_type="pt")[0]

    def recipe(self) -> dict[str, Any]:
        """Family, number format, weights and scheduler settings."""
        return {
            "family": "ltx",
            "pipeline": type(self.pipe).__name__,
            "dtype": str(self.pipe.transformer.dtype).removeprefix("torch."),
            "scheduler": plain_config(self.pipe.scheduler),
            "weights": self._hashes,
        }

    @property
    def _device(self) -> torch.device:
        return self.pipe.transformer.device

    def _guidance_scale(self, request: VideoRequest) -> float:
        if request.guidance_scale is not None:
            return request.guidance_scale
        assert self.limits.default_guidance_scale is not None
        return self.limits.default_guidance_scale

    def _latent_size(self, request: VideoRequest) -> tuple[int, int, int]:
        spatial = self.pipe.vae_spatial_compression_ratio
        frames = (request.num_frames - 1) // self.pipe.vae_temporal_compression_ratio + 1
        return frames, request.height // spatial, request.width // spatial

    def _scheduler(self, request: VideoRequest, *, num_tokens: int) -> Stock:
        scheduler = type(self.pipe.scheduler).from_config(self.pipe.scheduler.config)
        settings = scheduler.config
        shift = calculate_shift(
            num_tokens,
            settings.get("base_image_seq_len", 256),
            settings.get("max_image_seq_len", 4096),
            settings.get("base_shift", 0.5),
            settings.get("max_shift", 1.15),
        )
        sigmas: Any = np.linspace(1.0, 1 / request.steps, request.steps)
        retrieve_timesteps(scheduler, request.steps, self._device, None, sigmas=sigmas, mu=shift)
        return scheduler

    def _predict(
        self, conditioning: Conditioning, latents: Latents, t: torch.Tensor
    ) -> torch.Tensor:
        embeds, scalars = conditioning.tensors["prompt_embeds"], conditioning.scalars
        num_branches = embeds.shape[0]
        x_BSC = torch.cat([latents.tensors["video"]] * num_branches).to(embeds.dtype)
        mask = torch.cat([latents.tensors["conditioning_mask"]] * num_branches)
        spatial = self.pipe.vae_spatial_compression_ratio
        seconds_per_latent = self.pipe.vae_temporal_compression_ratio / scalars["fps"]
        with self.pipe.transformer.cache_context("cond_uncond"):
            velocity = self.pipe.transformer(
                hidden_states=x_BSC,
                encoder_hidden_states=embeds,
                timestep=t.expand(num_branches).unsqueeze(-1) * (1 - mask),
                encoder_attention_mask=conditioning.tensors["prompt_mask"],
                num_frames=int(scalars["latent_frames"]),
                height=int(scalars["latent_height"]),
                width=int(scalars["latent_width"]),
                rope_interpolation_scale=(seconds_per_latent, spatial, spatial),
                return_dict=False,
            )[0]
        return velocity.float()

    def _unpack(self, conditioning: Conditioning, x_BSC: torch.Tensor) -> torch.Tensor:
        size = (conditioning.scalars[f"latent_{axis}"] for axis in ("frames", "height", "width"))
        frames, height, width = (int(side) for side in size)
        patch = self.pipe.transformer_spatial_patch_size
        patch_t = self.pipe.transformer_temporal_patch_size
        return self.pipe._unpack_latents(x_BSC, frames, height, width, patch, patch_t)

    def _pack(self, x_BCFHW: torch.Tensor) -> torch.Tensor:
        patch = self.pipe.transformer_spatial_patch_size
        return self.pipe._pack_latents(x_BCFHW, patch, self.pipe.transformer_temporal_patch_size)
