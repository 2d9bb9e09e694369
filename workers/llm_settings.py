"""The language engine's settings from the deployment's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PhaseLayouts
from workers.settings import parse_adapters, parse_device_set

if TYPE_CHECKING:
    from workers.settings import Settings


def engine_config(settings: Settings) -> EngineConfig:
    """What `lanewise serve` loads; 0 and "" mean the engine's own choice.

    Raises: InvalidConfig for a value that no engine could be built with.
    """
    return EngineConfig(
        model=settings.llm_model,
        device=_device(settings),
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


def _device(settings: Settings) -> str:
    """The kind of the devices. Raises: InvalidConfig where there is not one for each rank."""
    if not (devices := parse_device_set(settings.llm_devices)):
        return "cpu"
    layout = settings.llm_layout
    num_ranks = PhaseLayouts.parse(layout).num_ranks if layout else 1
    if len(devices) != num_ranks:
        raise InvalidConfig(
            f"llm_devices {settings.llm_devices} are {len(devices)}, but layout {layout or 'none'} "
            f"is for {num_ranks} rank{'s' * (num_ranks > 1)}, each on one device: name as many, or "
            "give another layout (lanewise plan proposes one)"
        )
    return "cuda"
