"""How many pages of cache to allocate, and how long a sequence may become."""

from dataclasses import dataclass

from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig

DEFAULT_MAX_MODEL_LEN = 8192
DEFAULT_KV_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages of the cache and the longest sequence, in tokens, that the engine accepts."""

    num_pages: int
    max_model_len: int


def plan_capacity(config: EngineConfig, *, model_context: int, bytes_per_token: int) -> Capacity:
    """Fit the cache into its memory budget.

    Units: `model_context` in tokens; `bytes_per_token` over all layers.
    Raises: InvalidConfig if an explicit `max_model_len` exceeds the model's context or the budget.
    """
    wanted = config.max_model_len
    if wanted is not None and wanted > model_context:
        raise InvalidConfig(
            f"max_model_len is {wanted}, but the model's context is {model_context} tokens: "
            "lower it or leave it out"
        )
    page_bytes = bytes_per_token * config.page_size
    max_model_len = wanted or min(model_context, DEFAULT_MAX_MODEL_LEN)
    full_pages = config.max_num_seqs * -(-max_model_len // config.page_size)
    budget_bytes = config.kv_cache_bytes or DEFAULT_KV_CACHE_BYTES
    num_pages = min(full_pages, budget_bytes // page_bytes)
    num_tokens = num_pages * config.page_size
    if num_tokens < 2 or (wanted is not None and wanted > num_tokens):
        needed_bytes = page_bytes * -(-max(wanted or 2, 2) // config.page_size)
        raise InvalidConfig(
            f"a cache of {budget_bytes} bytes holds {num_tokens} tokens, but "
            f"{wanted or 2} are needed: give kv_cache_bytes at least {needed_bytes}"
        )
    return Capacity(num_pages=num_pages, max_model_len=min(max_model_len, num_tokens))
