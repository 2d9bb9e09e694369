"""How each template family writes a tool call: what the parser reads, what the grammar demands.

Sources: the chat templates that the model authors publish with their weights.
"""

from dataclasses import dataclass
from typing import Literal

import regex

# Read by the parser at the beginning of what is held, and again with more text while the match
# is partial. A group `args` marks where the arguments begin.
_NAME = r'"(?P<name>[^"\\]+)"'
_JSON_HEAD = (
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?(?:"id"\s*:\s*"[^"\\]*"\s*,\s*)?"name"\s*:\s*'
    + _NAME
    + r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?P<args>\{)'
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The written form of calls.

    Reading: `openers` begin a call, or a section of several; then `head` up to the arguments,
    `tail` after them, `end` where a section is over. `close` ends a call that cannot be read, so
    that it can be given back whole. `leads` when a call may also begin the answer bare.
    Writing, with NAME for the function: `begin` + arguments + `finish` is a call, calls are joined
    by `separator`, all between `section_begin` and `section_end`.
    """

    name: str
    style: Literal["json", "xml", "pairs"]
    openers: tuple[str, ...]
    head: "regex.Pattern[str]"
    tail: "regex.Pattern[str]"
    begin: str
    finish: str
    end: "regex.Pattern[str] | None" = None
    close: str | None = None
    is_section: bool = False
    leads: bool = False
    separator: str = "\n"
    section_begin: str = ""
    section_end: str = ""


HERMES = CallFormat(
    name="hermes",
    style="json",
    openers=("<tool_call>",),
    head=regex.compile(r"\s*" + _JSON_HEAD),
    tail=regex.compile(r"\s*\}?\s*</tool_call>"),
    close="</tool_call>",
    begin='<tool_call>\n{"name": "NAME", "arguments": ',
    finish="}\n</tool_call>",
)
QWEN3_CODER = CallFormat(
    name="qwen3_coder",
    style="xml",
    openers=("<tool_call>",),
    head=regex.compile(r"\s*<function=(?P<name>[^>\n]+)>"),
    tail=regex.compile(r"\s*</function>\s*</tool_call>"),
    close="</tool_call>",
    begin="<tool_call>\n<function=NAME>\n",
    finish="</function>\n</tool_call>",
)
GLM = CallFormat(
    name="glm",
    style="pairs",
    openers=("<tool_call>",),
    head=regex.compile(r"\s*(?P<name>[^\s<]+)\s*(?=<arg_key>|</tool_call>)"),
    tail=regex.compile(r"\s*</tool_call>"),
    close="</tool_call>",
    begin="<tool_call>NAME\n",
    finish="</tool_call>",
)
LLAMA3 = CallFormat(
    name="llama3",
    style="json",
    openers=("<|python_tag|>",),
    head=regex.compile(r"\s*;?\s*" + _JSON_HEAD),
    tail=regex.compile(r"\s*\}"),
    is_section=True,
    leads=True,
    begin='{"name": "NAME", "parameters": ',
    finish="}",
    separator="; ",
)
MISTRAL = CallFormat(
    name="mistral",
    style="json",
    openers=("[TOOL_CALLS]",),
    head=regex.compile(r"\s*[\[,]\s*" + _JSON_HEAD),
    tail=regex.compile(r'\s*(?:,\s*"id"\s*:\s*"[^"\\]*"\s*)?\}'),
    end=regex.compile(r"\s*\]"),
    is_section=True,
    begin='{"name": "NAME", "arguments": ',
    finish="}",
    separator=", ",
    section_begin="[TOOL_CALLS][",
    section_end="]",
)
MISTRAL_ARGS = CallFormat(
    name="mistral_args",
    style="json",
    openers=("[TOOL_CALLS]",),
    head=regex.compile(
        r"\s*(?P<name>[^\s\[\{]+)\s*(?:\[CALL_ID\][^\s\[\{]+)?\[ARGS\]\s*(?P<args>\{)"
    ),
    tail=regex.compile(r""),
    begin="[TOOL_CALLS]NAME[ARGS]",
    finish="",
    separator="",
)
DEEPSEEK_V3 = CallFormat(
    name="deepseek_v3",
    style="json",
    openers=("<｜tool▁calls▁begin｜>",),
    head=regex.compile(
        r"\s*<｜tool▁call▁begin｜>\s*(?:function)?\s*<｜tool▁sep｜>(?P<name>[^\s`]+)"
        r"\s*```json\s*(?P<args>\{)"
    ),
    tail=regex.compile(r"\s*```\s*<｜tool▁call▁end｜>"),
    end=regex.compile(r"\s*<｜tool▁calls▁end｜>"),
    close="<｜tool▁calls▁end｜>",
    is_section=True,
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
    finish="\n```<｜tool▁call▁end｜>",
    section_begin="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
)
DEEPSEEK_V31 = CallFormat(
    name="deepseek_v3.1",
    style="json",
    openers=("<｜tool▁calls▁begin｜>",),
    head=regex.compile(
        r"\s*<｜tool▁call▁begin｜>\s*(?P<name>[^\s<]+)\s*<｜tool▁sep｜>\s*(?P<args>\{)"
    ),
    tail=regex.compile(r"\s*<｜tool▁call▁end｜>"),
    end=regex.compile(r"\s*<｜tool▁calls▁end｜>"),
    close="<｜tool▁calls▁end｜>",
    is_section=True,
    begin="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
    finish="<｜tool▁call▁end｜>",
    separator="",
    section_begin="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
)
