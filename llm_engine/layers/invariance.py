"""The batch-invariant mode: which forms it takes, and a look at whether this machine keeps it."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from kernels.ledger import Decision, Ledger
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.layers.blocks import TorchBlocks
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.linear import Linear
from llm_engine.layers.tiled_attention import paged_decode, paged_prefill
from llm_engine.layers.tiles import TILE_ROWS, by_one_thread, in_tiles
from llm_engine.model_config import ModelConfig

_NATIVE = "the native kernels compute each row by itself, in one order"
_COMPOSED = (
    "every step composes its blocks from single ops: a step with an adapter does, and its other "
    "rows must come out as they do alone"
)
_TILED = (
    f"products of {TILE_ROWS} rows and attention in tiles of {TILE_ROWS} positions, filled up with "
    "zeros; a library's product depends on the number of its rows: seen in float32 between 1, 2, 3 "
    "and more rows, and with threads at odd numbers of rows too"
)
_EXPERTS = "the rows of an expert are products of their own, summed by rising expert"
_UPDATES = "the updates of adapters are products in tiles too"


def make_invariant(
    ops: BoundOps, config: EngineConfig, model: ModelConfig, dtype: torch.dtype, ledger: Ledger
) -> BoundOps:
    """The ops with those replaced whose rows depend on the batch, and the decision recorded.

    Raises: InvalidConfig where this machine's products fail a test of it, and on devices, whose
        products and attention have no tiles yet.
    """
    if config.device != "cpu":
        raise InvalidConfig(
            f"batch_invariant is asked for, but on device {config.device!r} rows depend on the "
            "batch: leave it out, or serve on the CPU"
        )
    check_model(model, dtype, is_native=ops.is_native)
    swiglu = by_one_thread(ops.swiglu)
    blocks = TorchBlocks(model, ops.rms_norm, swiglu, in_tiles)
    reasons = [_EXPERTS] if model.moe is not None else []
    reasons += [_UPDATES] if config.adapters else []
    if ops.is_native:
        ops = replace(ops, swiglu=swiglu, over_rows=in_tiles)
        if not config.adapters and ops.native_stack is not None:
            _record(ledger, "native", (_NATIVE, *reasons))
            return ops
        _record(ledger, "native parts", (_NATIVE, _COMPOSED, *reasons))
    else:
        _record(ledger, "tiles", (_TILED, *reasons))
        ops = replace(
            ops,
            swiglu=swiglu,
            over_rows=in_tiles,
            paged_prefill=paged_prefill,
            paged_decode=paged_decode,
            single_decode=None,
        )
    return replace(
        ops,
        attention_block=blocks.attention_block,
        mlp_block=blocks.mlp_block,
        native_stack=None,
    )


def check_model(model: ModelConfig, dtype: torch.dtype, *, is_native: bool) -> None:
    """Try products of a model's sizes, with `is_native` those that the native kernels leave.

    Raises: InvalidConfig as `check_products`.
    """
    check_products(_router(model) if is_native else _products(model), dtype)


def check_products(shapes: Iterable[tuple[int, int]], dtype: torch.dtype) -> None:
    """Try products of these outputs and inputs.

    Raises: InvalidConfig for one whose rows depend on their place in a tile.
    """
    for num_outputs, num_inputs in shapes:
        if not keeps_rows_apart(num_outputs, num_inputs, dtype):
            raise InvalidConfig(
                f"batch_invariant: products of {num_outputs} x {num_inputs} in {dtype} depend on "
                f"a row's place among {TILE_ROWS} with {torch.get_num_threads()} threads here: "
                "set num_threads to a power of 2 up to 4"
            )


def keeps_rows_apart(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> bool:
    """Whether a tile's rows are the same bits in every place and beside any others."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    x = torch.randn(TILE_ROWS, num_inputs, generator=generator).to(dtype)
    linear = Linear.build(weight)
    y = linear(x)
    is_moved = all(
        torch.equal(linear(x.roll(shift, 0)).roll(-shift, 0), y) for shift in range(1, TILE_ROWS)
    )
    return is_moved and torch.equal(in_tiles(linear, x[:1]), y[:1])


def _products(model: ModelConfig) -> set[tuple[int, int]]:
    """Outputs and inputs of the model's maps; the head's outputs stand for its many more."""
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    wide = model.num_heads * model.head_dim
    shapes = {
        (heads, model.hidden_size),
        (model.hidden_size, wide),
        (min(model.vocab_size, 4096), model.hidden_size),
        *_router(model),
    }
    inner = {model.intermediate_size}
    if model.moe is not None:
        inner.add(model.moe.intermediate_size)
    for width in inner:
        shapes |= {(2 * width, model.hidden_size), (model.hidden_size, width)}
    return shapes


def _router(model: ModelConfig) -> set[tuple[int, int]]:
    """The map that chooses experts, which no file packs."""
    return set() if model.moe is None else {(model.moe.num_experts, model.hidden_size)}


def _record(ledger: Ledger, chosen: str, reasons: tuple[str, ...]) -> None:
    ledger.record(
        Decision(
            kind="kernel",
            where="llm engine, all layers",
            what="batch_invariant",
            asked="true",
            chosen=chosen,
            tier=Tier.FUSED,
            source="explicit",
            reasons=reasons,
            evidence="run on CPU; logits of a request compared bit by bit alone and in batches",
        )
    )
