"""What an engine decides before it reads a weight: the cache's capacity, and its ops."""

from dataclasses import dataclass

import torch

from kernels.ledger import Ledger
from kernels.spec import Tier
from llm_engine.capacity import Capacity, plan_capacity
from llm_engine.config import EngineConfig
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import BoundOps, OpSizes, bind_ops
from llm_engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class EngineDecisions:
    """Capacity and bound ops; the ledger says why."""

    capacity: Capacity
    ops: BoundOps
    ledger: Ledger


def decide(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> EngineDecisions:
    """Plan the cache and bind the ops, from settings and the model's config alone.

    Raises: InvalidConfig; ImplUnavailable for an op that cannot run as asked; StrictRefusal when
        an op lies below `config.strict_floor`.
    """
    bytes_per_token = PagedCache.bytes_per_token(model, dtype)
    capacity = plan_capacity(
        config, model_context=model.max_position, bytes_per_token=bytes_per_token
    )
    sizes = OpSizes(
        chunk_tokens=config.prefill_chunk_tokens,
        num_seqs=config.max_num_seqs,
        context=capacity.max_model_len,
        page_size=config.page_size,
    )
    ledger = Ledger()
    ops = bind_ops(model, dtype, sizes, asked=config.kernels, ledger=ledger)
    if config.strict_floor is not None:
        ledger.require(Tier(config.strict_floor))
    return EngineDecisions(capacity, ops, ledger)
