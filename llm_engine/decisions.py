"""What an engine decides before it reads a weight: memory, the cache's capacity, and its ops."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from kernels.dtypes import DTYPE_NAMES
from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from llm_engine.cache.groups import CacheLayout
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.invariance import make_invariant
from llm_engine.layers.native import NativeCache
from llm_engine.layers.op_choice import OpSizes
from llm_engine.layers.weight_form import PACKED, choose_weights
from llm_engine.memory.chunk import ChunkChoice, choose_chunk
from llm_engine.memory.ledger import MemoryLedger
from llm_engine.memory.machine import MachineMemory, read_machine_memory
from llm_engine.memory.solver import Capacity, CapacityQuestion, solve_capacity
from llm_engine.memory.workspace import memory_ledger
from llm_engine.model_config import ModelConfig

WHERE = "llm engine"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineDecisions:
    """Memory, capacity, chunk of a prompt and bound ops; the ledger says why."""

    capacity: Capacity
    layout: CacheLayout
    chunk_tokens: int
    memory: MemoryLedger
    ops: BoundOps
    ledger: Ledger


def decide(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    *,
    is_quantised: bool = False,
    weight_bytes: int = 0,
    prompt_token_bytes: int = 0,
    cache_parts: int = 1,
    machine: MachineMemory | None = None,
) -> EngineDecisions:
    """Plan memory and cache and bind the ops, from settings, the model's config and the machine.

    `weight_bytes` are those still to be read, 0 once they are in memory. A token of the longest
    sequence takes `prompt_token_bytes` beside its place in the cache, which holds one of
    `cache_parts` equal parts of each page.
    Raises: InvalidConfig, with what would fit; ImplUnavailable for an op that cannot run as
        asked; StrictRefusal when an op lies below `config.strict_floor`.
    """
    machine = machine or read_machine_memory()
    is_packed, weights = choose_weights(config, model, is_quantised=is_quantised)
    bytes_per_token = PagedCache.bytes_per_token(model, dtype)
    if is_packed:
        bytes_per_token = NativeCache.bytes_per_token(model)
    layout = CacheLayout.single(
        page_tokens=config.page_size, bytes_per_token=bytes_per_token, num_parts=cache_parts
    )
    form = PACKED if is_packed else DTYPE_NAMES[dtype]
    chunk = choose_chunk(
        model,
        asked=config.prefill_chunk_tokens,
        form=form,
        item_bytes=dtype.itemsize,
        available_bytes=machine.available_bytes,
    )
    memory = memory_ledger(
        config,
        model,
        chunk_tokens=chunk.tokens,
        item_bytes=dtype.itemsize,
        weight_bytes=weight_bytes,
        total_bytes=machine.total_bytes,
    )
    question = _question(config, model, layout, memory, machine)
    question = replace(question, prompt_page_bytes=prompt_token_bytes * config.page_size)
    capacity = solve_capacity(question)
    _check_preemption(config, layout, capacity)
    sizes = OpSizes(
        chunk_tokens=chunk.tokens,
        num_seqs=config.max_num_seqs,
        context=capacity.max_model_len,
        page_size=config.page_size // cache_parts,
    )
    ledger = Ledger()
    ops = bind_ops(
        model,
        dtype,
        sizes,
        asked=config.kernels,
        ledger=ledger,
        is_native=is_packed,
        has_ranks=bool(config.layout),
    )
    if config.batch_invariant:
        ops = make_invariant(ops, config, model, dtype, ledger)
    ledger.record(weights)
    for decision in _cache_decisions(config, layout, capacity, chunk, memory, machine):
        ledger.record(decision)
    if prompt_token_bytes:
        ledger.record(_prompt_pages(config, capacity, prompt_token_bytes))
    if config.strict_floor is not None:
        ledger.require(Tier(config.strict_floor))
    return EngineDecisions(capacity, layout, chunk.tokens, memory, ops, ledger)


def plan_hash(config: EngineConfig, capacity: Capacity, decisions: Sequence[Decision]) -> str:
    """A name for what decides answers and speed: settings, longest sequence, every choice.

    How much memory the machine happened to have is left out, so that two starts of the same
    engine on the same machine have the same name.
    """
    chosen = sorted(
        (d.kind, d.where, d.what, d.asked, d.chosen, str(d.tier), d.case)
        for d in decisions
        if d.kind != "memory"
    )
    plan = {
        "config": asdict(config),
        "max_model_len": capacity.max_model_len,
        "decisions": chosen,
    }
    text = json.dumps(plan, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _question(
    config: EngineConfig,
    model: ModelConfig,
    layout: CacheLayout,
    memory: MemoryLedger,
    machine: MachineMemory,
) -> CapacityQuestion:
    return CapacityQuestion(
        model_context=model.max_position,
        max_num_seqs=config.max_num_seqs,
        page_tokens=config.page_size,
        page_bytes=layout.groups[0].page_bytes,
        available_bytes=machine.available_bytes,
        fixed_bytes=memory.total_bytes + config.host_cache_bytes,
        max_model_len=config.max_model_len,
        cache_bytes=config.kv_cache_bytes,
    )


def _check_preemption(config: EngineConfig, layout: CacheLayout, capacity: Capacity) -> None:
    needed = -(-capacity.max_model_len // config.page_size) * layout.groups[0].page_bytes
    if config.preemption == "copy" and config.host_cache_bytes < needed:
        raise InvalidConfig(
            f"preemption is 'copy', but host_cache_bytes is {config.host_cache_bytes}: a sequence "
            f"of {capacity.max_model_len} tokens takes {needed} bytes; give it that much, or ask "
            "for 'auto'"
        )


def _cache_decisions(
    config: EngineConfig,
    layout: CacheLayout,
    capacity: Capacity,
    chunk: ChunkChoice,
    memory: MemoryLedger,
    machine: MachineMemory,
) -> list[Decision]:
    is_asked = config.kv_cache_bytes is not None
    page_bytes = layout.groups[0].page_bytes
    num_tokens = capacity.num_pages * config.page_size
    numbers = [f"{e.name}: {e.size_bytes / _MIB:.0f} MiB ({e.source})" for e in memory.entries]
    size = _decision(
        "memory",
        "KV capacity",
        f"{num_tokens} tokens, longest sequence {capacity.max_model_len}",
        asked=str(config.kv_cache_bytes) if is_asked else "auto",
        reasons=(
            f"{capacity.num_pages} pages of {page_bytes} bytes, up to {capacity.num_reserved} "
            "while memory is to be had",
            f"{machine.available_bytes / _MIB:.0f} MiB available ({machine.bound_by})",
            *numbers,
        ),
    )
    asked_chunk = config.prefill_chunk_tokens
    prompt_chunk = _decision(
        "memory",
        "prompt chunk",
        f"{chunk.tokens} tokens",
        asked="auto" if asked_chunk is None else str(asked_chunk),
        reasons=chunk.reasons,
        rejected=tuple(Rejection(candidate=c, reasons=(why,)) for c, why in chunk.rejected),
    )
    page = _decision(
        "page",
        "page size",
        f"{config.page_size} tokens",
        asked=str(config.page_size),
        reasons=("small pages let more of a prefix be reused",),
    )
    return [size, prompt_chunk, page, _prefix_decision(config, layout)]


def _prompt_pages(config: EngineConfig, capacity: Capacity, prompt_token_bytes: int) -> Decision:
    num_pages = -(-capacity.max_model_len // config.page_size)
    return _decision(
        "memory",
        "pages of prompts",
        f"{num_pages} pages",
        asked="auto",
        reasons=(
            f"{num_pages * config.page_size * prompt_token_bytes / _MIB:.0f} MiB beside the cache: "
            "prompts are computed in stages, and a stage needs the keys of all heads of its layers",
            "as many as the longest sequence takes; between steps the cache has every key too",
        ),
    )


def _prefix_decision(config: EngineConfig, layout: CacheLayout) -> Decision:
    if not config.prefix_cache:
        return _decision("cache", "prefix cache", "off", asked="off", reasons=("asked for",))
    copied = Rejection(
        candidate="copy on write of a partly filled block",
        reasons=(
            f"it saves at most {layout.block_tokens - 1} tokens of prefill and costs every sharer "
            "a page copy",
        ),
    )
    return _decision(
        "cache",
        "prefix cache",
        f"radix tree over blocks of {layout.block_tokens} tokens",
        asked="on",
        reasons=(f"shortest reusable prefix: {layout.min_reusable_prefix} tokens",),
        rejected=(copied,),
    )


def _decision(
    kind: str,
    what: str,
    chosen: str,
    *,
    asked: str,
    reasons: tuple[str, ...],
    rejected: tuple[Rejection, ...] = (),
) -> Decision:
    return Decision(
        kind="memory" if kind == "memory" else "page" if kind == "page" else "cache",
        where=WHERE,
        what=what,
        asked=asked,
        chosen=chosen,
        tier=Tier.VENDOR,
        source="default" if asked in ("auto", "on") else "explicit",
        reasons=reasons,
        rejected=rejected,
    )
