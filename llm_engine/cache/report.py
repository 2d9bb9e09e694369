"""The cache in numbers and words, for metrics and for the page."""

from typing import Any

from llm_engine.cache.kv_cache import KVCache


def cache_counts(cache: KVCache) -> dict[str, Any]:
    """The fields of `EngineStats` that tell of the cache."""
    counters, host, pool = cache.counters, cache.host, cache.pools[0]
    return {
        "kv_pages_used": pool.num_used,
        "kv_pages_total": pool.num_usable,
        "kv_pages_cached": pool.num_cached,
        "min_reusable_prefix": cache.layout.min_reusable_prefix,
        "prefix_hits_total": counters.num_hits,
        "prefix_partial_hits_total": counters.num_partial_hits,
        "prefix_hit_tokens_total": counters.num_hit_tokens,
        "prefix_prompt_tokens_total": counters.num_prompt_tokens,
        "prefix_misses_total": {str(cause): n for cause, n in counters.misses.items()},
        "prefix_warnings_total": counters.num_warnings,
        "prefix_evicted_blocks_total": cache.tree.num_evicted_blocks,
        "prefix_pinned_blocks": cache.pins.num_blocks,
        "host_cache_bytes": host.used_bytes,
        "host_cache_capacity_bytes": host.capacity_bytes,
        "host_cache_out_bytes_total": host.out_bytes_total,
        "host_cache_in_bytes_total": host.in_bytes_total,
    }


def describe_cache(cache: KVCache) -> dict[str, Any]:
    """Groups with their geometry and pages, and how prefixes are reused; plain values."""
    groups = [
        {
            "name": group.name,
            "kind": str(group.kind),
            "page_tokens": group.page_tokens,
            "page_bytes": group.page_bytes,
            "window_tokens": group.window_tokens,
            "checkpoint_tokens": group.checkpoint_tokens,
            "pages": pool.num_usable,
            "pages_reserved": pool.num_pages,
            "pages_used": pool.num_used,
            "pages_cached": pool.num_cached,
        }
        for group, pool in zip(cache.layout.groups, cache.pools, strict=True)
    ]
    return {
        "groups": groups,
        "block_tokens": cache.layout.block_tokens,
        "min_reusable_prefix": cache.layout.min_reusable_prefix,
        "has_prefix_cache": cache.has_prefix_cache,
        "counts": cache_counts(cache),
    }
