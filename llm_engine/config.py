"""The engine's settings, validated once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.spec import Tier
from llm_engine.errors import InvalidConfig

DTYPES = ("auto", "float32", "bfloat16")
TIERS = tuple(str(tier) for tier in Tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to load and how much of the machine to give it.

    Units: lengths and chunks in tokens, `kv_cache_bytes` in bytes, `page_size` in tokens a page.
    `max_model_len=None` takes the smaller of the model's own context and 8192.
    `kv_cache_bytes=None` takes what `max_num_seqs` full contexts need, at most 1 GiB.
    `num_threads=None` leaves torch's thread count alone; a number sets it for the whole process.
    `kernels` asks for implementations by op ({"rms_norm": "torch"}), to be met or refused.
    `strict_floor` is the tier below which no op may run ("vendor", "fused"); None allows all.
    Raises: InvalidConfig when a value is out of bounds.
    """

    model: str
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32
    prefill_chunk_tokens: int = 512
    kv_cache_bytes: int | None = None
    page_size: int = 16
    max_queued: int = 256
    num_threads: int | None = None
    kernels: Mapping[str, str] = field(default_factory=dict[str, str])
    strict_floor: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that no model could be served with."""
        if not self.model:
            raise InvalidConfig("model is empty: give a name, a folder or a .gguf file")
        if self.dtype not in DTYPES:
            raise InvalidConfig(f"dtype is {self.dtype!r}, must be one of {', '.join(DTYPES)}")
        if self.strict_floor is not None and self.strict_floor not in TIERS:
            raise InvalidConfig(
                f"strict_floor is {self.strict_floor!r}, must be one of {', '.join(TIERS)}"
            )
        for name in (
            "max_model_len",
            "max_num_seqs",
            "prefill_chunk_tokens",
            "kv_cache_bytes",
            "page_size",
            "max_queued",
            "num_threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} is {value}, must be at least 1")
