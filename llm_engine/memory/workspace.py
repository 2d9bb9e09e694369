"""What a step needs beside weights and cache, by formula; a warm-up step measures it."""

from llm_engine.config import EngineConfig
from llm_engine.memory.ledger import MemoryEntry, MemoryLedger
from llm_engine.model_config import ModelConfig

WEIGHTS, STEP, SAMPLER, SAFETY = "weights", "step workspace", "sampler", "safety"
_SAFETY_SHARE = 0.03
_MIN_SAFETY_BYTES = 128 << 20
_LOGIT_BYTES = 4
_GRAPHS_OWN_BYTES = 256 << 20  # of the driver, for all graphs of an engine; unverified
_LOGIT_COPIES = 3  # the logits, what the sampler makes of them, and a sorted copy


def memory_ledger(
    config: EngineConfig,
    model: ModelConfig,
    *,
    chunk_tokens: int,
    item_bytes: int,
    weight_bytes: int,
    total_bytes: int,
    has_graphs: bool = False,
) -> MemoryLedger:
    """The parts of an engine on a machine of `total_bytes`. `weight_bytes` 0: they are in place."""
    chunk = chunk_tokens + config.max_num_seqs
    rows = config.max_num_seqs * (1 if config.speculation == "off" else 1 + config.max_draft_tokens)
    sampler = rows * model.vocab_size * _LOGIT_BYTES * _LOGIT_COPIES
    graphs = MemoryEntry(
        "graphs",
        step_bytes(model, config.max_num_seqs, item_bytes)
        + config.max_num_seqs * model.vocab_size * (_LOGIT_BYTES + item_bytes)
        + _GRAPHS_OWN_BYTES,
        "formula",
        f"workspace and logits of {config.max_num_seqs} rows, and what the driver keeps",
    )
    return MemoryLedger.of(
        (
            MemoryEntry(WEIGHTS, weight_bytes, "formula", "from the files' headers"),
            MemoryEntry(
                STEP, step_bytes(model, chunk, item_bytes), "formula", f"at {chunk} tokens"
            ),
            MemoryEntry(SAMPLER, sampler, "formula", f"{rows} rows of {model.vocab_size}"),
            MemoryEntry(
                SAFETY,
                max(_MIN_SAFETY_BYTES, int(total_bytes * _SAFETY_SHARE)),
                "setting",
                f"{_SAFETY_SHARE:.0%} of the machine, at least {_MIN_SAFETY_BYTES >> 20} MiB",
            ),
            *((graphs,) if has_graphs else ()),
        )
    )


def step_bytes(model: ModelConfig, num_tokens: int, item_bytes: int) -> int:
    """The tensors that are alive at a layer's widest point, for a step of `num_tokens`.

    Residual and normed input (2 C), the fused heads and their turned copies (2 (H + 2 K) D), or
    gate, up and their product (3 I), whichever is more; float32 copies inside norms (C). Experts
    have their inner channels (I of one) and a row (C) for each of a token's k choices.
    """
    heads = 2 * (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    widest = max(heads, 3 * model.intermediate_size)
    if model.moe is not None:
        choice = model.moe.intermediate_size + model.hidden_size
        widest = max(widest, model.moe.num_experts_per_token * choice)
    return num_tokens * (item_bytes * (2 * model.hidden_size + widest) + 4 * model.hidden_size)
