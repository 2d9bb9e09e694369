"""Conversations put into templates, compared with what transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from llm_engine.chat import formats
from llm_engine.chat.chat_format import ChatFormat
from llm_engine.chat.messages import short_id
from llm_engine.errors import InvalidRequest
from llm_engine.types import ChatMessage, Tool, ToolCall
from tests.llm_engine.chat import templates

TOOL = Tool("look_up", "Looks up <things> & more.", '{"type":"object","properties":{"q":{}}}')
AS_DICT = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up <things> & more.",
        "parameters": {"type": "object", "properties": {"q": {}}},
    },
}
CALL = ToolCall("call_1", "look_up", '{"q": "Łódź <b>"}')
TURNS = [
    ChatMessage("system", " Be kind & <short>. "),
    ChatMessage("user", "Ünïcode 🙂\n"),
    ChatMessage("assistant", "", tool_calls=(CALL,), reasoning="Look it up."),
    ChatMessage("tool", 'found: "it"', tool_call_id="call_1"),
    ChatMessage("assistant", "It is found. "),
    ChatMessage("user", "Thanks"),
]
PLAIN = [turn for turn in TURNS if turn.role != "tool" and not turn.tool_calls]
ALL = {
    "chatml": templates.CHATML,
    "qwen3": templates.QWEN3_LIKE,
    "opens": templates.OPENS_THINKING,
    "llama31": templates.LLAMA31_LIKE,
    "mistral": templates.MISTRAL_LIKE,
    "deepseek": templates.DEEPSEEK_LIKE,
}


def chat(name: str) -> ChatFormat:
    return ChatFormat(ALL[name], templates.SPECIAL)


def as_dict(message: ChatMessage, *, text: bool = False, short: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        entry["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        found = message.tool_call_id
        entry["tool_call_id"] = short_id(found) if short else found
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": short_id(call.id) if short else call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if text else json.loads(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return entry


def oracle(name: str, entries: list[dict[str, Any]], **variables: Any) -> str:
    rendered, _ = render_jinja_template(
        conversations=[entries],
        chat_template=ALL[name],
        **{"add_generation_prompt": True, **templates.SPECIAL, **variables},
    )
    return rendered[0]


@pytest.mark.parametrize("name", ALL)
def test_plain_turns_equal_transformers(name: str) -> None:
    assert chat(name).render(PLAIN) == oracle(name, [as_dict(turn) for turn in PLAIN])


@pytest.mark.parametrize("name", ["qwen3", "llama31", "mistral", "deepseek"])
def test_tool_turns_equal_transformers(name: str) -> None:
    entries = [as_dict(t, text=name == "deepseek", short=name == "mistral") for t in TURNS]
    ours = chat(name).render(TURNS, tools=[TOOL])
    assert ours == oracle(name, entries, tools=[AS_DICT])
    assert "look_up" in ours
    assert chat(name).family.knows_tools


@pytest.mark.parametrize("enabled", [True, False])
def test_options_reach_the_template(enabled: bool) -> None:
    ours = chat("qwen3").render(PLAIN, options={"enable_thinking": enabled})
    assert ours == oracle("qwen3", [as_dict(t) for t in PLAIN], enable_thinking=enabled)
    assert ours.endswith("</think>\n\n") is not enabled
    dated = chat("llama31").render(PLAIN, options={"date_string": "1 May 2000"})
    assert "Date: 1 May 2000" in dated


def test_options_cannot_replace_what_the_request_sets() -> None:
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        with pytest.raises(InvalidRequest, match=name) as raised:
            chat("qwen3").render(PLAIN, options={name: 1})
        assert raised.value.param == "template_options"


@pytest.mark.parametrize("content", ["It goes", "It goes ", " It\ngoes\n", "42"])
@pytest.mark.parametrize("name", ["chatml", "qwen3", "llama31", "mistral"])
def test_a_continued_message_equals_transformers(name: str, content: str) -> None:
    turns = [ChatMessage("user", "Go on: 42"), ChatMessage("assistant", content)]
    ours = chat(name).render(turns, continues_last=True)
    expected = oracle(
        name,
        [as_dict(turn) for turn in turns],
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert ours == expected
    assert ours.endswith(content.strip()) or ours.endswith(content)


@pytest.mark.parametrize(
    ("last", "match"),
    [
        (ChatMessage("user", "x"), "of role 'user'"),
        (ChatMessage("assistant", "", tool_calls=(CALL,)), "a tool call"),
    ],
)
def test_only_assistant_text_is_continued(last: ChatMessage, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as raised:
        chat("qwen3").render([ChatMessage("user", "x"), last], continues_last=True)
    assert raised.value.param == "continue_final_message"


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    hides = ChatFormat("{% for m in messages %}{{ m.role }}{% endfor %}", {})
    with pytest.raises(InvalidRequest, match="does not show the last message"):
        hides.render([ChatMessage("assistant", "x")], continues_last=True)


def test_families_are_told_by_their_markers() -> None:
    found = {name: chat(name).family for name in ALL}
    assert {name: family.calls.name for name, family in found.items()} == {
        "chatml": "hermes",
        "qwen3": "hermes",
        "opens": "hermes",
        "llama31": "llama3",
        "mistral": "mistral",
        "deepseek": "deepseek_v3",
    }
    assert [name for name, family in found.items() if not family.knows_tools] == ["chatml", "opens"]
    assert [name for name, family in found.items() if family.reasoning] == ["qwen3", "opens"]
    assert found["mistral"].short_ids
    xml = ChatFormat("{{ tools }}<tool_call><function=x><parameter=y>", {}).family
    assert xml.calls is formats.QWEN3_CODER
    pairs = ChatFormat("{{ tools }}<tool_call><arg_key>", {}).family
    assert pairs.calls is formats.GLM
    assert ChatFormat("{{ tools }}[TOOL_CALLS][ARGS]", {}).family.calls is formats.MISTRAL_ARGS
    v31 = ChatFormat("{{ tools }}<｜tool▁calls▁begin｜>", {}).family
    assert v31.calls is formats.DEEPSEEK_V31


def test_where_reasoning_stands() -> None:
    turns = (ChatMessage("user", "a <think> in a user's text"),)

    def start(name: str, messages=turns, *, continues: bool = False, **options: object) -> str:
        return chat(name).reasoning_start(messages, options, continues_last=continues)

    assert start("opens") == "open"
    assert start("qwen3") == "possible"
    assert start("qwen3", enable_thinking=False) == "off"
    assert start("chatml") == "off"
    begun = (*turns, ChatMessage("assistant", "<think>\nSo"))
    assert start("qwen3", begun, continues=True) == "open"
    ended = (*turns, ChatMessage("assistant", "<think>\nSo</think>Yes"))
    assert start("qwen3", ended, continues=True) == "off"


def test_a_template_without_tools_gets_them_as_text() -> None:
    text = chat("chatml").render(
        [*TURNS, ChatMessage("tool", "1"), ChatMessage("tool", "2")][1:], tools=[TOOL]
    )
    assert text.startswith("<|im_start|>system\nYou may call these functions.")
    assert json.dumps(AS_DICT, ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "look_up", "arguments": {"q": "Łódź <b>"}}\n</tool_call>' in text
    assert 'user\n<tool_response>\nfound: "it"\n</tool_response><|im_end|>' in text
    assert "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>" in text
    assert "|>tool" not in text
    kept = chat("chatml").render([ChatMessage("developer", "Be kind."), *PLAIN[1:]], tools=[TOOL])
    assert kept.startswith("<|im_start|>system\nBe kind.\n\nYou may call these functions.")


def test_a_template_that_loses_a_tools_result_is_refused() -> None:
    loses = ChatFormat(
        "{{ tools }}<tool_call>{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}"
        "{{ m.tool_calls }}{% endif %}{% endfor %}",
        {},
    )
    with pytest.raises(InvalidRequest, match=r"does not show messages\[3\]"):
        loses.render(TURNS)
    hides_calls = ChatFormat(
        "{{ tools }}<tool_call>{{ messages | map(attribute='content') | list }}", {}
    )
    with pytest.raises(InvalidRequest, match="does not show the call of 'look_up'"):
        hides_calls.render(TURNS)


def test_arguments_of_the_past_must_be_an_object() -> None:
    for bad in ("[1]", "{", "3"):
        turn = ChatMessage("assistant", "", tool_calls=(ToolCall("a", "f", bad),))
        with pytest.raises(InvalidRequest, match=r"messages\[1\].tool_calls\[0\].function.argum"):
            chat("qwen3").render([ChatMessage("user", "x"), turn])
        with pytest.raises(InvalidRequest, match="no JSON object"):
            chat("chatml").render([ChatMessage("user", "x"), turn])


@pytest.mark.parametrize("role", ["bot", "", "System", "function"])
def test_unknown_roles_are_refused(role: str) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\].role is .* must be one of system"):
        chat("chatml").render([ChatMessage("user", "x"), ChatMessage(role, "x")])


def test_developer_becomes_system_where_the_template_does_not_know_it() -> None:
    turns = [
        ChatMessage("system", "a"),
        ChatMessage("developer", "b"),
        ChatMessage("user", "c"),
        ChatMessage("developer", "d"),
    ]
    shows = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert ChatFormat(shows, {}).render(turns) == "[system]a\n\nb[user]c[system]d"
    knows = shows + "{% if false %}developer{% endif %}"
    assert ChatFormat(knows, {}).render(turns) == "[system]a[developer]b[user]c[developer]d"


def test_a_template_that_refuses_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="no user message to put the tools into"):
        chat("llama31").render([ChatMessage("system", "x")], tools=[TOOL])
    fails = ChatFormat("{{ messages[0].content + 1 }}", {})
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        fails.render([ChatMessage("user", "x")])
    broken = ChatFormat("{% for %}", {})
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        broken.render([ChatMessage("user", "x")])


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch PATH') }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('PATH', 'w') }}",
        "{{ messages.append({}) }}",
        "{% set x = messages[0].update({'content': 'y'}) %}",
    ],
)
def test_a_hostile_template_runs_no_code(attack: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        ChatFormat(attack.replace("PATH", str(mark)), {}).render([ChatMessage("user", "x")])
    assert not mark.exists()
