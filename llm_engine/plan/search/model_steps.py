"""A model's shape at every size of step that a search asks for, and what layouts need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.layer_groups import ModelShape
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.families import describe
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.prediction import StepSize


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What decides how a model can be cut.

    `full_layers` of `num_layers` compute every row of a prompt; the others the last window alone.
    `expert_columns` are the inner channels of one expert.
    `kv_heads` ranks can divide cached rows by heads; `row_streams` residual streams cross a stage.
    `query_width` and `value_width` are the values of a head's query, and of what it finds.
    """

    hidden: int
    num_layers: int
    full_layers: int
    window: int
    num_moe_layers: int
    num_experts: int
    expert_columns: int
    top_k: int
    num_heads: int
    kv_heads: int
    query_width: int
    value_width: int
    row_streams: int
    max_context: int
    has_recurrence: bool
    has_shared_rows: bool


class ModelSteps:
    """A model's shape for each size of step, described once.

    Raises: UnsupportedModel from `at` for a config that is not known.
    """

    def __init__(self, raw: Mapping[str, Any], request: PlanRequest, name: str) -> None:
        """`request` holds the formats; its sizes do not matter."""
        self._raw, self._request, self._name = raw, request, name
        self._known: dict[tuple[int, int, int, int], ModelShape] = {}
        self.facts = _facts(ConfigFields(raw), str(raw.get("model_type")))

    @property
    def item_bytes(self) -> int:
        """Of an activation."""
        return 4 if self._request.dtype == "fp32" else 2

    def at(self, size: StepSize) -> ModelShape:
        """The model when a step has this size."""
        rows = size.rows if size.phase == "prefill" else 1
        prompts, batch = (size.batch, 1) if size.phase == "prefill" else (1, size.batch)
        key = (rows, size.context, prompts, batch)
        if key not in self._known:
            request = replace(
                self._request,
                prefill_tokens=rows,
                context=size.context,
                prompts=prompts,
                batch=batch,
            )
            self._known[key] = describe(self._raw, request, name=self._name)
        return self._known[key]


def _facts(fields: ConfigFields, family: str) -> ModelFacts:
    layers = fields.count("num_hidden_layers")
    named = ("n_routed_experts", "num_experts", "num_local_experts")
    experts = next((fields.count(name) for name in named if fields.has(name)), 0)
    columns = fields.count("moe_intermediate_size", fields.count("intermediate_size", 0))
    is_whole = fields.flag("prefills_all_layers")
    sources = () if is_whole else fields.counts("kv_source_layer_ids")
    shares = family in ("deepseek_v4", "deepseek_v41", "deepseek_v32", "glm_moe_dsa", "glm5_next")
    heads = fields.count("num_attention_heads")
    width = fields.count("head_dim", fields.count("hidden_size") // heads)
    latent = fields.count("kv_lora_rank", width) if shares else width
    return ModelFacts(
        hidden=fields.count("hidden_size"),
        num_layers=layers,
        full_layers=max(sources) if sources else layers,
        window=fields.count("sliding_window", 0) if sources else 0,
        num_moe_layers=layers - fields.count("first_k_dense_replace", 0) if experts else 0,
        num_experts=experts,
        expert_columns=columns if experts else 0,
        top_k=fields.count("num_experts_per_tok", 0) if experts else 0,
        num_heads=heads,
        kv_heads=1 if shares else fields.count("num_key_value_heads", heads),
        query_width=latent + (fields.count("qk_rope_head_dim", 0) if latent != width else 0),
        value_width=latent,
        row_streams=fields.count("hc_mult", 1),
        max_context=fields.count("max_position_embeddings"),
        has_recurrence="linear_attention" in fields.texts("layer_types"),
        has_shared_rows=shares,
    )
