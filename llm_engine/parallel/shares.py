"""Which heads, channels, experts, vocabulary rows and layers a rank holds and uses: arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from kernels.collectives.reduction import piece_sizes
from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig, MoeConfig
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.place import Place

GROUP = 32  # the widest group of quantised weights


@dataclass(frozen=True, slots=True)
class HeadShare:
    """Query heads and the key/value heads that they attend to, which several ranks may hold."""

    queries: range
    kv: range

    @property
    def is_uniform(self) -> bool:
        """Whether every key/value head here serves equally many of the query heads here."""
        return len(self.kv) > 0 and len(self.queries) % len(self.kv) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShare:
    """What of each kind a rank has. `vocabulary` is the embedding's rows, `head` the head's.

    `adds_bias` is true on the one rank of those whose outputs of attention are summed that adds the
    biases; so are the others for an MLP and for an expert.
    """

    heads: HeadShare
    channels: range
    experts: range
    expert_channels: range
    vocabulary: range
    head: range
    layers: range
    adds_bias: bool
    adds_mlp_bias: bool
    adds_expert_bias: bool


def ranges(count: int, parts: int) -> list[range]:
    """0..count cut into runs that differ by at most 1, the longer ones first."""
    bounds = [0, *accumulate(piece_sizes(count, parts))]
    return [range(start, end) for start, end in pairwise(bounds)]


def expert_runs(num_experts: int, layout: Layout) -> list[range]:
    """The experts of each share along ep, of whole ones of the finer phase's."""
    parts, fine = layout.ep, layout.expert_grain
    return [_run(num_experts, fine, parts, part, unit=1) for part in range(parts)]


def joined(runs: list[range]) -> range:
    """Neighbouring runs, which may overlap, as one."""
    filled = [run for run in runs if run] or runs[:1]
    return range(filled[0].start, filled[-1].stop)


def head_shares(num_heads: int, num_kv_heads: int, parts: int) -> list[HeadShare]:
    """The heads of each of `parts` ranks: query heads follow their key/value head.

    With fewer key/value heads than ranks, each lies on several, which share its query heads.
    """
    group = num_heads // num_kv_heads
    if parts <= num_kv_heads:
        return [
            HeadShare(range(kv.start * group, kv.stop * group), kv)
            for kv in ranges(num_kv_heads, parts)
        ]
    shares: list[HeadShare] = []
    for kv, holders in enumerate(ranges(parts, num_kv_heads)):
        for run in ranges(group, len(holders)):
            queries = range(kv * group + run.start, kv * group + run.stop)
            shares.append(HeadShare(queries, range(kv, kv + 1)))
    return shares


def heads_of(config: ModelConfig, layout: Layout, tp: int, index: int) -> HeadShare:
    """The heads of share `index` of `tp`: whole ones of the finest shares, so that they nest."""
    fine = head_shares(config.num_heads, config.num_kv_heads, layout.head_grain)
    width = layout.head_grain // tp
    mine = fine[index * width : (index + 1) * width]
    return HeadShare(joined([s.queries for s in mine]), joined([s.kv for s in mine]))


def phase_share(config: ModelConfig, layout: Layout, rank: int) -> WeightShare:
    """What a rank computes with in one phase."""
    return _share(config, layout, Place.of(layout, rank), layout.tp)


def held_share(config: ModelConfig, layouts: PhaseLayouts, rank: int) -> WeightShare:
    """What a rank keeps in memory: enough for both phases, but for the layers of `stage_share`."""
    if layouts.is_restaged:
        rest = phase_share(config, layouts.decode, rank)
        stage = phase_share(config, layouts.prefill, rank)
        vocabulary = stage.vocabulary or rest.vocabulary
        head = vocabulary if config.is_tied else stage.head or rest.head
        return replace(rest, vocabulary=vocabulary, head=head)
    layout = layouts.prefill if layouts.prefill.tp <= layouts.decode.tp else layouts.decode
    return _share(config, layout, Place.of(layout, rank), layouts.held_tp)


def stage_share(config: ModelConfig, layouts: PhaseLayouts, rank: int) -> WeightShare | None:
    """What a rank keeps of its stage's layers, where prompts alone pass through stages.

    Its share for decoding lies within it.
    """
    return phase_share(config, layouts.prefill, rank) if layouts.is_restaged else None


def head_rows(config: ModelConfig, layout: Layout, place: Place) -> range:
    """The words whose logits a rank computes: a share of a unit's, within what it holds.

    A tied head lies where the embedding does, which tp alone splits.
    """
    index = place.dp * layout.tp + place.tp
    if config.is_tied:
        index = place.tp * layout.dp + place.dp
    index = index * layout.cp + place.cp
    return _run(config.vocab_size, layout.grain * layout.dp, layout.width, index)


def cached_heads(config: ModelConfig, layout: Layout, rank: int) -> HeadShare:
    """The heads whose keys and values a rank's cache holds, with their query heads."""
    place = Place.of(layout, rank)
    if layout.exchange in ("gather", "ring"):
        return heads_of(config, layout, layout.tp, place.tp)
    return heads_of(config, layout, layout.unit, place.tp * layout.cp + place.cp)


def local_config(
    config: ModelConfig,
    share: WeightShare,
    heads: HeadShare,
    stage: WeightShare | None = None,
) -> ModelConfig:
    """The model as a rank's layers see it: its own heads, channels, experts and layers.

    `stage` is what it has of some layers' experts, where that is more.
    """
    moe = config.moe
    if moe is not None:
        moe = _local_moe(moe, share, stage)
    return replace(
        config,
        num_heads=len(heads.queries),
        num_kv_heads=len(heads.kv),
        intermediate_size=len(share.channels),
        num_layers=len(share.layers),
        windows=config.windows and config.windows.within(share.layers),
        moe=moe,
    )


def check_fit(config: ModelConfig, layouts: PhaseLayouts, num_ranks: int) -> None:
    """Raises: InvalidConfig, with the bound, for a layout that this model or group cannot have."""
    if layouts.num_ranks != num_ranks:
        raise InvalidConfig(
            f"layout {layouts} is for {layouts.num_ranks} ranks, the group has {num_ranks}"
        )
    for layout in dict.fromkeys((layouts.prefill, layouts.decode)):
        _check_layout(config, layout)


def _check_layout(config: ModelConfig, layout: Layout) -> None:
    is_by_tp = layout.head_grain == layout.tp
    axis, num_parts = ("tp", layout.tp) if is_by_tp else ("tp x cp", layout.unit)
    bounds = [(axis, num_parts, config.num_heads, "query heads")]
    wide = layout.tp * layout.dp
    bounds += [("tp x dp", wide, config.intermediate_size, "channels of the MLP")]
    bounds += [("pp", layout.pp, config.num_layers, "layers")]
    if config.moe is not None:
        bounds += [("ep", layout.ep, config.moe.num_experts, "experts")]
        width = wide if layout.ep == 1 else layout.stage // layout.ep
        bounds += [("tp x dp", width, config.moe.intermediate_size, "channels of an expert")]
    elif layout.ep > 1:
        raise InvalidConfig(f"layout {layout}: the model has no experts: leave ep out")
    for axis, asked, available, what in bounds:
        if asked > available:
            raise InvalidConfig(
                f"layout {layout}: {axis} is {asked}, but the model has {available} {what}"
            )
    uneven = uneven_heads(config, layout)
    if uneven is not None:
        raise InvalidConfig(
            f"layout {layout}: {config.num_heads} query heads over {config.num_kv_heads} key/value "
            f"heads leave a rank with {len(uneven.queries)} over {len(uneven.kv)}: take "
            f"a tp x cp that divides {config.num_kv_heads}, or that it divides"
        )


def uneven_heads(config: ModelConfig, layout: Layout) -> HeadShare | None:
    """The heads of the first rank that can attend to none, or not to equally many; None if none."""
    shares = [cached_heads(config, layout, rank) for rank in range(layout.num_ranks)]
    shares += [heads_of(config, layout, layout.tp, index) for index in range(layout.tp)]
    return next((s for s in shares if not s.queries or not s.is_uniform), None)


def _share(config: ModelConfig, layout: Layout, place: Place, tp: int) -> WeightShare:
    index = place.tp * tp // layout.tp
    # Shares of a part's tp ranks lie side by side, so that slices of both phases nest.
    wide, wide_index, grain = tp * layout.dp, place.dp * tp + index, layout.grain * layout.dp
    expert, width, expert_index = _expert_place(layout, place, wide, wide_index)
    layers = ranges(config.num_layers, layout.pp)[place.pp]
    vocabulary = _run(config.vocab_size, grain, tp, index)
    head = vocabulary if config.is_tied else _run(config.vocab_size, grain, wide, wide_index)
    none = range(0)
    is_first, is_last = place.pp == 0, place.pp == layout.pp - 1
    moe = config.moe
    return WeightShare(
        heads=heads_of(config, layout, tp, index),
        channels=_run(config.intermediate_size, grain, wide, wide_index),
        experts=none if moe is None else expert_runs(moe.num_experts, layout)[expert],
        expert_channels=none
        if moe is None
        else _run(moe.intermediate_size, max(grain, width), width, expert_index),
        vocabulary=vocabulary if is_first or (config.is_tied and is_last) else none,
        head=head if is_last else none,
        layers=layers,
        adds_bias=index == 0,
        adds_mlp_bias=wide_index == 0,
        adds_expert_bias=expert_index == 0,
    )


def _expert_place(layout: Layout, place: Place, wide: int, index: int) -> tuple[int, int, int]:
    """Which run of experts, and into how many shares their channels are cut, and which of them."""
    if layout.ep == 1:
        return 0, wide, index
    width = layout.stage // layout.ep
    if layout.pp < layout.fold:
        # Of the experts and channels that the rank's stage has of its own layers.
        within, stage = divmod(place.tp, layout.fold)
        expert, channels = divmod(within, width)
        return expert * layout.fold + stage, width, channels
    number = ((place.dp + place.replica) * layout.tp + place.tp) * layout.cp + place.cp
    return number // width, width, number % width


def _run(count: int, fine: int, parts: int, index: int, unit: int = GROUP) -> range:
    """Share `index` of `parts`, made of whole ones of `fine`, so that shares nest.

    In whole units, groups of columns that share a scale, where there are enough of them.
    """
    width = fine // parts
    if count % unit or count // unit < fine:
        unit = 1
    run = joined(ranges(count // unit, fine)[index * width : (index + 1) * width])
    return range(run.start * unit, run.stop * unit)


def _local_moe(moe: MoeConfig, share: WeightShare, stage: WeightShare | None) -> MoeConfig:
    first = share.layers.start
    held = [share if stage is None or i not in stage.layers else stage for i in share.layers]
    dense = (layer - first for layer in share.layers if not moe.is_sparse(layer))
    return replace(
        moe,
        num_experts=len(share.experts),
        layer_experts=() if stage is None else tuple(len(each.experts) for each in held),
        intermediate_size=len(share.expert_channels),
        sparse_step=1,
        dense_layers=frozenset(dense),
    )
