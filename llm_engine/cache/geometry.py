"""The groups of cached rows that a model's layers ask for."""

from llm_engine.cache.groups import CacheGroup, CacheLayout, GroupKind
from llm_engine.model_config import ModelConfig

# Between two checkpoints of a window, in windows: so much less is kept of its rows than of full
# layers', and so much more is computed again where prefixes part between two of them.
CHECKPOINT_WINDOWS = 4
MOST_CHECKPOINT_TOKENS = 2048


def cache_layout(
    model: ModelConfig,
    *,
    page_tokens: int,
    layer_token_bytes: int,
    num_parts: int = 1,
    has_windows: bool = True,
) -> CacheLayout:
    """A group for the layers that see everything, and one for those that see a window.

    Without `has_windows` all layers keep the same pages, of which one of `num_parts` equal parts is
    here. Units: `layer_token_bytes` of a token in one layer.
    """
    windows = model.windows
    if windows is None or not has_windows:
        return CacheLayout.single(
            page_tokens=page_tokens,
            bytes_per_token=model.num_layers * layer_token_bytes,
            num_parts=num_parts,
        )
    full = frozenset(range(model.num_layers)) - windows.layers
    page_bytes = page_tokens * layer_token_bytes
    spacing = min(CHECKPOINT_WINDOWS * windows.tokens, MOST_CHECKPOINT_TOKENS)
    windowed = CacheGroup(
        name=f"keys and values of a window of {windows.tokens}",
        kind=GroupKind.WINDOW,
        page_tokens=page_tokens,
        page_bytes=page_bytes * len(windows.layers),
        window_tokens=windows.tokens,
        checkpoint_tokens=-(-spacing // page_tokens) * page_tokens,
        layers=windows.layers,
    )
    if not full:
        return CacheLayout((windowed,))
    whole = CacheGroup(
        name="keys and values",
        kind=GroupKind.FULL,
        page_tokens=page_tokens,
        page_bytes=page_bytes * len(full),
        layers=full,
    )
    return CacheLayout((whole, windowed))
