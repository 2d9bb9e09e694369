"""`lanewise plan`."""

from __future__ import annotations

import click

from service.commands.child import run_workers
from service.commands.options import FiniteRange
from service.terminal import OptionValue


@click.command()
@click.argument("model", required=False)
@click.option("--machine", metavar="NAME|FILE", help="A described machine.  [default: this one]")
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="End with 3 when a layer lies below the floor.")
@click.option("--floor", type=click.Choice(["fused", "vendor"]), help="[default: fused]")
@click.option("--cache", type=click.Choice(["auto", "bf16", "fp8"]), help="Cached rows.")
@click.option("--prefill-tokens", type=click.IntRange(1), help="Chunk.  [default: 4096]")
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Tokens of a sequence.  [default: prompt and answer, else 8192]",
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1), help="Of a prompt.  [default: context less answer]"
)
@click.option("--batch", type=click.IntRange(1), help="Sequences of a decode step.  [default: 1]")
@click.option("--width", type=click.IntRange(1), help="Pixels, of a video model.")
@click.option("--height", type=click.IntRange(1), help="Pixels, of a video model.")
@click.option("--frames", type=click.IntRange(1), help="Frames, of a video model.")
@click.option(
    "--goal", type=click.Choice(["ttft", "throughput", "context"]), help="[default: ttft]"
)
@click.option("--clients", type=click.IntRange(1), help="Callers at a time.  [default: 8]")
@click.option("--answer-tokens", type=click.IntRange(1), help="Of an answer.  [default: 512]")
@click.option("--wire", type=click.Choice(["bf16", "int8"]), help="int8 changes numbers.")
@click.option("--price-per-hour", type=FiniteRange(0), help="Of the machine; any currency.")
@click.option("--against", metavar="NAME|FILE", help="Another machine to compare with.")
@click.option("--calibrate", is_flag=True, help="Measure this machine; takes no MODEL.")
@click.option("--validate", is_flag=True, help="Predict runs of two ranks, run them, compare.")
@click.option(
    "--limit",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="Of --validate.  [default: 45]",
)
@click.option("--data", metavar="FOLDER", help="Folder of calibrations.  [default: as set]")
@click.pass_context
def plan(ctx: click.Context, model: str | None, **options: OptionValue) -> None:
    """Show what would serve every layer of MODEL, and why, before any weight is read.

    MODEL is a preset (an unknown name lists them), a folder with config.json or
    model_index.json, a config.json, or a .gguf file; of one whose weights are here, what this
    machine's engine would decide is shown too. With --calibrate or --validate there is none: they
    measure what this machine takes, and how well steps of two ranks are predicted from that.
    """
    measures = bool(options["calibrate"] or options["validate"])
    if measures == bool(model):
        raise click.UsageError("give either MODEL, or --calibrate and --validate without one")
    ctx.exit(run_workers("plan", (model,) if model else (), options))
