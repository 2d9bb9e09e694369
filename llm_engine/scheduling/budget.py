"""What a step may spend on prompts."""

from dataclasses import dataclass

from llm_engine.scheduling.step_time import StepTimeModel


@dataclass(slots=True)
class PromptBudget:
    """What is left of a step's tokens, and of its seconds while answers wait."""

    num_tokens: int
    left_s: float | None
    model: StepTimeModel
    has_prompt: bool = False

    def affordable(self, start: int, most: int) -> int:
        """Prompt tokens from position `start`; the first chunk of a step has one at least."""
        most = min(most, self.num_tokens)
        if self.left_s is None or most <= 0:
            return max(0, most)
        is_first = not self.has_prompt
        fitting = self.model.largest_chunk(self.left_s, start, most=most, is_first=is_first)
        return max(fitting, 1 if is_first else 0)

    def spend(self, start: int, num_tokens: int) -> None:
        """Take a chunk off."""
        self.num_tokens -= num_tokens
        if self.left_s is not None:
            self.left_s -= self.model.prompt_s(start, num_tokens, is_first=not self.has_prompt)
        self.has_prompt = True
