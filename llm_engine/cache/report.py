"""The cache in numbers and words, for metrics and for the page."""

from collections import Counter
from typing import Any, cast

from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.sequence_cache import SequenceCache

# The others count something, and those of the parts add up.
_SAME_IN_ALL_PARTS = ("min_reusable_prefix",)


def cache_counts(cache: SequenceCache) -> dict[str, Any]:
    """The fields of `EngineStats` that tell of the cache, of all its parts together."""
    first, *others = (_counts(part) for part in cache.parts)
    for found in others:
        for name, count in found.items():
            if isinstance(count, dict):
                first[name] = dict(Counter(first[name]) + Counter(cast(dict[str, int], count)))
            elif name not in _SAME_IN_ALL_PARTS:
                first[name] += count
    return first


def _counts(cache: KVCache) -> dict[str, Any]:
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


def describe_cache(cache: SequenceCache) -> dict[str, Any]:
    """Groups with their geometry and pages, and how prefixes are reused; plain values."""
    columns = zip(*(part.pools for part in cache.parts), strict=True)
    groups = [
        {
            "name": group.name,
            "kind": str(group.kind),
            "page_tokens": group.page_tokens,
            "page_bytes": group.page_bytes,
            "window_tokens": group.window_tokens,
            "checkpoint_tokens": group.checkpoint_tokens,
            "pages": sum(pool.num_usable for pool in pools),
            "pages_reserved": sum(pool.num_pages for pool in pools),
            "pages_used": sum(pool.num_used for pool in pools),
            "pages_cached": sum(pool.num_cached for pool in pools),
        }
        for group, pools in zip(cache.layout.groups, columns, strict=True)
    ]
    return {
        "groups": groups,
        "block_tokens": cache.layout.block_tokens,
        "min_reusable_prefix": cache.layout.min_reusable_prefix,
        "has_prefix_cache": cache.parts[0].has_prefix_cache,
        "counts": cache_counts(cache),
    }
