"""The one reader of the environment: `LANEWISE_*` variables, `.env` never.

Child processes get their settings through the environment that `child_environment` builds, so a
supervisor, a gateway and a worker can only ever see the same values.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LANEWISE_"
TEST_PREFIX = "LANEWISE_TEST_"


class Settings(BaseSettings):
    """All settings of a deployment. Units are in the names; an unknown variable is an error.

    `database_url` and `redis_url` are empty when lanewise brings its own.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Path = Field(default=Path("lanewise-data"), description="Folder of all state.")
    host: str = Field(default="127.0.0.1", description="Address the gateway binds.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 picks a free one.")
    redis_url: str = Field(default="", description="Redis to use; empty starts an own one.")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty is SQLite (WAL).")
    artifact_url: str = Field(default="", description="fsspec URL; empty is data_dir/artifacts.")
    llm_model: str = Field(default="smollm2-135m-instruct", description="LLM; 'none' for none.")
    video_model: str = Field(default="motion-small", description="Video model; 'none' for none.")
    llm_devices: str = Field(default="", description="Device set such as 0-3 or 0,2; empty: CPU.")
    video_devices: str = Field(default="", description="Device set; may not overlap llm_devices.")
    llm_layout: str = Field(
        default="", description="LLM over ranks, such as tp2 or cp2->tp2; empty: one rank."
    )
    video_layout: str = Field(
        default="", description="Video over ranks: cfg2, ulysses2, cfg2,ulysses2; empty: one rank."
    )
    llm_overlap: Literal["auto", "on", "off"] = Field(
        default="auto", description="Hide prompts' exchanges between ranks under computation."
    )
    llm_wire: Literal["exact", "int8", "auto"] = Field(
        default="exact", description="Prompts between ranks; int8 changes numbers, auto may."
    )
    llm_graphs: Literal["auto", "on", "off"] = Field(
        default="auto", description="On a device: replay steps that only decode from graphs."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Precision of the language model."
    )
    llm_weights: Literal["auto", "packed", "unpacked"] = Field(
        default="auto", description="Whether quantised weights are computed packed."
    )
    llm_max_model_len: int = Field(default=0, ge=0, description="Tokens a chat; 0: what fits.")
    llm_kv_cache_bytes: int = Field(default=0, ge=0, description="KV cache; 0: what fits.")
    llm_max_num_seqs: int = Field(default=32, ge=1, description="Answers computed at once.")
    llm_prefill_chunk_tokens: int = Field(
        default=0, ge=0, description="Prompt tokens a step; 0: chosen for the model and machine."
    )
    llm_max_step_delay_s: float = Field(
        default=0.0, ge=0, description="Most a prompt may delay a running answer; 0: unbounded."
    )
    llm_stream_interval_s: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Tokens of 16 answers or more may wait so long for "
        "each other; 0: chosen for the machine.",
    )
    llm_prefix_cache: bool = Field(default=True, description="Reuse computed prompts.")
    llm_isolate_tenants: bool = Field(
        default=False, description="Keep each API key's computed prompts to itself."
    )
    llm_host_cache_bytes: int = Field(default=0, ge=0, description="Host memory behind the cache.")
    llm_speculation: Literal["auto", "off", "ngram"] = Field(
        default="auto", description="Draft tokens ahead; the answers stay the same."
    )
    llm_preemption: Literal["auto", "recompute", "copy"] = Field(
        default="auto", description="What becomes of an answer that loses its pages."
    )
    llm_batch_invariant: bool = Field(
        default=False, description="Bit-equal answers alone and in any batch; slower."
    )
    llm_adapters: str = Field(default="", description="LoRA adapters: name=folder,name=folder.")
    llm_grammar_timeout_s: float = Field(default=5.0, gt=0, description="Bound on a schema.")
    llm_strict_floor: Literal["", "fused", "vendor"] = Field(
        default="", description="Refuse to start with a kernel below this tier."
    )
    auth: Literal["on", "off"] = Field(default="on", description="off: loopback only, no keys.")
    lease_s: float = Field(default=30.0, gt=0, description="Lease of a running job.")
    beat_s: float = Field(default=5.0, gt=0, description="Heartbeat of a running job.")
    resend_after_s: float = Field(default=60.0, gt=0, description="Re-send queued rows after.")
    max_crashes: int = Field(default=3, ge=1, description="Worker losses before a job is dead.")
    max_queued: int = Field(default=1000, ge=1, description="Queued jobs before 429.")
    max_chat_streams: int = Field(default=256, ge=1, description="Choices waiting before 429.")
    max_upload_bytes: int = Field(default=32 * 2**20, ge=1, description="Largest upload.")
    max_image_pixels: int = Field(default=40_000_000, ge=1, description="Largest input picture.")
    max_image_side: int = Field(default=16_384, ge=1, description="Longest input picture side.")
    webhook_secret: str = Field(default="", description="whsec_… ; empty makes one per data_dir.")
    webhook_private_hosts: bool = Field(default=False, description="Allow webhooks to private IPs.")
    num_threads: int = Field(default=0, ge=0, description="Threads of an engine; 0: library's.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that gateway and workers log."
    )
    supervisor_pid: int = Field(
        default=0, ge=0, description="Set for children: they stop when this process is gone."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_variables(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic's hook
        known = {f"{PREFIX}{name.upper()}" for name in cls.model_fields}
        ours = {name.upper() for name in os.environ if name.upper().startswith(PREFIX)}
        unknown = sorted(n for n in ours - known if not n.startswith(TEST_PREFIX))
        if unknown:
            raise ValueError(
                f"unknown setting {', '.join(unknown)}: no setting has this name; "
                f"unset it or use one of {', '.join(sorted(known))}"
            )
        return values

    @field_validator("llm_devices", "video_devices")
    @classmethod
    def _check_device_set(cls, text: str) -> str:
        parse_device_set(text)
        return text

    @field_validator("llm_adapters")
    @classmethod
    def _check_adapters(cls, text: str) -> str:
        parse_adapters(text)
        return text

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: str) -> str:
        if url:
            from redis.connection import parse_url  # not for those that bring their own

            parse_url(url)
        return url

    @property
    def resolved_data_dir(self) -> Path:
        """`data_dir` as an absolute path."""
        return self.data_dir.expanduser().resolve()

    @property
    def resolved_database_url(self) -> str:
        """`database_url`, or SQLite in the data folder."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{self.resolved_data_dir / 'lanewise.db'}"

    @property
    def resolved_artifact_url(self) -> str:
        """`artifact_url`, or a folder in the data folder."""
        return self.artifact_url or str(self.resolved_data_dir / "artifacts")

    def child_environment(self, **overrides: str) -> dict[str, str]:
        """The environment of a child process: inherited values, these settings, `overrides`."""
        values = self.model_dump() | {"data_dir": self.resolved_data_dir}
        ours = {f"{PREFIX}{name.upper()}": str(value) for name, value in values.items()}
        settings_names = {f"{PREFIX}{name.upper()}" for name in values}
        inherited = {k: v for k, v in os.environ.items() if k.upper() not in settings_names}
        threads = {"OMP_NUM_THREADS": str(self.num_threads)} if self.num_threads else {}
        passive = {"OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
        return inherited | passive | threads | ours | overrides


def parse_device_set(text: str) -> tuple[int, ...]:
    """Device numbers of "0-3", "0,2" or "4-7,1"; empty text is the empty set (CPU).

    Raises: ValueError for anything else, and for a number that is given twice.
    """
    numbers: list[int] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            raise ValueError(f"device set {text!r}: {part!r} is neither a number nor a range 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"device set {text!r}: the range {part} runs backwards")
        numbers.extend(range(first, last + 1))
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"device set {text!r} names a device twice")
    return tuple(numbers)


def parse_adapters(text: str) -> dict[str, str]:
    """Folders by adapter name of "name=folder,name=folder"; empty text is none.

    Raises: ValueError for anything else, and for a name that is given twice.
    """
    folders: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, folder = part.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or not folder:
            raise ValueError(
                f"adapter {part!r} is not NAME=FOLDER with a name of at most 64 letters, digits, "
                "'.', '_' and '-'"
            )
        if name in folders:
            raise ValueError(f"two adapters have the name {name!r}")
        folders[name] = folder
    return folders


def short_runtime_dir() -> Path:
    """A folder with a short path for sockets: XDG_RUNTIME_DIR, else the temporary folder."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(given) if given and Path(given).is_dir() else Path(tempfile.gettempdir())


def celery_broker_url(redis_url: str) -> str:
    """The form kombu understands: `unix://PATH` becomes `redis+socket://PATH`."""
    if redis_url.startswith("unix://"):
        path, _, query = redis_url.removeprefix("unix://").partition("?")
        return f"redis+socket://{quote(path)}" + (f"?{query}" if query else "")
    return redis_url
