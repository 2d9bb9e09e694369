"""Where shares of packed matrices may begin: with groups of columns, slices with panels of rows."""

from __future__ import annotations

from kernels.ops.packed_gemm.quantised import PANEL_ROWS
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.place import Place
from llm_engine.parallel.shares import GROUP, WeightShare, head_rows, phase_share


def cuts_groups(config: ModelConfig, share: WeightShare) -> bool:
    """Whether a share's columns begin or end within a group of quantised weights."""
    heads = share.heads.queries
    runs = [range(heads.start * config.head_dim, heads.stop * config.head_dim), share.channels]
    runs.append(share.expert_channels)
    return any(bound % GROUP for run in runs for bound in (run.start, run.stop))


def cuts_panels(config: ModelConfig, layouts: PhaseLayouts) -> bool:
    """Whether a phase's slices of packed matrices would begin or end within a panel or a group."""
    for layout in (layouts.prefill, layouts.decode):
        if has_cut_words(config, layout):
            return True
        for rank in range(layout.num_ranks):
            share = phase_share(config, layout, rank)
            kv = share.heads.kv
            bounds = (kv.start * config.head_dim, kv.stop * config.head_dim)
            if cuts_groups(config, share) or any(bound % PANEL_ROWS for bound in bounds):
                return True
    return False


def has_cut_words(config: ModelConfig, layout: Layout) -> bool:
    """Whether a rank's logits are those of words that begin within a panel of a packed matrix."""
    places = [Place.of(layout, rank) for rank in range(layout.num_ranks)]
    return any(head_rows(config, layout, place).start % PANEL_ROWS for place in places)
