"""Decoding one sequence alone: what the paged op finds out in each layer, found once a step."""

# H query heads, K key/value heads, G query heads of a key/value head, D head dim, T cached tokens,
# P pages in all, Z page size.

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention


class SingleDecode:
    """Attention of one new token over one sequence's pages, for all layers of a step."""

    def __init__(self, pages: Sequence[int], length: int) -> None:
        """Keep the first page where they lie in one run, which copies nothing; else all."""
        self._length = length
        is_run = all(page == pages[0] + i for i, page in enumerate(pages))
        self._run = pages[0] if is_run else None
        self._pages = torch.tensor(pages, dtype=torch.int64)

    def __call__(self, q_1HD: torch.Tensor, cache_PZ2KD: torch.Tensor) -> torch.Tensor:
        """As `kernels.ops.paged_decode`, the output alone. Shapes: q and result (1, H, D)."""
        run = self._run
        kept = cache_PZ2KD.index_select(0, self._pages) if run is None else cache_PZ2KD
        _, page_size, _, num_kv_heads, head_dim = cache_PZ2KD.shape
        row = 2 * num_kv_heads * head_dim
        # One view: each view costs as much as the arithmetic of a short sequence.
        kv_21KTD = kept.as_strided(
            (2, 1, num_kv_heads, self._length, head_dim),
            (num_kv_heads * head_dim, row, head_dim, row, 1),
            0 if run is None else run * page_size * row,
        )
        k_1KTD, v_1KTD = kv_21KTD.unbind(0)
        # The query heads that share a key/value head become rows of one attention problem.
        q_1KGD = q_1HD.view(1, num_kv_heads, -1, head_dim)
        o_1KGD = F.scaled_dot_product_attention(q_1KGD, k_1KTD, v_1KTD)
        return o_1KGD.reshape(q_1HD.shape)
