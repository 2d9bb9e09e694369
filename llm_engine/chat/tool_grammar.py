"""The grammar of an answer with tool calls, in the written form of the family."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_engine.chat.formats import CallFormat
from llm_engine.chat.pair_grammar import pair_rules
from llm_engine.chat.reasoning_grammar import ANY_TEXT, ReasoningPrefix
from llm_engine.structured.bounds import CheckedSchema, OutOfBounds, load_schema
from llm_engine.structured.grammar import ANSWER, Grammar, schema_part
from llm_engine.structured.termination import check_terminates
from llm_engine.types import Tool, ToolUse

MAX_TOOLS = 128
CHEAP_TOOLS = 16


@dataclass(frozen=True, slots=True)
class CheckedTool:
    """A tool whose schema is within bounds."""

    tool: Tool
    schema: CheckedSchema


def check_tools(use: ToolUse) -> tuple[CheckedTool, ...]:
    """Check names and schemas.

    Raises: OutOfBounds naming the tool and the place in its schema.
    """
    if not 1 <= len(use.tools) <= MAX_TOOLS:
        raise OutOfBounds(f"tools has {len(use.tools)} entries, must have 1 to {MAX_TOOLS}")
    names = [tool.name for tool in use.tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise OutOfBounds(f"tools[{i}] has the name {name!r}, which an earlier one has")
    if use.name is not None and use.name not in names:
        raise OutOfBounds(f"tool_choice names {use.name!r}, but tools has {', '.join(names)}")
    return tuple(_checked(i, tool) for i, tool in enumerate(use.tools))


def is_bound(tools: Sequence[CheckedTool], use: ToolUse, answer: Grammar | None) -> bool:
    """Whether anything says what calls or the answer may be."""
    is_forced = use.mode == "required" or use.name is not None
    is_strict = any(tool.tool.strict for tool in tools)
    return is_forced or answer is not None or not use.parallel or is_strict


def offered_by(tools: Sequence[CheckedTool], use: ToolUse) -> list[CheckedTool]:
    """The tools that may be called: all, or the one that is named."""
    return [tool for tool in tools if use.name in (None, tool.tool.name)]


def call_grammar(
    form: CallFormat,
    tools: Sequence[CheckedTool],
    use: ToolUse,
    prefix: ReasoningPrefix,
    answer: Grammar | None = None,
) -> Grammar | None:
    """What the answer may be; None where nothing binds it.

    A required or named call is the whole answer. In auto mode, calls are followed from the moment
    they begin if any tool is strict or only one call is allowed; with a constraint, the answer is
    either calls or what the constraint says.
    """
    if not is_bound(tools, use, answer):
        return None
    is_forced = use.mode == "required" or use.name is not None
    offered = offered_by(tools, use)
    rules = _CallRules(form, prefix)
    for tool in offered:
        rules.add(tool)
    separator = form.separator if use.parallel and use.name is None else None
    if is_forced:
        rules.lines.append(f"body: {rules.calls(separator)}")
    elif answer is not None:
        rules.parts.update(answer.parts)
        rules.lines.append(f"body: {rules.calls(separator)} | @{ANSWER}")
    else:
        rules.lines += rules.free(separator)
    is_cheap = len(offered) <= CHEAP_TOOLS and all(tool.schema.is_cheap for tool in offered)
    return Grammar(
        rules.parts,
        start="\n".join([f"start: {prefix.lead}body", *rules.lines, *prefix.rules]),
        is_cheap=is_cheap and (answer is None or answer.is_cheap),
        param="tools",
    )


@dataclass(slots=True)
class _CallRules:
    form: CallFormat
    prefix: ReasoningPrefix
    parts: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    lines: list[str] = field(default_factory=list[str])
    num_tools: int = 0

    def add(self, tool: CheckedTool) -> None:
        """A rule `inside_i` from behind the opener to the end of the call."""
        i, form = self.num_tools, self.form
        self.num_tools += 1
        begin = form.begin.replace("NAME", tool.tool.name)
        inside = begin if form.is_section else begin.removeprefix(form.openers[0])
        if form.style == "json":
            schema = {"type": "object", **tool.schema.schema}
            self.parts[f"args_{i}"] = schema_part(schema, is_strict=tool.tool.strict)
            arguments = f"@args_{i}"
        else:
            arguments = f"pairs_{i}"
            parts, lines = pair_rules(f"pairs_{i}", form, tool.schema.schema, self.prefix)
            self.parts.update(parts)
            self.lines += lines
        self.lines.append(
            f"inside_{i}: {self._literal(inside)} {arguments} {self._literal(form.finish)}"
        )

    def calls(self, separator: str | None) -> str:
        """Calls from the opener on; several where there is a separator."""
        return f"{self._literal(self._opener)} {self._behind_opener(separator)}"

    def free(self, separator: str | None) -> list[str]:
        """Any text; from the opener on, calls and nothing behind them."""
        if self.form.leads:
            calls = self.calls(separator)
            return [f"body: NO_CALL | {calls}", r"NO_CALL: /([^\s{](?s:.*))?/"]
        opened = self.prefix.until("opened", self._opener)
        behind = self._behind_opener(separator)
        return [f"body: FREE_TEXT | opened {behind}", f"FREE_TEXT: {ANY_TEXT}", *opened]

    @property
    def _opener(self) -> str:
        """What a call or section begins with; empty where it may begin bare."""
        return "" if self.form.leads else self.form.openers[0]

    def _behind_opener(self, separator: str | None) -> str:
        form = self.form
        inside = "(" + " | ".join(f"inside_{i}" for i in range(self.num_tools)) + ")"
        between = "" if separator is None else self._literal(separator)
        if form.is_section:
            begin = self._literal(form.section_begin.removeprefix(self._opener))
            more = "" if separator is None else f"({between} {inside})*"
            return f"{begin} {inside} {more} {self._literal(form.section_end)}"
        more = "" if separator is None else f"({between} {self._literal(self._opener)} {inside})*"
        return f"{inside} {more}"

    def _literal(self, text: str) -> str:
        return self.prefix.vocabulary.literal(text) if text else ""


def _checked(index: int, tool: Tool) -> CheckedTool:
    try:
        schema = load_schema(tool.parameters, is_strict=tool.strict)
        check_terminates(schema.schema)
        kind = schema.schema.get("type", "object")
        if kind != "object":
            raise OutOfBounds(f"$.type is {json.dumps(kind)}, must be an object's")
    except OutOfBounds as error:
        raise OutOfBounds(f"tools[{index}].function.parameters: {error}") from error
    return CheckedTool(tool, schema)
