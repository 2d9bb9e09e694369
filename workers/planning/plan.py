"""`python -m workers plan MODEL`: what would run where, and why, before any weight is read.

`plan_document` gives the same as plain values, for whoever publishes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import KernelError, StrictRefusal
from kernels.hardware.detect import detect
from kernels.hardware.errors import HardwareError
from kernels.hardware.machine import load_machine
from kernels.launch_plan import LaunchPlan, compute_plan
from kernels.plan_formats import choose_formats
from kernels.spec import Tier
from llm_engine.errors import LLMError
from llm_engine.plan import families as llm
from llm_engine.plan.request import PlanRequest
from video_engine.errors import VideoError
from video_engine.plan import families as video
from video_engine.plan.request import ClipRequest

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine

EXIT_OTHER, EXIT_USAGE, EXIT_STRICT = 1, 2, 3
_PACKAGES = ("lanewise", "torch", "triton", "transformers", "diffusers")


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


def plan_document(model: str, machine: str = "", sizes: PlanSizes | None = None) -> dict[str, Any]:
    """The launch plan of a model as plain values: what `GET /v1/engine/plan` shows.

    `machine` is a name, a .toml file, or empty for the machine this runs on.
    Raises: PlanFailed for a model or machine that is not known.
    """
    return make_plan(model, machine, sizes or PlanSizes()).as_dict()


def make_plan(model: str, machine: str, sizes: PlanSizes) -> LaunchPlan:
    """The launch plan of a model on a machine.

    Raises: PlanFailed.
    """
    try:
        return _plan(model, find_machine(machine), sizes)
    except (HardwareError, LLMError, VideoError, KernelError, ValueError) as error:
        raise PlanFailed(str(error)) from error


def find_machine(name: str) -> Machine:
    """A machine by name or .toml file; the present one for an empty name."""
    return load_machine(name) if name else detect().machine


def model_names() -> tuple[str, ...]:
    """Every preset of both engines."""
    return (*llm.preset_names(), *video.preset_names())


def _plan(model: str, machine: Machine, sizes: PlanSizes) -> LaunchPlan:
    name, raw = _find(model)
    is_language = llm.is_language_model(raw)
    is_quantised = is_language and llm.is_quantised(raw)
    formats = choose_formats(machine, is_quantised=is_quantised, asked_cache=sizes.cache)
    if is_language:
        request = PlanRequest(
            prefill_tokens=sizes.prefill_tokens or min(4096, sizes.context),
            context=sizes.context,
            batch=sizes.batch,
            dtype=formats.dtype,
            cache=formats.cache,
            has_fp8_math=formats.has_fp8_math,
            vendor_page=formats.vendor_page,
        )
        shape = llm.describe(raw, request, name=name)
    else:
        clip = ClipRequest(
            width=sizes.width,
            height=sizes.height,
            num_frames=sizes.num_frames,
            dtype=formats.dtype,
        )
        shape = video.describe(raw, clip, name=name)
    choices = formats.decisions if shape.rows else ()
    return compute_plan(shape, machine, versions=_versions(), choices=choices)


def _find(model: str) -> tuple[str, dict[str, Any]]:
    """The config behind a preset's name, a folder, or a config.json file."""
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
    raise PlanFailed(
        f"no model {model!r}: it is no preset ({', '.join(model_names())}), no folder with "
        "config.json or model_index.json, and no config.json file"
    )


def _versions() -> dict[str, str]:
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str]) -> int:
    """Print the plan; 3 when a layer lies below the floor under --strict, 2 on wrong usage."""
    options = _parser().parse_args(arguments)
    sizes = PlanSizes(
        prefill_tokens=options.prefill_tokens,
        context=options.context,
        batch=options.batch,
        width=options.width,
        height=options.height,
        num_frames=options.frames,
        cache=options.cache,
    )
    try:
        plan = make_plan(options.model, options.machine, sizes)
    except PlanFailed as error:
        sys.stderr.write(f"lanewise plan: {error}\n")
        return EXIT_USAGE
    if options.json:
        sys.stdout.write(json.dumps(plan.as_dict(), indent=1) + "\n")
    else:
        from workers.planning.plan_tables import print_plan

        print_plan(plan)
    return refuse(plan, Tier(options.floor)) if options.strict else 0


def refuse(plan: LaunchPlan, floor: Tier) -> int:
    """0 where every layer reaches the floor; else 3, with a line for each that does not."""
    try:
        plan.require(floor)
    except StrictRefusal as refusal:
        sys.stderr.write(f"refused by --strict (floor {floor}):\n{refusal}\n")
        return EXIT_STRICT
    return 0


def add_strictness(parser: argparse.ArgumentParser) -> None:
    """The options that `doctor` and `plan` share."""
    parser.add_argument("--machine", default="", help="name or .toml file; default: this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="refuse what lies below the floor")
    parser.add_argument("--floor", choices=[Tier.FUSED, Tier.VENDOR], default=Tier.FUSED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lanewise plan", description=__doc__)
    parser.add_argument("model", help="preset, folder, or config.json")
    add_strictness(parser)
    parser.add_argument("--cache", choices=["auto", "bf16", "fp8"], default="auto")
    for name, default in (("prefill-tokens", 0), ("context", 8192), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("width", "height", "frames"):
        parser.add_argument(f"--{name}", type=int, default=0)
    return parser
