"""Reading one rank's share of a model, once everything that can be refused has been."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.collectives.board import MAX_RANKS
from kernels.collectives.group import Group
from kernels.collectives.protocol import Communicator
from kernels.hardware.host_memory import MachineMemory
from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.device import CPU, EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.layers.weight_form import PACKED, choose_weights
from llm_engine.loader import (
    LoadedModel,
    choose_dtype,
    load_tokenizer,
    open_checkpoint,
    read_tensors,
)
from llm_engine.model_config import ModelConfig
from llm_engine.models.base import CausalModel
from llm_engine.models.parameters import Parameters, WeightFacts
from llm_engine.parallel.adapter_shares import HeldAdapters
from llm_engine.parallel.exchange_choice import (
    CacheNeeds,
    cache_parts,
    check_page,
    settled,
)
from llm_engine.parallel.invariant_ranks import check_every_rank, check_invariant_layout
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.overlap_policy import check_overlap
from llm_engine.parallel.panel_cuts import cuts_groups, cuts_panels
from llm_engine.parallel.rank_device import (
    check_devices,
    least_memory,
    rank_device,
    rank_memory,
)
from llm_engine.parallel.sharded_checkpoint import ShardedCheckpoint, num_parameters
from llm_engine.parallel.shares import (
    cached_heads,
    check_fit,
    held_share,
    local_config,
    stage_share,
)
from llm_engine.parallel.token_rows import bytes_per_token
from llm_engine.weights.checkpoint import Checkpoint, PlacedCheckpoint, UnpackedCheckpoint
from llm_engine.weights.resolve import ModelSource, resolve
from llm_engine.window_choice import over_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of a model.

    `whole` are the model's sizes, `cached` those of what this rank attends with and caches,
    `staged` those of its stage where prompts alone have stages; `num_parameters` counts the whole
    model.
    """

    whole: ModelConfig
    cached: ModelConfig
    staged: ModelConfig | None
    layouts: PhaseLayouts
    adapters: HeldAdapters
    model: CausalModel
    device: EngineDevice
    dtype: torch.dtype
    is_packed: bool
    source: ModelSource
    facts: WeightFacts
    num_parameters: int
    eos_token_ids: frozenset[int]

    def loaded(self) -> LoadedModel:
        """The share as an engine takes it, with the tokenizer."""
        tokenizer, eos_token_ids = load_tokenizer(self.source, self.eos_token_ids)
        return LoadedModel(
            model=self.model,
            tokenizer=tokenizer,
            eos_token_ids=eos_token_ids,
            source=self.source,
            dtype=self.dtype,
            facts=self.facts,
            adapters=self.adapters.adapters,
            shape=self.cached,
            num_parameters=self.num_parameters,
            device=self.device,
            is_packed=self.is_packed,
            prompt_token_bytes=self.prompt_token_bytes,
            cache_parts=cache_parts(self.layouts),
        )

    @property
    def prompt_token_bytes(self) -> int:
        """Bytes beside the cache that a token of the longest sequence takes in its prompt."""
        if self.staged is None:
            return 0
        return bytes_per_token(self.staged, self.dtype, is_packed=self.is_packed)


def check_layout(config: EngineConfig) -> PhaseLayouts:
    """What can be refused of a layout before any rank is started.

    Raises: ModelNotFound, UnsupportedModel; InvalidConfig for a layout that the model or another
        setting does not allow, or of more ranks than a group may have.
    """
    layouts = PhaseLayouts.parse(config.layout)
    if not 2 <= layouts.num_ranks <= MAX_RANKS:
        raise InvalidConfig(
            f"layout {layouts} is for {layouts.num_ranks} ranks, a group has 2 to {MAX_RANKS}: "
            "leave layout out for one rank"
        )
    check_devices(config, layouts)
    device = rank_device(config, 0)
    source = resolve(config.model)
    checkpoint = open_checkpoint(source)
    whole = _whole_model(config, layouts, source, checkpoint)
    checkpoint.close()
    dtype = choose_dtype(config.dtype, device)
    settled_layouts = settled(whole, layouts, cache_needs(config, whole, dtype))
    check_fit(whole, settled_layouts, layouts.num_ranks)
    check_page(settled_layouts, config.page_size)
    check_overlap(config, settled_layouts)
    check_invariant_layout(config, settled_layouts)
    return layouts


def load_share(config: EngineConfig, group: Group, device: EngineDevice | None = None) -> Share:
    """Check the layout, then read the rank's weights onto its device.

    `device` stands in for the one that `config` gives the rank.

    Raises: ModelNotFound, UnsupportedModel; before a weight is read, what `decide` raises, and
        InvalidConfig for a layout that the model, the group or another setting does not allow.
    """
    layouts = PhaseLayouts.parse(config.layout)
    source = resolve(config.model)
    device = device or rank_device(config, group.rank)
    dtype = choose_dtype(config.dtype, device)
    checkpoint = open_checkpoint(source)
    whole = _whole_model(config, layouts, source, checkpoint)
    layouts = settled(whole, layouts, cache_needs(config, whole, dtype))
    check_fit(whole, layouts, group.size)
    check_page(layouts, config.page_size)
    check_overlap(config, layouts)
    check_invariant_layout(config, layouts)
    parameters = Parameters.of(whole)
    parameters.check(checkpoint)
    facts, total = parameters.facts(checkpoint, dtype), num_parameters(checkpoint, whole)
    held = held_share(whole, layouts, group.rank)
    stage, staged = stage_share(whole, layouts, group.rank), None
    local = local_config(whole, held, held.heads, stage)
    heads = cached_heads(whole, layouts.decode, group.rank)
    cached = local_config(whole, held, heads)
    is_packed = _is_packed(config, whole, cached, layouts, device, is_quantised=facts.is_quantised)
    if is_packed:
        dtype = torch.float32  # of what lies between the packed products
    else:
        checkpoint = UnpackedCheckpoint(checkpoint)
    if stage is not None:
        staged = local_config(whole, stage, cached_heads(whole, layouts.prefill, group.rank))
    keeps_rows = layouts.is_hybrid
    view: Checkpoint = ShardedCheckpoint(
        checkpoint, whole, held, keeps_rows=keeps_rows, stage=stage
    )
    own = Parameters.of(local).facts(view, dtype)
    # Every rank refuses what another would refuse, so that none waits for it.
    adapters = AdapterSet.load(config.adapters, whole, dtype)
    check_every_rank(config, whole, layouts, dtype, adapters, is_packed=is_packed)
    decide(
        config,
        cached,
        dtype,
        is_quantised=is_packed,
        weight_bytes=own.packed_bytes if is_packed else own.unpacked_bytes,
        prompt_token_bytes=0
        if staged is None
        else bytes_per_token(staged, dtype, is_packed=is_packed),
        cache_parts=cache_parts(layouts),
        machine=rank_memory(device, layouts.num_ranks),
        device=device,
    )
    if not is_packed:
        view = PlacedCheckpoint(view, device.place)
    return Share(
        whole=whole,
        cached=cached,
        staged=staged,
        is_packed=is_packed,
        layouts=layouts,
        adapters=HeldAdapters.of(adapters, whole, layouts, held).to(device.place),
        model=read_tensors(local, view, dtype),
        device=device,
        dtype=dtype,
        source=source,
        facts=facts,
        num_parameters=total,
        eos_token_ids=checkpoint.eos_token_ids,
    )


def planned_memory(share: Share, communicator: Communicator) -> MachineMemory | None:
    """The least memory of the ranks' devices once weights lie there; None on the CPU.

    There the host's memory is one for all, and rank 0 plans with its part. All ranks call this at
    the same time.
    """
    if share.device.place.type == CPU:
        return None
    return least_memory(communicator, share.device.read_memory())


def cache_needs(config: EngineConfig, whole: ModelConfig, dtype: torch.dtype) -> CacheNeeds:
    """What the settings ask of a rank's cache: the same on every rank."""
    return CacheNeeds(
        page_size=config.page_size,
        item_bytes=dtype.itemsize,
        context=min(config.max_model_len or whole.max_position, whole.max_position),
        cache_bytes=config.kv_cache_bytes,
    )


def _whole_model(
    config: EngineConfig, layouts: PhaseLayouts, source: ModelSource, checkpoint: Checkpoint
) -> ModelConfig:
    """The model's sizes; windows where each rank attends with keys of its own, in torch's layout.

    Raises: InvalidConfig where the layout has no windows or sinks, and the model needs them.
    """
    model = ModelConfig.from_mapping(checkpoint.config)
    is_alone = layouts.prefill.cp == 1 and not layouts.is_hybrid
    return over_ranks(config, model, has_masks=is_alone and source.kind != "gguf")


def _is_packed(
    config: EngineConfig,
    whole: ModelConfig,
    cached: ModelConfig,
    layouts: PhaseLayouts,
    device: EngineDevice,
    *,
    is_quantised: bool,
) -> bool:
    """Whether every rank keeps quantised weights packed: decided alike on all of them.

    Raises: InvalidConfig where packed weights are asked for and cannot be had.
    """
    reasons: list[str] = []
    if layouts.is_hybrid and cuts_panels(whole, layouts):
        reasons.append(
            "one phase computes with slices of the weights, which would begin within a panel of "
            "rows or a group of columns"
        )
    if layouts.prefill.exchange in ("gather", "ring"):
        reasons.append("keys that other ranks are given lie in torch's layout")
    shares = [held_share(whole, layouts, rank) for rank in range(layouts.num_ranks)]
    if any(cuts_groups(whole, share) for share in shares):
        reasons.append("a share would begin within a group of columns that have one scale")
    if config.weights == PACKED and reasons:
        raise InvalidConfig(
            f"weights is packed and layout {layouts}, but {'; '.join(reasons)}: ask for 'auto'"
        )
    is_possible, _ = choose_weights(config, cached, device, is_quantised=is_quantised)
    return is_possible and not reasons
