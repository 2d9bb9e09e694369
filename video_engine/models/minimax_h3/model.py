"""MiniMax-H3 over the stock components: the same pixels and sound as the stock blocks, stepwise.

One sequence holds text, the given first frame, sound and video; every forward serves all rows.
`steps` counts grid points, as in the stock pipeline: 50 means 49 updates.

Source: diffusers 0.42.1, modular_pipelines/minimax_h3 (workflow fl2va).
"""

# B batch, C channels, F latent frames, H height, W width, R rows, N audio samples

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from diffusers import MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines import PipelineState
from diffusers.modular_pipelines.minimax_h3 import before_denoise, decoders, encoders
from PIL import Image

from video_engine.models.denoiser import Lay, StockDenoiser
from video_engine.models.device import choose_dtype, finish, plain_config, to_uint8
from video_engine.models.folder import weight_hashes
from video_engine.models.minimax_h3.components import load_components
from video_engine.models.minimax_h3.limits import read_limits
from video_engine.models.pipelines import Stock, load_part
from video_engine.picture import fit_picture
from video_engine.types import Audio, Clip, Conditioning, Latents, VideoRequest

_PART = "transformer"
_LAYOUT = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices")
_COUNTS = (
    "num_condition_video_rows",
    "num_latent_frames",
    "latent_height",
    "latent_width",
    "num_audio_latents",
)


class MiniMaxH3Video:
    """One loaded MiniMax-H3 checkpoint.

    Invariants: the pipeline is only a box of components here; its schedulers are never stepped,
    so no request leaves anything in it.
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
        """Wrap components that are on their device."""
        self.pipe = pipe
        self.name = name
        self.source = source
        self.limits = read_limits(pipe)
        self._hashes = hashes
        self._denoise = lay({_PART: pipe.transformer})

    @classmethod
    def load(
        cls, folder: Path, *, source: str, device: str, dtype: str, lay: Lay = StockDenoiser
    ) -> Self:
        """Load a folder of the modular pipeline.

        Numerics: `dtype`, save the modules that the stock classes pin to float32.
        """
        pipe = load_components(folder, choose_dtype(dtype, device))
        pipe.to(device)
        hashes = weight_hashes(folder)
        return cls(pipe, name=Path(source).name, source=source, hashes=hashes, lay=lay)

    @classmethod
    def load_transformers(cls, folder: Path, *, device: str, dtype: str) -> dict[str, Stock]:
        """The transformer alone, by name."""
        of_class, where = MiniMaxH3Transformer3DModel, folder / _PART
        return {_PART: load_part(of_class, where, choose_dtype(dtype, device), device)}

    @torch.no_grad()
    def encode(self, request: VideoRequest) -> Conditioning:
        """Prompt and picture through the text encoder, picture to latents, and the row layout.

        Shapes: prompt_embeds (1, T, text_dim); condition_latents (1, C, 1, H, W);
        position_ids (R, 3); token_tags (R,); *_indices index the R rows.
        """
        picture = fit_picture(request.image, request.width, request.height, request.fit)
        state = self._run(
            encoders.MiniMaxH3FL2VATextEncoderStep(),
            encoders.MiniMaxH3KeyframeVaeEncoderStep(),
            before_denoise.MiniMaxH3PrepareLayoutStep(),
            prompt=request.prompt,
            keyframes=[Image.fromarray(picture)],
            keyframe_anchors=("first",),
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
        )
        tensors = {name: state.get(name) for name in ("prompt_embeds", *_LAYOUT)}
        tensors["condition_latents"] = state.get("condition_latents")[0]
        counts = {name: state.get(name) for name in _COUNTS}
        return Conditioning(picture=picture, tensors=tensors, scalars=counts)

    @torch.no_grad()
    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        """Noise, drawn for the given frame, the video and the sound in this order; schedulers.

        Shapes: video (rows, C * patch), the given frame's rows first; audio (rows, C).
        """
        state = self._run(
            before_denoise.MiniMaxH3PrepareConditionLatentsStep(),
            before_denoise.MiniMaxH3PrepareLatentsStep(),
            before_denoise.MiniMaxH3FL2VAPrepareLatentsStep(),
            condition_latents=[conditioning.tensors["condition_latents"]],
            generator=torch.Generator("cpu").manual_seed(request.seed),
            **_whole(conditioning),
        )
        schedulers: dict[str, Any] = {}
        for name, shared in (
            ("video", self.pipe.scheduler),
            ("audio", self.pipe.audio_scheduler),
        ):
            schedulers[name] = type(shared).from_config(shared.config)
            schedulers[name].set_timesteps(request.steps, device=self._device)
        return Latents(
            tensors={"video": state.get("latents"), "audio": state.get("audio_latents")},
            schedulers=schedulers,
            index=0,
            steps=len(schedulers["video"].timesteps),
        )

    @torch.no_grad()
    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        """One forward for all rows, one update of video and sound; the given frame stays."""
        schedulers, tensors = latents.schedulers, latents.tensors
        t = schedulers["video"].timesteps[latents.index]
        audio_t = schedulers["audio"].timesteps[latents.index]
        velocity_BRC, audio_velocity_BRC = self._predict(conditioning, tensors, t, audio_t)
        given = int(conditioning.scalars["num_condition_video_rows"])
        video_RC, audio_RC = tensors["video"], tensors["audio"]
        later_RC = schedulers["video"].step(
            velocity_BRC[0, given:].float(), t, video_RC[given:], return_dict=False
        )[0]
        audio_RC = schedulers["audio"].step(
            audio_velocity_BRC[0].float(), audio_t, audio_RC, return_dict=False
        )[0]
        finish(self._device)
        moved = {"video": torch.cat([video_RC[:given], later_RC]), "audio": audio_RC}
        return replace(latents, tensors=moved, index=latents.index + 1)

    @torch.no_grad()
    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Clip:
        """The frames as bytes, and the stereo sound."""
        video_FCHW, audio = self.decode_video(conditioning, latents)
        return Clip(frames=to_uint8(video_FCHW), audio=audio)

    @torch.no_grad()
    def decode_video(
        self, conditioning: Conditioning, latents: Latents
    ) -> tuple[torch.Tensor, Audio]:
        """Rows through the two autoencoders.

        Shapes: video (frames, 3, height, width), float in 0…1; sound (2, N).
        """
        state = self._run(
            decoders.MiniMaxH3AfterDenoiseStep(),
            decoders.MiniMaxH3VideoDecodeStep(),
            decoders.MiniMaxH3AudioDecodeStep(),
            latents=latents.tensors["video"],
            audio_latents=latents.tensors["audio"],
            output_type="pt",
            **_whole(conditioning),
        )
        samples_CN = state.get("audio")[0].float().cpu().numpy()
        audio = Audio(samples=samples_CN.astype(np.float32), rate_hz=state.get("sampling_rate"))
        return state.get("videos")[0], audio

    def recipe(self) -> dict[str, Any]:
        """Family, number format, weights and scheduler settings."""
        return {
            "family": "minimax_h3",
            "pipeline": "MiniMaxH3ModularPipeline",
            "dtype": str(self.pipe.transformer.dtype).removeprefix("torch."),
            "facts": dict(self.pipe.facts),
            "scheduler": plain_config(self.pipe.scheduler),
            "audio_scheduler": plain_config(self.pipe.audio_scheduler),
            "weights": self._hashes,
        }

    @property
    def _device(self) -> torch.device:
        return self.pipe.transformer.device

    def _run(self, *blocks: Stock, **values: Any) -> Stock:  # noqa: ANN401  any input
        state = PipelineState()
        for name, value in values.items():
            state.set(name, value)
        for block in blocks:
            block(self.pipe, state)
        return state

    def _predict(
        self,
        conditioning: Conditioning,
        tensors: Mapping[str, torch.Tensor],
        t: torch.Tensor,
        audio_t: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layout = {name: conditioning.tensors[name] for name in _LAYOUT}
        # The given frame is held just short of clean; text rows go with the video.
        timestep, timestep_indices = before_denoise.MiniMaxH3SetTimestepsStep.build_row_timesteps(
            layout["video_indices"],
            layout["audio_indices"],
            int(conditioning.scalars["num_condition_video_rows"]),
            0,
            layout["text_indices"].numel(),
            float(t),
            float(audio_t),
            max(float(t), self.pipe.keyframe_noise_aug),
            1.0,
        )
        inputs = {
            "hidden_states": tensors["video"][None],
            "audio_hidden_states": tensors["audio"][None],
            "encoder_hidden_states": conditioning.tensors["prompt_embeds"],
            "timestep": timestep.to(self._device),
            "timestep_indices": timestep_indices.to(self._device),
            **layout,
        }
        (outputs,) = self._denoise(_PART, inputs, [{}])
        return outputs[0], outputs[1]


def _whole(conditioning: Conditioning) -> dict[str, int]:
    return {name: int(value) for name, value in conditioning.scalars.items()}
