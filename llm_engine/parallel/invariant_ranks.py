"""The batch-invariant mode over ranks: which layouts keep it, and a look at every rank's products.

A row is computed alike by whichever rank has it, in tiles; what ranks exchange of it is moved, or
summed element by element in the order of the ranks, whatever lies beside it in the message.
"""

from __future__ import annotations

import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.layers.invariance import check_model, check_products
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.adapter_shares import HeldAdapters
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.shares import held_share, local_config, phase_share


def check_invariant_layout(config: EngineConfig, layouts: PhaseLayouts) -> None:
    """Raises: InvalidConfig for settled layouts or a wire in which a row follows its company."""
    if not config.batch_invariant:
        return
    if layouts.prefill != layouts.decode:
        raise InvalidConfig(
            f"batch_invariant and layout {layouts}: a token that is decoded beside a prompt is "
            "computed in the prompt's layout, whose sums have other terms: take one layout for "
            f"both, as {layouts.decode}"
        )
    if layouts.prefill.exchange == "ring":
        raise InvalidConfig(
            f"batch_invariant and layout {layouts}: the parts of a row's attention that a ring "
            "merges are not computed in tiles: ask for heads or gather"
        )
    if config.wire != "exact":
        raise InvalidConfig(
            f"batch_invariant and wire {config.wire}: blocks of int8 are sent of long steps alone: "
            "ask for exact"
        )


def check_every_rank(
    config: EngineConfig,
    whole: ModelConfig,
    layouts: PhaseLayouts,
    dtype: torch.dtype,
    adapters: AdapterSet,
    *,
    is_packed: bool,
) -> None:
    """Try the products of all ranks here, so that all refuse what one of them would.

    Raises: InvalidConfig for one whose rows depend on their place in a tile.
    """
    if not config.batch_invariant:
        return
    models: dict[ModelConfig, None] = {}
    products: set[tuple[int, int]] = set()
    for rank in range(layouts.num_ranks):
        share = phase_share(whole, layouts.decode, rank)
        models[local_config(whole, share, share.heads)] = None
        held = HeldAdapters.of(adapters, whole, layouts, held_share(whole, layouts, rank))
        products |= held.adapters.products
    for model in models:
        check_model(model, dtype, is_native=is_packed)
    check_products(products, dtype)
