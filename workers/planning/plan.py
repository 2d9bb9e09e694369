"""`python -m workers plan MODEL`: what would run where, and why, before any weight is read.

`plan_document` gives the same as plain values, for whoever publishes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

from kernels.errors import KernelError, StrictRefusal
from kernels.hardware.errors import HardwareError
from kernels.launch_plan import LaunchPlan, compute_plan
from kernels.plan_formats import choose_formats
from kernels.spec import Tier
from llm_engine.errors import LLMError
from llm_engine.plan import families as llm
from video_engine.errors import VideoError
from video_engine.plan import families as video
from video_engine.plan.request import ClipRequest
from workers.planning import calibration
from workers.planning.clip import clip_of
from workers.planning.inputs import (
    EXIT_STRICT,
    EXIT_USAGE,
    PlanFailed,
    PlanSizes,
    find_machine,
    find_model,
    request_of,
)
from workers.planning.local_engine import local_engine_of
from workers.planning.serving import serving_of

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine

_PACKAGES = ("lanewise", "torch", "triton", "transformers", "diffusers")


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


def _plan(model: str, machine: Machine, sizes: PlanSizes) -> LaunchPlan:
    name, raw = find_model(model)
    is_language = llm.is_language_model(raw)
    is_quantised = is_language and llm.is_quantised(raw)
    formats = choose_formats(machine, is_quantised=is_quantised, asked_cache=sizes.cache)
    if is_language:
        if sizes.width or sizes.height or sizes.num_frames:
            raise PlanFailed(
                f"--width, --height and --frames are of clips, and {name} is a language model: "
                "leave them out"
            )
        shape = llm.describe(raw, request_of(sizes, formats), name=name)
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


def _versions() -> dict[str, str]:
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str]) -> int:
    """Print the plan; 3 refused under --strict, 4 does not fit, 2 on wrong usage."""
    if calibration.FLAGS & set(arguments):
        return calibration.main(arguments)
    options = _parser().parse_args(arguments)
    try:
        sizes = _sizes(options)
        plan = make_plan(options.model, options.machine, sizes)
        found = serving_of(options, sizes) or clip_of(options, sizes)
        engine = local_engine_of(options.model, options.machine, sizes.context)
    except PlanFailed as error:
        sys.stderr.write(f"lanewise plan: {error}\n")
        return EXIT_USAGE
    if options.json:
        more = {"layout": found, "engine": engine}
        parts = {name: part.as_dict() for name, part in more.items() if part}
        sys.stdout.write(json.dumps({**plan.as_dict(), **parts}, indent=1) + "\n")
    else:
        from workers.planning.plan_tables import print_plan

        if found:
            found.show()
        print_plan(plan)
        if engine:
            engine.show()
    code = refuse(plan, Tier(options.floor)) if options.strict else 0
    return code or next((part.exit_code for part in (found, engine) if part and part.exit_code), 0)


def _sizes(options: argparse.Namespace) -> PlanSizes:
    """The sizes asked for; a context that nobody gave follows from the prompt, if that was given.

    Raises: PlanFailed for a request that is longer than its context.
    """
    request = options.prompt_tokens + options.answer_tokens if options.prompt_tokens else 0
    context = options.context
    if context is None:
        context = request or PlanSizes().context
    if request > context:
        raise PlanFailed(
            f"--prompt-tokens {options.prompt_tokens} and --answer-tokens "
            f"{options.answer_tokens} make {request}, above --context {context}: raise the "
            "context, or leave it out"
        )
    return PlanSizes(
        prefill_tokens=options.prefill_tokens,
        context=context,
        batch=options.batch,
        width=options.width,
        height=options.height,
        num_frames=options.frames,
        cache=options.cache,
    )


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
    parser.add_argument("model", help="preset, folder, config.json, or .gguf file")
    add_strictness(parser)
    parser.add_argument("--cache", choices=["auto", "bf16", "fp8"], default="auto")
    for name, default in (("prefill-tokens", 0), ("context", None), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--prompt-tokens", type=int, default=0)
    for name in ("width", "height", "frames"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--goal", choices=["ttft", "throughput", "context"], default="ttft")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--wire", choices=["bf16", "int8"], default="bf16")
    parser.add_argument("--price-per-hour", type=float, default=0.0)
    parser.add_argument("--against", default="", help="a machine to compare with")
    parser.add_argument("--data", default="", help="folder of calibrations")
    return parser
