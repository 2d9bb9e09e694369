"""The engine's settings, validated once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.spec import Tier
from llm_engine.errors import InvalidConfig

DTYPES = ("auto", "float32", "bfloat16")
WEIGHTS = ("auto", "packed", "unpacked")
SPECULATION = ("auto", "off", "ngram")
PREEMPTION = ("auto", "recompute", "copy")
OVERLAP = ("auto", "on", "off")
WIRE = ("exact", "int8", "auto")
GRAPHS = ("auto", "on", "off")
TIERS = tuple(str(tier) for tier in Tier)
DEVICE_FORMAT = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to load and how much of the machine to give it.

    Units: lengths and chunks in tokens, `kv_cache_bytes` in bytes, `page_size` in tokens a page.
    `max_model_len=None` takes the model's own context as far as the cache can hold four such
    sequences, at least 8192 tokens where they fit. `kv_cache_bytes=None` takes what `max_num_seqs`
    full contexts need, at most half of the memory that is left; it then grows and shrinks with
    what the machine has to spare.
    `prefill_chunk_tokens=None` takes the smallest chunk of a prompt that hides the reading of the
    weights, as far as memory has room for it.
    `device` is torch's name of where the model is computed: "cpu", "cuda" or "cuda:1" (AMD's too).
    `num_threads=None` leaves torch's thread count alone; a number sets it for the whole process.
    `kernels` asks for implementations by op ({"rms_norm": "torch"}), to be met or refused.
    `strict_floor` is the tier below which no op may run ("vendor", "fused"); None allows all.
    `weights` says whether quantised weights are computed in their packed form.
    `prefix_cache` reuses computed prompts; `isolate_tenants` keeps each tenant's to itself;
    `host_cache_bytes` keeps evicted pages in host memory.
    `speculation` drafts up to `max_draft_tokens` tokens a step; `preemption` says how pages are
    given up. `batch_invariant` asks for logits that do not depend on the batch, bit for bit.
    `max_step_delay_s` bounds the delay that a prompt's chunk may add between two tokens of a
    running answer. `adapters` are LoRA folders by name. `grammar_timeout_s` bounds compilation.
    `layout` lays the model over ranks ("tp2", "cp2->tp2"; see `llm_engine.parallel.layout`); empty
    for one.
    `overlap` computes steps in chunks whose exchanges between ranks travel under other chunks:
    "auto" where that is measured to pay. `wire` is what prompts' exchanges travel as: "exact";
    "int8", which changes numbers; or "auto", int8 where it is measured to pay, with its error.
    `graphs` replays recorded launches in steps that decode alone: "auto" where a device can.
    Raises: InvalidConfig when a value is out of bounds.
    """

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32
    prefill_chunk_tokens: int | None = None
    kv_cache_bytes: int | None = None
    page_size: int = 16
    max_queued: int = 256
    num_threads: int | None = None
    kernels: Mapping[str, str] = field(default_factory=dict[str, str])
    strict_floor: str | None = None
    weights: str = "auto"
    prefix_cache: bool = True
    isolate_tenants: bool = False
    host_cache_bytes: int = 0
    speculation: str = "auto"
    max_draft_tokens: int = 8
    preemption: str = "auto"
    batch_invariant: bool = False
    max_step_delay_s: float | None = None
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])
    grammar_timeout_s: float = 5.0
    layout: str = ""
    overlap: str = "auto"
    wire: str = "exact"
    graphs: str = "auto"

    def __post_init__(self) -> None:
        """Refuse values that no model could be served with."""
        if not self.model:
            raise InvalidConfig("model is empty: give a name, a folder or a .gguf file")
        for name, allowed in (
            ("dtype", DTYPES),
            ("weights", WEIGHTS),
            ("speculation", SPECULATION),
            ("preemption", PREEMPTION),
            ("overlap", OVERLAP),
            ("wire", WIRE),
            ("graphs", GRAPHS),
        ):
            if (chosen := getattr(self, name)) not in allowed:
                raise InvalidConfig(f"{name} is {chosen!r}, must be one of {', '.join(allowed)}")
        self._check_device()
        if not self.layout and (self.overlap, self.wire) != ("auto", "exact"):
            raise InvalidConfig(
                f"overlap is {self.overlap!r} and wire {self.wire!r}, but one rank exchanges "
                "nothing: give a layout such as tp2, or leave both out"
            )
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
            "max_draft_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} is {value}, must be at least 1")
        if self.host_cache_bytes < 0:
            raise InvalidConfig(
                f"host_cache_bytes is {self.host_cache_bytes}, must be at least 0 (0: no host tier)"
            )
        if self.max_step_delay_s is not None and self.max_step_delay_s <= 0:
            raise InvalidConfig(
                f"max_step_delay_s is {self.max_step_delay_s}, must be above 0: leave it out for "
                "no bound"
            )

    def _check_device(self) -> None:
        if DEVICE_FORMAT.fullmatch(self.device) is None:
            raise InvalidConfig(
                f"device is {self.device!r}, must be cpu, cuda or a numbered one such as cuda:1"
            )
        if self.graphs == "on" and self.device == "cpu":
            raise InvalidConfig(
                "graphs is 'on', but a CPU records none: name a device, or ask for 'auto'"
            )
