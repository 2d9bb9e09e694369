"""SmolLM2 under constraints, through the whole engine at temperature 1."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import jsonschema
import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel
from llm_engine.types import (
    ChatMessage,
    Constraint,
    GenerationRequest,
    SamplingParams,
    TextDelta,
    Tool,
    ToolUse,
)
from tests.llm_engine.structured.test_matcher import SCHEMAS

pytestmark = pytest.mark.slow
CITY = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
TOOLS = (Tool("get_weather", "The weather in a city.", CITY), Tool("get_time", "The time.", CITY))


@dataclass
class Answer:
    """What one choice added up to."""

    content: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    calls: list[list[str]] = field(default_factory=list)


@pytest.fixture(scope="module")
def answers_of(smollm2: LoadedModel) -> Callable[..., dict[tuple[str, int], Answer]]:
    engine = LLMEngine(smollm2, EngineConfig(model="x", dtype="float32", max_model_len=1024))

    def run(*requests: GenerationRequest) -> dict[tuple[str, int], Answer]:
        answers: dict[tuple[str, int], Answer] = {}
        for request_id, event in engine.generate(requests):
            if isinstance(event, TextDelta):
                answer = answers.setdefault((request_id, event.index), Answer())
                answer.content += event.text
                answer.num_tokens += len(event.token_ids)
                answer.finish_reason = event.finish_reason or answer.finish_reason
                for delta in event.tool_calls:
                    if delta.name is not None:
                        answer.calls.append([delta.name, ""])
                    answer.calls[delta.index][1] += delta.arguments
        engine.check_integrity()
        return answers

    return run


def ask(name: str, question: str, constraint=None, tools=None, **params) -> GenerationRequest:
    return GenerationRequest(
        name,
        (ChatMessage("user", question),),
        None,
        SamplingParams(**{"temperature": 1.0, "seed": 3, "max_tokens": 48, **params}),
        constraint=constraint,
        tools=tools,
    )


def test_twenty_schemas_at_once(answers_of) -> None:
    requests = [
        ask(f"s{i}", "Give an example.", Constraint("json_schema", json.dumps(schema)))
        for i, schema in enumerate(SCHEMAS)
    ]
    answers = answers_of(*requests)
    assert len(answers) == len(SCHEMAS) == 20
    num_ended = 0
    for (name, _), answer in answers.items():
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "stop":
            num_ended += 1
            jsonschema.validate(json.loads(answer.content), SCHEMAS[int(name[1:])])
        else:
            assert answer.num_tokens == 48
    assert num_ended >= 12


def test_regex_choice_and_grammar_for_two_choices(answers_of) -> None:
    lark = 'start: NUMBER ("+" NUMBER)?\nNUMBER: /[1-9][0-9]{0,2}/'
    answers = answers_of(
        ask("regex", "A phone number?", Constraint("regex", r"\d{3}-\d{4}"), n=2),
        ask("choice", "Is water wet?", Constraint("choice", '["yes", "no"]'), n=2),
        ask("grammar", "A sum?", Constraint("grammar", lark), n=2),
        ask("free", "Hello", n=2, max_tokens=8),
    )
    assert len(answers) == 8
    patterns = {"regex": r"[0-9]{3}-[0-9]{4}", "choice": "yes|no", "grammar": r"\d+(\+\d+)?"}
    for (name, _), answer in answers.items():
        if name != "free":
            assert re.fullmatch(patterns[name], answer.content)
            assert answer.finish_reason == "stop"


def test_limits_and_stops_end_a_bound_answer(answers_of) -> None:
    long_list = Constraint(
        "json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 200}'
    )
    answers = answers_of(
        ask("cut", "Numbers", long_list, max_tokens=5),
        ask("stop", "Letters", Constraint("regex", "[ab]{4}c[ab]{40}"), stop=("c",)),
        ask("eos", "Letters", Constraint("choice", '["a"]'), ignore_eos=True, min_tokens=9),
    )
    assert (answers["cut", 0].finish_reason, answers["cut", 0].num_tokens) == ("length", 5)
    assert re.fullmatch("[ab]{4}", answers["stop", 0].content)
    assert answers["stop", 0].finish_reason == "stop"
    assert (answers["eos", 0].content, answers["eos", 0].finish_reason) == ("a", "stop")


def test_required_and_named_calls(answers_of) -> None:
    question = "What is the weather in Paris?"
    answers = answers_of(
        ask("required", question, tools=ToolUse(TOOLS, mode="required", parallel=False), n=2),
        ask("named", question, tools=ToolUse(TOOLS, name="get_time")),
        ask("cut", question, tools=ToolUse(TOOLS, mode="required"), max_tokens=18),
    )
    for key in (("required", 0), ("required", 1), ("named", 0)):
        answer = answers[key]
        assert (answer.content, answer.finish_reason) == ("", "tool_calls")
        ((name, arguments),) = answer.calls
        assert name in ("get_weather", "get_time")
        jsonschema.validate(json.loads(arguments), json.loads(CITY))
    assert answers["named", 0].calls[0][0] == "get_time"
    assert answers["cut", 0].finish_reason == "length"


def test_a_bound_answer_does_not_depend_on_its_company(answers_of) -> None:
    bound = Constraint("json_schema", json.dumps(SCHEMAS[0]))
    alone = answers_of(ask("x", "Give an example.", bound, max_tokens=20))["x", 0]
    others = [ask(f"o{i}", "Hello", max_tokens=20, seed=i) for i in range(3)]
    together = answers_of(*others, ask("x", "Give an example.", bound, max_tokens=20))["x", 0]
    assert together.content == alone.content
