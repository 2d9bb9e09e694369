"""Which family a chat template belongs to, told by the markers that stand in it."""

from dataclasses import dataclass

from llm_engine.chat.channels import HARMONY, ChannelMarkers
from llm_engine.chat.formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GLM,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    QWEN3_CODER,
    CallFormat,
)


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What stands around a model's reasoning."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Family:
    """How a template's models call tools and reason.

    `knows_tools` is false where the template has no place for tools: they are then described in a
    system text of ours, in the form of `calls`. `arguments_as_text` where past calls are rendered
    from JSON text; elsewhere from the parsed object. `short_ids` where call ids must have nine
    letters or digits. Where `channels` is set, answers are messages on channels: they say what is
    reasoning and what is a call, and a turn of the assistant has one call, with its thoughts under
    another key.
    """

    calls: CallFormat
    knows_tools: bool
    reasoning: ReasoningMarkers | None
    arguments_as_text: bool = False
    short_ids: bool = False
    channels: ChannelMarkers | None = None

    @property
    def name(self) -> str:
        """The form's name, for the ledger."""
        return self.calls.name if self.channels is None else self.channels.name


# The first row whose markers all stand in the template.
_CALLS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_V3),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK_V31),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<tool_call>", "<arg_key>"), GLM),
    (("<tool_call>", "<function="), QWEN3_CODER),
    (("<tool_call>",), HERMES),
    (("<|python_tag|>",), LLAMA3),
    (('"parameters": ', "ipython"), LLAMA3),
)
_CHANNELS = (HARMONY,)
_REASONING = (ReasoningMarkers("<think>", "</think>"), ReasoningMarkers("[THINK]", "[/THINK]"))


def family_of(template: str, *, has_tools_variable: bool) -> Family:
    """Classify a template; one without any place for tools gets the hermes form."""
    calls = next(
        (form for markers, form in _CALLS if all(marker in template for marker in markers)), None
    )
    channels = next(
        (form for form in _CHANNELS if form.channel in template and form.message in template), None
    )
    if channels is not None:
        return Family(HERMES, has_tools_variable, None, channels=channels)
    reasoning = next((pair for pair in _REASONING if pair.end in template), None)
    return Family(
        calls=calls or HERMES,
        knows_tools=has_tools_variable and calls is not None,
        reasoning=reasoning,
        arguments_as_text=calls is DEEPSEEK_V3,
        short_ids="length != 9" in template,
    )
