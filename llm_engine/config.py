"""The engine's settings, validated once."""

from dataclasses import dataclass

from llm_engine.errors import InvalidConfig

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to load and how much of the machine to give it.

    Units: lengths and chunks in tokens, `kv_cache_bytes` in bytes, `page_size` in tokens a page.
    `max_model_len=None` takes the smaller of the model's own context and 8192.
    `kv_cache_bytes=None` takes what `max_num_seqs` full contexts need, at most 1 GiB.
    `num_threads=None` leaves torch's thread count alone; a number sets it for the whole process.
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

    def __post_init__(self) -> None:
        """Refuse values that no model could be served with."""
        if not self.model:
            raise InvalidConfig("model is empty: give a name, a folder or a .gguf file")
        if self.dtype not in DTYPES:
            raise InvalidConfig(f"dtype is {self.dtype!r}, must be one of {', '.join(DTYPES)}")
        for field in (
            "max_model_len",
            "max_num_seqs",
            "prefill_chunk_tokens",
            "kv_cache_bytes",
            "page_size",
            "max_queued",
            "num_threads",
        ):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InvalidConfig(f"{field} is {value}, must be at least 1")
