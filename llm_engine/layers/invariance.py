"""The batch-invariant mode: which forms it takes, and a look at whether this machine keeps it."""

from dataclasses import replace

import torch

from kernels.ledger import Decision, Ledger
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.layers.blocks import TorchBlocks
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.linear import Linear
from llm_engine.layers.tiles import (
    TILE_ROWS,
    TiledBlocks,
    TiledLinear,
    paged_decode,
    paged_prefill,
)
from llm_engine.model_config import ModelConfig

_NATIVE = "the native kernels compute each row by itself, in one order"
_TILED = (
    f"products of {TILE_ROWS} rows and attention in tiles of {TILE_ROWS} positions, filled up with "
    "zeros; a library's product depends on the number of its rows: seen in float32 between 1, 2, 3 "
    "and more rows, and with threads at odd numbers of rows too"
)


def make_invariant(
    ops: BoundOps, config: EngineConfig, model: ModelConfig, dtype: torch.dtype, ledger: Ledger
) -> BoundOps:
    """The ops with those replaced whose rows depend on the batch, and the decision recorded.

    Raises: InvalidConfig for what has no such form, or where this machine's products fail a test
        of it.
    """
    if config.adapters:
        raise InvalidConfig("batch_invariant has no form for adapters: leave one of them out")
    if ops.is_native:
        _record(ledger, "native", _NATIVE)
        return ops
    if model.moe is not None:
        raise InvalidConfig(
            "batch_invariant has no form for unpacked experts: leave it out, or use a file of "
            "packed weights"
        )
    for num_outputs, num_inputs in _shapes(model):
        if not keeps_rows_apart(num_outputs, num_inputs, dtype):
            raise InvalidConfig(
                f"batch_invariant: products of {num_outputs} x {num_inputs} in {dtype} depend on "
                f"a row's place among {TILE_ROWS} with {torch.get_num_threads()} threads here: "
                "set num_threads to a power of 2 up to 4"
            )
    _record(ledger, "tiles", _TILED)
    blocks = TiledBlocks(TorchBlocks(model, ops.rms_norm, ops.swiglu))
    return replace(
        ops,
        paged_prefill=paged_prefill,
        paged_decode=paged_decode,
        single_decode=None,
        attention_block=blocks.attention_block,
        mlp_block=blocks.mlp_block,
    )


def keeps_rows_apart(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> bool:
    """Whether a tile's rows are the same bits in every place and beside any others."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    x = torch.randn(TILE_ROWS, num_inputs, generator=generator).to(dtype)
    linear = TiledLinear.of(Linear.build(weight))
    y = linear(x)
    is_moved = all(
        torch.equal(linear(x.roll(shift, 0)).roll(-shift, 0), y) for shift in range(1, TILE_ROWS)
    )
    return is_moved and torch.equal(linear(x[:1]), y[:1])


def _shapes(model: ModelConfig) -> set[tuple[int, int]]:
    """Outputs and inputs of the model's maps; the head's outputs stand for its many more."""
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    wide = model.num_heads * model.head_dim
    return {
        (heads, model.hidden_size),
        (model.hidden_size, wide),
        (2 * model.intermediate_size, model.hidden_size),
        (model.hidden_size, model.intermediate_size),
        (min(model.vocab_size, 4096), model.hidden_size),
    }


def _record(ledger: Ledger, chosen: str, reason: str) -> None:
    ledger.record(
        Decision(
            kind="kernel",
            where="llm engine, all layers",
            what="batch_invariant",
            asked="true",
            chosen=chosen,
            tier=Tier.FUSED,
            source="explicit",
            reasons=(reason,),
            evidence="run on CPU; logits of a request compared bit by bit alone and in batches",
        )
    )
