"""The language engine's settings from the deployment's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_engine.config import EngineConfig
from workers.settings import parse_adapters

if TYPE_CHECKING:
    from workers.settings import Settings


def engine_config(settings: Settings) -> EngineConfig:
    """What `lanewise serve` loads; 0 and "" mean the engine's own choice.

    Raises: InvalidConfig for a value that no engine could be built with.
    """
    return EngineConfig(
        model=settings.llm_model,
        device="cuda" if settings.llm_devices else "cpu",
        dtype=settings.dtype,
        max_model_len=settings.llm_max_model_len or None,
        max_num_seqs=settings.llm_max_num_seqs,
        prefill_chunk_tokens=settings.llm_prefill_chunk_tokens or None,
        kv_cache_bytes=settings.llm_kv_cache_bytes or None,
        max_queued=settings.max_chat_streams,
        num_threads=settings.num_threads or None,
        strict_floor=settings.llm_strict_floor or None,
        weights=settings.llm_weights,
        prefix_cache=settings.llm_prefix_cache,
        isolate_tenants=settings.llm_isolate_tenants,
        host_cache_bytes=settings.llm_host_cache_bytes,
        speculation=settings.llm_speculation,
        preemption=settings.llm_preemption,
        batch_invariant=settings.llm_batch_invariant,
        max_step_delay_s=settings.llm_max_step_delay_s or None,
        adapters=parse_adapters(settings.llm_adapters),
        grammar_timeout_s=settings.llm_grammar_timeout_s,
        layout=settings.llm_layout,
        overlap=settings.llm_overlap,
        wire=settings.llm_wire,
        graphs=settings.llm_graphs,
    )
