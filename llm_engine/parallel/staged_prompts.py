"""Prompts in stages before answers by heads: computed in slots, then moved to the cache."""

# S rows with logits, V vocabulary.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.key_moves import Holding, KeyMoves
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.phase_steps import PhaseSteps
from llm_engine.parallel.prompt_pages import PromptPages
from llm_engine.parallel.shares import cached_heads, phase_share
from llm_engine.parallel.step_command import StepCommand
from llm_engine.parallel.token_rows import Cache


def num_slots(context: int, page_size: int) -> int:
    """Pages in which stages compute prompts: those of the longest sequence."""
    return -(-context // page_size)


class StagedPrompts:
    """Steps of prompts, each rank with the keys of its stage's layers.

    Before a step, what a rank of a stage lacks of the keys before it (a reused prefix, a sequence
    that made room) comes from the ranks that decode; after it, the new keys go to them. So the
    cache is complete between steps, and all that is done to its pages is done there alone.
    """

    def __init__(
        self,
        steps: PhaseSteps,
        world: Communicator,
        config: ModelConfig,
        layouts: PhaseLayouts,
        cache: Cache,
        staged: Cache,
        pages: PromptPages,
    ) -> None:
        """`steps` compute with `staged`, whose pages are slots; `config` is the whole model's."""
        self._steps, self._pages = steps, pages
        ranks = range(layouts.num_ranks)
        at_home, in_stages = (
            [
                Holding(
                    cached_heads(config, layout, rank).kv, phase_share(config, layout, rank).layers
                )
                for rank in ranks
            ]
            for layout in (layouts.decode, layouts.prefill)
        )
        self._fetch = KeyMoves(world, at_home, cache, in_stages, staged)
        self._settle = KeyMoves(world, in_stages, staged, at_home, cache)

    def run(self, command: StepCommand) -> torch.Tensor | None:
        """See `llm_engine.parallel.phase_steps.PhaseSteps`."""
        placed = self._pages.place(command.spans)
        self._fetch(placed.missing.home, placed.missing.staged)
        logits_SV = self._steps.run(replace(command, spans=placed.spans))
        self._settle(placed.written.staged, placed.written.home)
        return logits_SV

    def overwrite(self, spans: Sequence[AttentionSpan]) -> None:
        """Tokens of the spans were computed in the other phase."""
        self._pages.overwrite(spans)

    def forget(self, pages: Iterable[int]) -> None:
        """Pages of the cache were changed otherwise."""
        self._pages.forget(pages)

    def renew(self) -> None:
        """Begin as ranks do that were started anew."""
        self._pages.clear()
        self._steps.renew()
