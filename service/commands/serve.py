"""`lanewise serve`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import click
from pydantic import ValidationError

from service.commands.options import SIZE
from service.terminal import CommandFailed, ExitCode, OptionValue
from workers.errors import LanewiseError
from workers.settings import Settings

_SETTING_OF_OPTION = {
    "data": "data_dir",
    "model": "llm_model",
    "weights": "llm_weights",
    "layout": "llm_layout",
    "overlap": "llm_overlap",
    "wire": "llm_wire",
    "graphs": "llm_graphs",
    "max_model_len": "llm_max_model_len",
    "kv_cache": "llm_kv_cache_bytes",
    "host_cache": "llm_host_cache_bytes",
    "max_num_seqs": "llm_max_num_seqs",
    "chunk": "llm_prefill_chunk_tokens",
    "prefix_cache": "llm_prefix_cache",
    "speculation": "llm_speculation",
    "batch_invariant": "llm_batch_invariant",
    "adapters": "llm_adapters",
    "strict": "llm_strict_floor",
}


@click.command()
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of all state."
)
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0: a free one.  [default: 8000]")
@click.option("--model", metavar="NAME", help="Language model; 'none' for none.")
@click.option("--video-model", metavar="NAME", help="Video model; 'none' for none.")
@click.option("--llm-devices", metavar="SET", help="Such as 0-3 or 0,2; empty: the CPU.")
@click.option("--video-devices", metavar="SET", help="May not overlap --llm-devices.")
@click.option("--redis-url", metavar="URL", help="Redis to use.  [default: its own]")
@click.option("--database-url", metavar="URL", help="Database.  [default: SQLite in --data]")
@click.option("--layout", metavar="TEXT", help="LLM over ranks: tp2, cp2->tp2.  [default: one]")
@click.option("--video-layout", metavar="TEXT", help="Clips over ranks: ulysses2, cfg2.")
@click.option(
    "--overlap", type=click.Choice(["auto", "on", "off"]), help="Hide exchanges between ranks."
)
@click.option(
    "--wire", type=click.Choice(["exact", "int8", "auto"]), help="Of prompts; int8 is inexact."
)
@click.option(
    "--graphs", type=click.Choice(["auto", "on", "off"]), help="Replay decode steps on a device."
)
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), help="LLM precision.")
@click.option("--weights", type=click.Choice(["auto", "packed", "unpacked"]), help="LLM weights.")
@click.option(
    "--max-model-len", type=click.IntRange(1), help="Tokens a chat.  [default: what fits]"
)
@click.option("--kv-cache", type=SIZE, help="KV cache, such as 2GiB.  [default: what fits]")
@click.option("--host-cache", type=SIZE, help="Host memory behind the cache.  [default: 0]")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Answers at once.  [default: 32]")
@click.option("--chunk", type=click.IntRange(1), help="Prompt tokens a step.  [default: chosen]")
@click.option("--prefix-cache/--no-prefix-cache", default=None, help="Reuse computed prompts.")
@click.option("--speculation", type=click.Choice(["auto", "off", "ngram"]), help="Draft tokens.")
@click.option("--batch-invariant", is_flag=True, default=None, help="Bit-equal in any batch.")
@click.option(
    "--adapter", "adapters", multiple=True, metavar="NAME=FOLDER", help="LoRA; repeatable."
)
@click.option("--strict", type=click.Choice(["fused", "vendor"]), help="Refuse slower kernels.")
@click.option("--auth", type=click.Choice(["on", "off"]), help="off: loopback only, no keys.")
@click.pass_context
def serve(ctx: click.Context, **options: OptionValue) -> None:
    """Run the service until Ctrl-C: gateway, workers, and a Redis where none is given.

    Options override the LANEWISE_* variables of the same names.
    """
    settings = settings_from(options)
    from workers.deployment.supervisor import Supervisor

    try:
        code = Supervisor(settings).run()
    except LanewiseError as error:
        raise CommandFailed(str(error)) from error
    ctx.exit(int(code or 0))


def settings_from(options: Mapping[str, OptionValue]) -> Settings:
    """The settings of the environment, with the given options put over them.

    Raises: CommandFailed with exit code 2 naming each value that cannot be.
    """
    given: dict[str, Any] = {
        _SETTING_OF_OPTION.get(name, name): value
        for name, value in options.items()
        if value not in (None, ())
    }
    if isinstance(adapters := given.get("llm_adapters"), tuple):
        given["llm_adapters"] = ",".join(cast("tuple[str, ...]", adapters))
    try:
        return Settings(**given)
    except ValidationError as error:
        raise CommandFailed(
            "\n       ".join(_line(problem) for problem in error.errors()),
            hint="lanewise serve --help lists the options",
            code=ExitCode.USAGE,
        ) from None


def _line(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    place = ".".join(str(part) for part in problem["loc"])
    text = str(problem["msg"]).removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
