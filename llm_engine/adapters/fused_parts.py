"""Which modules of a layer make up each fused map that an adapter can update."""

# E experts, I inner channels.

from collections.abc import Mapping
from dataclasses import dataclass

from llm_engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class FusedPart:
    """A fused map: its input width, and the modules in it with their number of rows, in order.

    Modules are named as in the checkpoint, from the layer on: `self_attn.q_proj`.
    """

    num_inputs: int
    outputs: Mapping[str, int]

    @property
    def num_outputs(self) -> int:
        """Rows of the whole map."""
        return sum(self.outputs.values())


def fused_parts(config: ModelConfig, layer: int) -> dict[str, FusedPart]:
    """The maps of a layer by part, as `llm_engine.layers` fuses them."""
    wide = config.hidden_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    parts = {
        "qkv": FusedPart(wide, {f"self_attn.{name}": rows for name, rows in qkv.items()}),
        "out": FusedPart(q_rows, {"self_attn.o_proj": wide}),
    }
    moe = config.moe
    if moe is None or not moe.is_sparse(layer):
        gate_up, down = _mlp("mlp", wide, config.intermediate_size)
        return parts | {"gate_up": gate_up, "down": down}
    for expert in range(moe.num_experts):
        gate_up, down = _mlp(f"mlp.experts.{expert}", wide, moe.intermediate_size)
        parts[expert_part(expert, "gate_up")] = gate_up
        parts[expert_part(expert, "down")] = down
    return parts


def expert_part(expert: int, part: str) -> str:
    """The name of an expert's `gate_up` or `down` among a layer's parts."""
    return f"experts.{expert}.{part}"


def _mlp(prefix: str, wide: int, inner: int) -> tuple[FusedPart, FusedPart]:
    gate_up = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
    return FusedPart(wide, gate_up), FusedPart(inner, {f"{prefix}.down_proj": wide})
