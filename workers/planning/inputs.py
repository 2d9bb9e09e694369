"""What a plan is made from: the model's config, the machine, the sizes of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.hardware.detect import detect
from kernels.hardware.machine import load_machine
from llm_engine.plan import families as llm
from llm_engine.plan.request import PlanRequest
from video_engine.plan import families as video

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.plan_formats import Formats

_GGUF_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
EXIT_OTHER, EXIT_USAGE, EXIT_STRICT, EXIT_DOES_NOT_FIT = 1, 2, 3, 4


class PlanFailed(Exception):
    """A plan cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSizes:
    """The sizes of the steps planned for. Units: tokens, sequences, pixels, frames.

    0 takes the default: a chunk of 4096 tokens or the context, and a family's own clip.
    """

    prefill_tokens: int = 0
    context: int = 8192
    batch: int = 1
    width: int = 0
    height: int = 0
    num_frames: int = 0
    cache: str = "auto"


def data_dir(asked: str) -> Path | str:
    """The folder of all state, as asked or as set; or what is wrong with the settings."""
    if asked:
        return Path(asked).expanduser().resolve()
    from pydantic import ValidationError

    from workers.settings import Settings

    try:
        return Settings().resolved_data_dir
    except ValidationError as error:
        return str(error)


def find_machine(name: str) -> Machine:
    """A machine by name or .toml file; the present one for an empty name."""
    return load_machine(name) if name else detect().machine


def model_names() -> tuple[str, ...]:
    """Every preset of both engines."""
    return (*llm.preset_names(), *video.preset_names())


def request_of(sizes: PlanSizes, formats: Formats) -> PlanRequest:
    """What a language model's shape is described for."""
    return PlanRequest(
        prefill_tokens=sizes.prefill_tokens or min(4096, sizes.context),
        context=sizes.context,
        batch=sizes.batch,
        dtype=formats.dtype,
        cache=formats.cache,
        has_fp8_math=formats.has_fp8_math,
        vendor_page=formats.vendor_page,
    )


def find_model(model: str) -> tuple[str, dict[str, Any]]:
    """The config behind a preset's name, a folder, a config.json or a .gguf file."""
    if model in llm.preset_names():
        return model, llm.preset(model)
    if model in video.preset_names():
        return model, video.preset(model)
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".json":
        return path.parent.name or path.stem, llm.read_config(path)
    if any((path / name).is_file() for name in video.INDEX_NAMES):
        return path.name, video.read_folder(path)
    if (path / "config.json").is_file():
        return path.name, llm.read_config(path / "config.json")
    if path.suffix.lower() == ".gguf" or (path.is_dir() and any(path.glob("*.gguf"))):
        return path.stem, _gguf_config(model)
    raise PlanFailed(
        f"no model {model!r}: it is no preset ({', '.join(model_names())}), no folder with "
        "config.json or model_index.json, no config.json file, and no .gguf file"
    )


def _gguf_config(model: str) -> dict[str, Any]:
    """What a GGUF file's metadata say, as a config.json. Raises: LLMError."""
    from llm_engine.weights.gguf import GgufCheckpoint  # brings torch: for such a file alone
    from llm_engine.weights.resolve import resolve

    checkpoint = GgufCheckpoint(resolve(model).path)
    config = dict(checkpoint.config)
    checkpoint.close()
    (architecture,) = config["architectures"]
    return {"model_type": _GGUF_TYPES[architecture], **config}
