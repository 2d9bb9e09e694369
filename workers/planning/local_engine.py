"""What the language engine of this machine would decide for a model whose files are here.

The engine's own decisions from the files' headers and the deployment's settings: no weight is
read. Importing torch takes a second or two, so this is asked for only where there are such files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import ImplUnavailable, StrictRefusal
from llm_engine.errors import InvalidConfig, LLMError
from llm_engine.weights.resolve import BUNDLED_NAME
from workers.planning.inputs import EXIT_DOES_NOT_FIT, EXIT_STRICT, PlanFailed

if TYPE_CHECKING:
    from llm_engine.decisions import EngineDecisions
    from llm_engine.loader import ForeseenModel
    from workers.settings import Settings

_MIB = 1 << 20
_SHOWN = ("weights", "windows", "KV capacity", "prompt chunk", "page size", "prefix cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """Units: tokens, bytes. `num_sequences` of `context` tokens are served at a time.

    The cache serves `kv_tokens` and grows up to `max_kv_tokens` while memory is to be had.
    """

    source: str
    is_packed: bool
    weight_bytes: int
    kv_tokens: int
    max_kv_tokens: int
    kv_bytes_per_token: int
    max_model_len: int
    prompt_chunk_tokens: int
    context: int
    num_sequences: int
    memory: tuple[tuple[str, int, str], ...]
    decisions: tuple[dict[str, Any], ...]
    exit_code: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "source": self.source,
            "weights": {"form": self._form, "bytes": self.weight_bytes},
            "kv_cache": {
                "tokens": self.kv_tokens,
                "max_tokens": self.max_kv_tokens,
                "bytes_per_token": self.kv_bytes_per_token,
            },
            "max_model_len": self.max_model_len,
            "prompt_chunk_tokens": self.prompt_chunk_tokens,
            "sequences": {"context": self.context, "at_a_time": self.num_sequences},
            "memory": [
                {"name": name, "bytes": size, "source": source}
                for name, size, source in self.memory
            ],
            "decisions": list(self.decisions),
        }

    def show(self) -> None:
        """Print it as tables."""
        from workers.planning.plan_tables import print_table

        rows = (
            ("files", self.source),
            ("weights", f"{self._form}, {self.weight_bytes / _MIB:.0f} MiB"),
            ("KV cache", f"{self.kv_tokens} tokens, growing to {self.max_kv_tokens}"),
            ("a token of it", f"{self.kv_bytes_per_token} bytes"),
            ("longest sequence", f"{self.max_model_len} tokens"),
            (f"sequences of {self.context}", f"{self.num_sequences} at a time"),
            ("prompt chunk", f"{self.prompt_chunk_tokens} tokens"),
        )
        print_table("this machine's engine", ("what", "decided"), rows)
        memory = [(name, f"{size / _MIB:.0f} MiB", source) for name, size, source in self.memory]
        print_table("its memory beside the cache", ("part", "size", "from"), memory)
        reasons = [(d["what"], "; ".join(d["reasons"])) for d in self.decisions]
        print_table("why", ("what", "reasons"), reasons)

    @property
    def _form(self) -> str:
        return "packed" if self.is_packed else "unpacked"


@dataclass(frozen=True, slots=True)
class RefusedEngine:
    """Why the engine would not start with this model and these settings."""

    reason: str
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"refused": self.reason}

    def show(self) -> None:
        """Print it as one line."""
        from workers.planning.plan_tables import console

        console().print(f"this machine's engine would refuse it: {self.reason}", markup=False)


def local_engine_of(model: str, machine: str, context: int) -> LocalEngine | RefusedEngine | None:
    """The engine's decisions; None for a described machine and where no weights are here.

    Raises: PlanFailed for settings that cannot be read.
    """
    if machine or not _has_weights(model):
        return None
    settings = _settings()
    if settings.llm_layout:
        return RefusedEngine(
            f"LANEWISE_LLM_LAYOUT is {settings.llm_layout}: its ranks share this machine, and one "
            "engine alone is shown here; unset it to see that",
            0,
        )
    from llm_engine.loader import foresee
    from workers.llm_settings import engine_config

    try:
        found = foresee(engine_config(settings.model_copy(update={"llm_model": model})))
    except (ImplUnavailable, StrictRefusal) as error:
        return RefusedEngine(str(error), EXIT_STRICT)
    except InvalidConfig as error:
        return RefusedEngine(str(error), EXIT_DOES_NOT_FIT)
    except LLMError as error:
        return RefusedEngine(str(error), 0)
    found.checkpoint.close()
    return _described(found, context, settings.llm_max_num_seqs)


def _described(found: ForeseenModel, context: int, max_num_seqs: int) -> LocalEngine:
    from llm_engine.memory.workspace import WEIGHTS

    decisions = found.decisions
    layout, capacity = decisions.layout, decisions.capacity
    page_tokens = layout.groups[0].page_tokens
    is_packed = decisions.ops.is_native
    fitting = capacity.num_pages // layout.most_pages(0, context)
    return LocalEngine(
        source=found.source.description,
        is_packed=is_packed,
        weight_bytes=decisions.memory.size_bytes(WEIGHTS),
        kv_tokens=capacity.num_pages * page_tokens,
        max_kv_tokens=capacity.num_reserved * page_tokens,
        kv_bytes_per_token=round(layout.bytes_per_token),
        max_model_len=capacity.max_model_len,
        prompt_chunk_tokens=decisions.chunk_tokens,
        context=context,
        num_sequences=min(fitting, max_num_seqs) if context <= capacity.max_model_len else 0,
        memory=tuple((e.name, e.size_bytes, e.source) for e in decisions.memory.entries),
        decisions=_shown(decisions),
    )


def _shown(decisions: EngineDecisions) -> tuple[dict[str, Any], ...]:
    return tuple(d.as_dict() for d in decisions.ledger if d.what in _SHOWN)


def _has_weights(model: str) -> bool:
    path = Path(model).expanduser()
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path.suffix.lower() == ".gguf" if path.is_file() else model.lower() == BUNDLED_NAME


def _settings() -> Settings:
    from pydantic import ValidationError

    from workers.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        raise PlanFailed(str(error)) from error
