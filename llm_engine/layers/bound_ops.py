"""The ops an engine runs: each chosen once, from facts, recorded, and bound to its function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernels.dispatch import AUTO
from kernels.dtypes import DTYPE_NAMES
from kernels.ledger import Decision, Ledger
from kernels.ops.registry import op_spec
from kernels.spec import Tier
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.layers.blocks import (
    AttentionBlock,
    Blocks,
    DecoderLayer,
    MlpBlock,
    TorchBlocks,
)
from llm_engine.layers.embedding import Embedding
from llm_engine.layers.experts import MoeBlock, apply_experts
from llm_engine.layers.form_choice import (
    RANKS_BLOCKS_REASON,
    RANKS_EXPERTS_REASON,
    FormQuestion,
    choose_forms,
)
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.linear import Linear
from llm_engine.layers.native import NativeBlocks, normed_product
from llm_engine.layers.op_choice import (
    DECIDE,
    ENGINE,
    OpSizes,
    choose_op,
    decide_single_decode,
    op_cases,
)
from llm_engine.layers.rotary import turn_and_insert
from llm_engine.layers.single_decode import SingleDecode
from llm_engine.layers.step import Step
from llm_engine.layers.tiles import OverRows, at_once
from llm_engine.layers.weight_form import NATIVE, block_cases
from llm_engine.model_config import ModelConfig

Op = Callable[..., Any]
BLOCKS = ("attention_block", "mlp_block")
# With packed weights keys and values lie in the native kernels' own layout.
_OPS_OF_TORCH_CACHE = ("rotary_insert", "paged_prefill", "paged_decode")
_COMPOSED = ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode", "gemm")
_COMPOSED_REASON = "composed of the ops above"
_COMPOSED_OVER_RANKS = "composed of the ops above: its sum over ranks is exchanged, then added"
STACK_REASON = (
    "all layers of a step without adapters run in one native call, the same bits as block by block"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOps:
    """The functions that model and runner call, and the decisions behind them.

    Each op has one decision; `paged_decode` has a second one for steps that decode one sequence,
    which `single_decode` serves where it is not None. With `is_native` the ops over torch's cache
    layout have none: blocks, native or composed, attend in the layout of the native kernels.

    A call goes straight to the implementation: signatures are those of `kernels.ops`, without
    checks and without `impl`. `forms` are those that a model's weights must have. Two decisions
    bind no function here: `gemm`, which `layers.linear` hands to the vendor's library, and
    `sampler`, which is `llm_engine.sampler`. `over_rows` applies the maps that torch computes.
    """

    rms_norm: Op
    swiglu: Op
    rotary_insert: Op
    paged_prefill: Op
    paged_decode: Op
    single_decode: type[SingleDecode] | None
    is_native: bool
    attention_block: Callable[[int, AttentionBlock, torch.Tensor, Step], torch.Tensor]
    mlp_block: Callable[[int, MlpBlock, torch.Tensor, Step], torch.Tensor]
    decisions: tuple[Decision, ...]
    eps: float
    moe_router: Op | None = None
    native_stack: Callable[[Sequence[DecoderLayer], torch.Tensor, Step], torch.Tensor] | None = None
    over_rows: OverRows = at_once
    forms: KeptForms = PLAIN

    def embed(self, embedding: Embedding, token_ids_N: torch.Tensor) -> torch.Tensor:
        """The rows of the embedding. Shapes: ids (N,); result (N, C)."""
        return embedding(token_ids_N)

    def moe_block(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        routed = self.route(block, x_NC)
        if block.grouped is not None:
            assert self.forms.moe_gemm is not None, "the ops were bound for experts one by one"
            assert step.adapters is None, "stacked experts take no update"
            return x_NC + self.forms.moe_gemm(*routed, block.grouped)
        adapt = None if step.adapters is None else partial(step.adapters.update_expert, layer)
        return x_NC + apply_experts(
            block.experts, *routed, self.swiglu, over_rows=self.over_rows, adapt=adapt
        )

    def route(
        self, block: MoeBlock, x_NC: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the experts are given: norm(x) (N, C), their ids and weights (N, k)."""
        assert self.moe_router is not None, "the ops were bound for a model without experts"
        h_NC, _, _ = self.rms_norm(x_NC, block.norm, eps=self.eps)
        router_NE = self.over_rows(block.router, h_NC)
        return h_NC, *self.moe_router(router_NE, block.routing)

    def stack(self, layers: Sequence[DecoderLayer], x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """All layers of a model: one call where both blocks are native, else block by block.

        x may be changed in place. Shapes: x and result (N, C).
        """
        if self.native_stack is not None:
            return self.native_stack(layers, x_NC, step)
        for index, layer in enumerate(layers):
            x_NC = self.attention_block(index, layer.attention, x_NC, step)
            x_NC = self.mlp_block(index, layer.mlp, x_NC, step)
        return x_NC

    def logits(
        self, x_NC: torch.Tensor, norm_C: torch.Tensor, head: Linear, eps: float
    ) -> torch.Tensor:
        """head(x / rms(x) · norm) in float32. Shapes: x (N, C); norm (C,); result (N, V)."""
        if self.native_stack is not None and head.packed is not None:
            return normed_product(x_NC, norm_C, head, eps)
        h_NC, _, _ = self.rms_norm(x_NC, norm_C, eps=eps)
        return self.over_rows(head, h_NC).float()

    @property
    def names(self) -> tuple[tuple[str, str, str], ...]:
        """(op, implementation, tier) of every decision."""
        return tuple((d.what, d.chosen, str(d.tier)) for d in self.decisions)


def bind_ops(  # noqa: PLR0913 - what is chosen from, and for whom
    config: ModelConfig,
    dtype: torch.dtype,
    sizes: OpSizes,
    *,
    asked: Mapping[str, str],
    ledger: Ledger,
    device: EngineDevice,
    is_native: bool = False,
    has_ranks: bool = False,
    forms: KeptForms | None = None,
) -> BoundOps:
    """Choose each op for the model's shapes on a device, record why, and import what was chosen.

    `asked` names implementations by op; a request is met or refused, never replaced. With
    `has_ranks` blocks are composed, since their sums are exchanged before they are added. `forms`
    are chosen here, for files of plain numbers, where None are given.
    Raises: InvalidConfig for an op that the engine does not run; ImplUnavailable.
    """
    cases = op_cases(config, DTYPE_NAMES[dtype], sizes)
    forms = forms or _plain_forms(config, dtype, sizes, asked, device, has_ranks=has_ranks)
    unused = _OPS_OF_TORCH_CACHE if is_native else ()
    own = (decision.what for decision in forms.decisions)
    known = (*(name for name in cases if name not in unused), *own, *BLOCKS)
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise InvalidConfig(
            f"kernels names {', '.join(unknown)}, but the engine runs {', '.join(known)}"
        )
    decisions: list[Decision] = []
    functions: dict[str, Op] = {}
    for name, case in cases.items():
        decide = DECIDE.get(name, choose_op)
        spec = op_spec(name)
        decision = decide(spec, case, asked.get(name, AUTO), device)
        if name not in unused:
            decisions.append(ledger.record(decision))
        if name == "rotary_insert" and decision.chosen == ENGINE:
            functions[name] = turn_and_insert
        elif name not in ("gemm", "sampler"):
            functions[name] = spec.find(decision.chosen).load()
    decisions += [ledger.record(decision) for decision in forms.decisions]
    if config.gate.options:
        functions["swiglu"] = partial(functions["swiglu"], **config.gate.options)
    single_decode = None
    is_plain = device.is_cpu and config.windows is None and not config.has_sinks
    if asked.get("paged_decode", AUTO) == AUTO and not is_native and is_plain:
        single_decode = SingleDecode
        decisions.append(ledger.record(decide_single_decode(decisions, cases["paged_decode"])))
    composed = TorchBlocks(config, functions["rms_norm"], functions["swiglu"])
    blocks = {
        decision.what: decision
        for decision in _blocks(
            config, sizes, decisions, asked, device, is_native=is_native, has_ranks=has_ranks
        )
    }
    decisions += [ledger.record(decision) for decision in blocks.values()]
    native = NativeBlocks(config, sizes.page_size, composed) if is_native else None
    is_whole = all(decision.chosen == NATIVE for decision in blocks.values())
    return BoundOps(
        **functions,
        single_decode=single_decode,
        is_native=is_native,
        attention_block=_chosen(
            blocks, "attention_block", native or composed, composed
        ).attention_block,
        mlp_block=_chosen(blocks, "mlp_block", native or composed, composed).mlp_block,
        decisions=tuple(decisions),
        eps=config.rms_eps,
        native_stack=native.stack if native is not None and is_whole else None,
        forms=forms,
    )


def _plain_forms(
    config: ModelConfig,
    dtype: torch.dtype,
    sizes: OpSizes,
    asked: Mapping[str, str],
    device: EngineDevice,
    *,
    has_ranks: bool,
) -> KeptForms:
    return choose_forms(
        FormQuestion(
            model=config,
            dtype=dtype,
            num_rows=sizes.num_seqs,
            device=device,
            asked=asked,
            against=(RANKS_BLOCKS_REASON,) if has_ranks else (),
            alone=(RANKS_EXPERTS_REASON,) if has_ranks else (),
        )
    )


def _blocks(
    config: ModelConfig,
    sizes: OpSizes,
    parts: Sequence[Decision],
    asked: Mapping[str, str],
    device: EngineDevice,
    *,
    is_native: bool,
    has_ranks: bool,
) -> list[Decision]:
    """Each block: one native call, or the engine's composition, as good as its weakest part."""
    cases = block_cases(
        config, num_rows=sizes.chunk_tokens, page_size=sizes.page_size, is_packed=is_native
    )
    found: list[Decision] = []
    for name, case in cases.items():
        name_asked = asked.get(name, AUTO)
        if has_ranks and name_asked not in (AUTO, ENGINE):
            raise InvalidConfig(
                f"kernels asks for {name}={name_asked}, but over ranks a block's sum is exchanged "
                f"before it is added: ask for {AUTO!r} or {ENGINE!r}"
            )
        spec = op_spec(name)
        decision = choose_op(spec, case, "torch" if name_asked == ENGINE else name_asked, device)
        if decision.chosen != NATIVE or has_ranks:
            tiers = [part.tier for part in parts if part.what in _COMPOSED]
            lowest = next((t for t in tiers if t is Tier.GENERIC), Tier.FUSED)
            decision = replace(
                decision,
                asked=name_asked,
                chosen=ENGINE,
                tier=lowest,
                reasons=(_COMPOSED_OVER_RANKS if has_ranks else _COMPOSED_REASON,),
                evidence=device.evidence,
            )
        found.append(decision)
    if config.moe is None and all(decision.chosen == NATIVE for decision in found):
        found = [replace(d, reasons=(*d.reasons, STACK_REASON)) for d in found]
    return found


def _chosen(
    decisions: Mapping[str, Decision], name: str, native: Blocks, composed: Blocks
) -> Blocks:
    return native if decisions[name].chosen == NATIVE else composed
