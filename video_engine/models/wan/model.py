"""Wan image-to-video over the stock components: the same pixels as the stock pipeline, stepwise.

Source: diffusers 0.42.1, pipelines/wan/pipeline_wan_i2v.py.
"""

# B batch, C channels, F latent frames, H height, W width, T text tokens

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import WanImageToVideoPipeline, WanTransformer3DModel
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image

from video_engine.errors import UnsupportedModel
from video_engine.models.denoiser import Lay, StockDenoiser
from video_engine.models.device import choose_dtype, finish, plain_config, to_uint8
from video_engine.models.folder import weight_hashes
from video_engine.models.pipelines import Stock, load_part, load_pipeline
from video_engine.models.wan.limits import read_limits
from video_engine.picture import fit_picture
from video_engine.types import Clip, Conditioning, Latents, VideoRequest

# The 2.1 attention finds the picture tokens by counting back from 512 text tokens.
_TEXT_TOKENS = 512
_FULL_PRECISION = ("vae", "image_encoder")
_TRANSFORMERS = ("transformer", "transformer_2")


class WanVideo:
    """One loaded Wan checkpoint of any of the three kinds.

    Invariants: the pipeline is only a box of components here; its `__call__` is never run and
    its scheduler is never stepped, so no request leaves anything in it.
    """

    def __init__(
        self,
        pipe: Stock,
        *,
        name: str,
        source: str,
        hashes: dict[str, str],
        lay: Lay = StockDenoiser,
    ) -> None:
        """Wrap a pipeline whose components are on their device."""
        if pipe.transformer is None:
            raise UnsupportedModel(f"{source}: this Wan folder has no `transformer` component")
        self.pipe = pipe
        self.name = name
        self.source = source
        self.limits = read_limits(pipe)
        self._hashes = hashes
        parts = {name: getattr(pipe, name) for name in _TRANSFORMERS}
        self._denoise = lay({name: part for name, part in parts.items() if part is not None})

    @classmethod
    def load(
        cls, folder: Path, *, source: str, device: str, dtype: str, lay: Lay = StockDenoiser
    ) -> Self:
        """Load a folder saved by `WanImageToVideoPipeline`.

        Numerics: autoencoder and picture encoder in float32, the rest in `dtype`.
        """
        pipe = load_pipeline(
            WanImageToVideoPipeline, folder, choose_dtype(dtype, device), _FULL_PRECISION
        ).to(device)
        hashes = weight_hashes(folder)
        return cls(pipe, name=Path(source).name, source=source, hashes=hashes, lay=lay)

    @classmethod
    def load_transformers(cls, folder: Path, *, device: str, dtype: str) -> dict[str, Stock]:
        """The transformers alone, by name."""
        return {
            name: load_part(
                WanTransformer3DModel, folder / name, choose_dtype(dtype, device), device
            )
            for name in _TRANSFORMERS
            if (folder / name).is_dir()
        }

    @torch.no_grad()
    def encode(self, request: VideoRequest) -> Conditioning:
        """Prompt and negative prompt to text tokens, picture to latents (and CLIP tokens in 2.1).

        Shapes: prompt_embeds (1, 512, text_dim); condition (1, C, F, H, W) of latents.
        """
        picture = fit_picture(request.image, request.width, request.height, request.fit)
        image = Image.fromarray(picture)
        scale = self._guidance_scale(request)
        tensors = self._encode_texts(request, has_guidance=scale > 1)
        if self.pipe.transformer.config.image_dim is not None:
            embeds = self.pipe.encode_image(image, self._device)
            tensors["image_embeds"] = embeds.to(self.pipe.transformer.dtype)
        tensors |= self._encode_picture(image, request)
        return Conditioning(picture=picture, tensors=tensors, scalars={"guidance_scale": scale})

    @torch.no_grad()
    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        """Noise of the latents' shape, and a scheduler of this request's own."""
        scheduler = type(self.pipe.scheduler).from_config(self.pipe.scheduler.config)
        scheduler.set_timesteps(request.steps, device=self._device)
        generator = torch.Generator("cpu").manual_seed(request.seed)
        shape = self._latent_shape(request)
        noise = randn_tensor(shape, generator=generator, device=self._device, dtype=torch.float32)
        return Latents(
            tensors={"video": noise},
            schedulers={"video": scheduler},
            index=0,
            steps=len(scheduler.timesteps),
        )

    @torch.no_grad()
    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        """One forward (two with guidance) and one scheduler update."""
        scheduler, x_BCFHW = latents.schedulers["video"], latents.tensors["video"]
        t = scheduler.timesteps[latents.index]
        part = self._expert(t, scheduler)
        shared = self._model_inputs(conditioning, x_BCFHW, t, getattr(self.pipe, part).dtype)
        outputs = self._denoise(part, shared, _branches(conditioning))
        velocity = outputs[0][0]
        if len(outputs) == 2:
            without = outputs[1][0]
            velocity = without + conditioning.scalars["guidance_scale"] * (velocity - without)
        x_BCFHW = scheduler.step(velocity, t, x_BCFHW, return_dict=False)[0]
        finish(self._device)
        return replace(latents, tensors={"video": x_BCFHW}, index=latents.index + 1)

    @torch.no_grad()
    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Clip:
        """The frames as bytes."""
        return Clip(frames=to_uint8(self.decode_video(conditioning, latents)))

    @torch.no_grad()
    def decode_video(self, conditioning: Conditioning, latents: Latents) -> torch.Tensor:
        """Latents through the autoencoder.

        Shapes: result (frames, 3, height, width), float in 0…1.
        """
        vae, x_BCFHW = self.pipe.vae, latents.tensors["video"]
        if self.pipe.config.expand_timesteps:
            x_BCFHW = _hold_first_frame(conditioning, x_BCFHW)
        x_BCFHW = x_BCFHW.to(device=self._device, dtype=vae.dtype)
        shape = (1, vae.config.z_dim, 1, 1, 1)
        mean = torch.tensor(vae.config.latents_mean).view(shape).to(x_BCFHW)
        # Divided twice, as the stock pipeline does: one multiplication rounds differently.
        inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(x_BCFHW)
        video = vae.decode(x_BCFHW / inverse_std + mean, return_dict=False)[0]
        return self.pipe.video_processor.postprocess_video(video, output_type="pt")[0]

    def recipe(self) -> dict[str, Any]:
        """Family, kind, number format, weights and scheduler settings."""
        return {
            "family": "wan",
            "pipeline": type(self.pipe).__name__,
            "dtype": str(self.pipe.transformer.dtype).removeprefix("torch."),
            "boundary_ratio": self.pipe.config.boundary_ratio,
            "expand_timesteps": self.pipe.config.expand_timesteps,
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

    def _encode_texts(
        self, request: VideoRequest, *, has_guidance: bool
    ) -> dict[str, torch.Tensor]:
        prompt, negative = self.pipe.encode_prompt(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            do_classifier_free_guidance=has_guidance,
            max_sequence_length=_TEXT_TOKENS,
            device=self._device,
        )
        tensors = {"prompt_embeds": prompt.to(self.pipe.transformer.dtype)}
        if negative is not None:
            tensors["negative_prompt_embeds"] = negative.to(self.pipe.transformer.dtype)
        return tensors

    def _encode_picture(self, image: Image.Image, request: VideoRequest) -> dict[str, torch.Tensor]:
        pixels = self.pipe.video_processor.preprocess(
            image, height=request.height, width=request.width
        ).to(self._device, dtype=torch.float32)
        # Given latents, `prepare_latents` draws no noise: it only encodes the picture.
        outputs = self.pipe.prepare_latents(
            pixels,
            batch_size=1,
            num_channels_latents=self.pipe.vae.config.z_dim,
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            dtype=torch.float32,
            device=self._device,
            latents=torch.zeros(self._latent_shape(request)),
        )
        names = ("condition", "first_frame_mask") if len(outputs) == 3 else ("condition",)
        return dict(zip(names, outputs[1:], strict=True))

    def _latent_shape(self, request: VideoRequest) -> tuple[int, ...]:
        spatial = self.pipe.vae_scale_factor_spatial
        frames = (request.num_frames - 1) // self.pipe.vae_scale_factor_temporal + 1
        channels = self.pipe.vae.config.z_dim
        return (1, channels, frames, request.height // spatial, request.width // spatial)

    def _expert(self, t: torch.Tensor, scheduler: Stock) -> str:
        boundary_ratio = self.pipe.config.boundary_ratio
        if boundary_ratio is None or t >= boundary_ratio * scheduler.config.num_train_timesteps:
            return "transformer"
        return "transformer_2"

    def _model_inputs(
        self, conditioning: Conditioning, x_BCFHW: torch.Tensor, t: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """What both branches are given."""
        tensors = conditioning.tensors
        shared = {}
        if "image_embeds" in tensors:
            shared["encoder_hidden_states_image"] = tensors["image_embeds"]
        if not self.pipe.config.expand_timesteps:
            stacked = torch.cat([x_BCFHW, tensors["condition"]], dim=1)
            timestep = t.expand(x_BCFHW.shape[0])
            return shared | {"hidden_states": stacked.to(dtype), "timestep": timestep}
        mask = tensors["first_frame_mask"]
        # One timestep a token: 0 for the given first frame, t for the others.
        timestep = (mask[0][0][:, ::2, ::2] * t).flatten()
        timestep = timestep.unsqueeze(0).expand(x_BCFHW.shape[0], -1)
        held = _hold_first_frame(conditioning, x_BCFHW).to(dtype)
        return shared | {"hidden_states": held, "timestep": timestep}


def _branches(conditioning: Conditioning) -> list[dict[str, torch.Tensor]]:
    """With the prompt; and, with guidance, with the negative one."""
    found = (conditioning.tensors.get(n) for n in ("prompt_embeds", "negative_prompt_embeds"))
    return [{"encoder_hidden_states": embeds} for embeds in found if embeds is not None]


def _hold_first_frame(conditioning: Conditioning, x_BCFHW: torch.Tensor) -> torch.Tensor:
    mask = conditioning.tensors["first_frame_mask"]
    return (1 - mask) * conditioning.tensors["condition"] + mask * x_BCFHW
