"""What one step computes."""

from dataclasses import dataclass

from llm_engine.scheduling.step_time import StepShape
from llm_engine.sequence import Chunk, Sequence


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: single-token chunks first, then longer ones; and who lost its pages for it."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...]

    @property
    def shape(self) -> StepShape:
        """What the step's duration depends on."""
        prompts = [chunk for chunk in self.chunks if _is_prompt(chunk)]
        answers = [chunk for chunk in self.chunks if not _is_prompt(chunk)]
        return StepShape(
            prompt_tokens=sum(chunk.num_tokens for chunk in prompts),
            answer_rows=sum(chunk.num_tokens for chunk in answers),
            attended_tokens=sum(
                chunk.num_tokens * chunk.start + chunk.num_tokens * (chunk.num_tokens + 1) // 2
                for chunk in self.chunks
            ),
        )


def _is_prompt(chunk: Chunk) -> bool:
    return chunk.start < chunk.seq.num_prompt_tokens - 1 or chunk.num_tokens > 1 + chunk.num_drafts
