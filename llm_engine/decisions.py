"""What an engine decides before it reads a weight: memory, the cache's capacity, and its ops."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from kernels.dtypes import DTYPE_NAMES
from kernels.hardware.host_memory import MachineMemory
from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from llm_engine.cache.geometry import cache_layout
from llm_engine.cache.groups import CacheLayout
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.graph_choice import GRAPHS, choose_graphs
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.form_choice import FormQuestion, choose_forms
from llm_engine.layers.invariance import make_invariant
from llm_engine.layers.native import NativeCache
from llm_engine.layers.op_choice import OpSizes
from llm_engine.layers.weight_form import PACKED, choose_weights
from llm_engine.memory.chunk import ChunkChoice, choose_chunk
from llm_engine.memory.ledger import MemoryLedger
from llm_engine.memory.solver import (
    CACHE_SHARE,
    Capacity,
    CapacityQuestion,
    WindowPages,
    solve_capacity,
)
from llm_engine.memory.workspace import memory_ledger
from llm_engine.model_config import ModelConfig
from llm_engine.weights.facts import WeightFacts
from llm_engine.window_choice import served_model

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
    has_graphs: bool = False


def decide(  # noqa: PLR0913 - what is known of a model before it is read
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    *,
    is_quantised: bool = False,
    facts: WeightFacts | None = None,
    weight_bytes: int = 0,
    prompt_token_bytes: int = 0,
    cache_parts: int = 1,
    machine: MachineMemory | None = None,
    device: EngineDevice | None = None,
) -> EngineDecisions:
    """Plan memory and cache and bind the ops, from settings, the model's config and the machine.

    `facts` are what the files' headers say of the weights' forms, None for plain numbers;
    `weight_bytes` are those still to be read, 0 once they are in memory. A token of the longest
    sequence takes `prompt_token_bytes` beside its place in the cache, which holds one of
    `cache_parts` equal parts of each page.
    Raises: InvalidConfig, with what would fit; ImplUnavailable for an op that cannot run as
        asked; StrictRefusal when an op lies below `config.strict_floor`.
    """
    device = device or EngineDevice.of(config.device)
    machine = machine or device.read_memory()
    forms = choose_forms(FormQuestion.of_engine(config, model, dtype, device, facts))
    is_packed, weights = choose_weights(
        config, model, device, is_quantised=is_quantised, forms=forms, facts=facts
    )
    model, windows = served_model(config, model, is_packed=is_packed)
    layer_token_bytes = PagedCache.layer_bytes_per_token(model, dtype)
    if is_packed:
        layer_token_bytes = NativeCache.layer_bytes_per_token(model)
    layout = cache_layout(
        model,
        page_tokens=config.page_size,
        layer_token_bytes=layer_token_bytes,
        num_parts=cache_parts,
        has_windows=not config.layout,
    )
    form = PACKED if is_packed else DTYPE_NAMES[dtype]
    chunk = choose_chunk(
        model,
        asked=config.prefill_chunk_tokens,
        form=form,
        item_bytes=dtype.itemsize,
        available_bytes=machine.available_bytes,
        operations_per_byte=device.operations_per_byte(dtype),
    )
    graphs = choose_graphs(config, model, device, counts_on_device=forms.counts_on_device)
    has_graphs = graphs is not None and graphs.chosen == GRAPHS
    memory = memory_ledger(
        config,
        model,
        chunk_tokens=chunk.tokens,
        item_bytes=dtype.itemsize,
        weight_bytes=weight_bytes,
        total_bytes=machine.total_bytes,
        has_graphs=has_graphs,
    )
    question = _question(config, model, layout, memory, machine, device)
    window = _window_pages(config, layout, chunk.tokens)
    question = replace(
        question, prompt_page_bytes=prompt_token_bytes * config.page_size, window=window
    )
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
        device=device,
        is_native=is_packed,
        has_ranks=bool(config.layout),
        forms=forms,
    )
    if config.batch_invariant:
        ops = make_invariant(ops, config, model, dtype, ledger)
    ledger.record(weights)
    if windows is not None:
        ledger.record(windows)
    for decision in _cache_decisions(config, layout, capacity, chunk, memory, machine):
        ledger.record(decision)
    if graphs is not None:
        ledger.record(graphs)
    if prompt_token_bytes:
        ledger.record(_prompt_pages(config, capacity, prompt_token_bytes))
    if config.strict_floor is not None:
        ledger.require(Tier(config.strict_floor))
    return EngineDecisions(capacity, layout, chunk.tokens, memory, ops, ledger, has_graphs)


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
    device: EngineDevice,
) -> CapacityQuestion:
    growing = layout.growing_group
    return CapacityQuestion(
        model_context=model.max_position,
        max_num_seqs=config.max_num_seqs,
        page_tokens=config.page_size,
        page_bytes=0 if growing is None else layout.groups[growing].page_bytes,
        available_bytes=machine.available_bytes,
        fixed_bytes=memory.total_bytes + config.host_cache_bytes,
        max_model_len=config.max_model_len,
        cache_bytes=config.kv_cache_bytes,
        first_share=device.cache_share or CACHE_SHARE,
    )


def _window_pages(
    config: EngineConfig, layout: CacheLayout, chunk_tokens: int
) -> WindowPages | None:
    """What the group of windows needs; None without one."""
    index = layout.window_group
    if index is None:
        return None
    group = layout.groups[index]
    drafts = 0 if config.speculation == "off" else config.max_draft_tokens
    kept = group.window_tokens / group.checkpoint_tokens if config.prefix_cache else 0.0
    most = 1 << 62  # tokens: a sequence of any length
    return WindowPages(
        page_bytes=group.page_bytes,
        answer_pages=layout.most_pages(index, most, 1 + drafts),
        prompt_pages=layout.most_pages(index, most, max(chunk_tokens, 1 + drafts)),
        kept_share=min(1.0, kept),
    )


def _check_preemption(config: EngineConfig, layout: CacheLayout, capacity: Capacity) -> None:
    needed = layout.most_bytes(capacity.max_model_len)
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
            *_window_reasons(layout, capacity),
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


def _window_reasons(layout: CacheLayout, capacity: Capacity) -> tuple[str, ...]:
    index = layout.window_group
    if index is None:
        return ()
    group = layout.groups[index]
    return (
        f"{capacity.num_window_pages} pages of {group.page_bytes} bytes of layers with windows; a "
        f"sequence that answers holds at most {layout.most_pages(index, capacity.max_model_len)}",
    )


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
    return _decision(
        "cache",
        "prefix cache",
        f"radix tree over blocks of {layout.block_tokens} tokens",
        asked="on",
        reasons=(
            f"shortest reusable prefix: {layout.min_reusable_prefix} tokens",
            *(
                ("behind whole blocks, the first tokens of one that goes another way are copied",)
                if layout.is_divisible
                else ()
            ),
            *(
                f"of {group.name} reuse begins at every {group.checkpoint_tokens} tokens, and "
                "where a sequence ended"
                for group in layout.groups
                if not group.is_growing
            ),
        ),
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
