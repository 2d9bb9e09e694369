"""LoRA adapters against the same weights merged into the base model of transformers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.adapters.lora import LoraAdapter
from llm_engine.adapters.update import Update
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidRequest
from llm_engine.loader import load_model
from llm_engine.types import GenerationRequest, SamplingParams

NAMES = ("all", "queries", "patterns")


def _request(request_id: str, prompt: list[int], adapter: str | None) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        messages=None,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
        adapter=adapter,
    )


@pytest.mark.parametrize(
    "settings", [{}, {"prefill_chunk_tokens": 5}, {"max_num_seqs": 2}], ids=str
)
def test_a_mixed_batch_equals_merged_weights(
    kit: Any, tokens_of: Callable[..., dict[str, list[int]]], settings: dict[str, Any]
) -> None:
    """The same prompt with each adapter and none, and a second one, interleaved in one batch."""
    engine = kit.engine(**settings)
    prompts = {"x": list(range(40, 61)), "y": list(range(90, 97))}
    choices = [None, "all", "queries", "patterns"]
    asked = {f"{p} {a}": (prompts[p], a) for p in prompts for a in choices}
    events = engine.generate([_request(name, *what) for name, what in asked.items()])
    actual = tokens_of(events)
    expected = {name: kit.expected(a, prompt) for name, (prompt, a) in asked.items()}
    assert actual == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    engine.check_integrity()


def test_one_step_adds_to_the_rows_of_each_adapter_only() -> None:
    """Rows of one adapter apart from each other, beside rows of another and of none."""
    generator = torch.Generator().manual_seed(2)

    def make(name: str, rank: int) -> LoraAdapter:
        a = torch.randn(rank, 6, generator=generator)
        b = torch.randn(5, rank, generator=generator)
        return LoraAdapter(name, {(1, "out"): Update(a, b)})

    first, second = make("first", 2), make("second", 3)
    uses = [("first", 2), (None, 1), ("second", 3), ("first", 1), (None, 2)]
    step = AdapterSet([first, second]).for_step(uses)
    assert step is not None
    x = torch.randn(9, 6, generator=generator)
    y = torch.randn(9, 5, generator=generator)
    owners = [name for name, count in uses for _ in range(count)]
    expected = y.double()
    for row, owner in enumerate(owners):
        for adapter in (first, second):
            if adapter.name == owner:
                update = adapter.updates[1, "out"]
                delta = update.b_OR.double() @ (update.a_RI.double() @ x[row].double())
                expected[row] += delta
    actual = step.update(1, "out", x, y.clone())
    assert (actual - expected).abs().max() <= 1e-5
    untouched = [row for row, owner in enumerate(owners) if owner is None]
    assert torch.equal(actual[untouched], y[untouched])
    assert torch.equal(step.update(0, "out", x, y.clone()), y)


def test_a_cached_prefix_is_not_shared_between_adapters(
    kit: Any, tokens_of: Callable[..., dict[str, list[int]]]
) -> None:
    engine = kit.engine()
    prompt = list(range(40, 72))
    for adapter in (None, "all", None, "queries", "all"):
        tokens = tokens_of(engine.generate([_request("r", prompt, adapter)]))["r"]
        assert tokens == kit.expected(adapter, prompt)


def test_an_unknown_name_is_the_callers_fault_and_the_next_request_works(kit: Any) -> None:
    engine = kit.engine()
    with pytest.raises(InvalidRequest, match=r"'other', .* all, patterns, queries") as refusal:
        engine.add(_request("r", [50, 51], "other"))
    assert refusal.value.param == "adapter"
    assert engine.generate([_request("r", [50, 51], "all")])


def test_an_engine_without_adapters_says_so(tiny_engine: Callable[..., LLMEngine]) -> None:
    engine = tiny_engine()
    with pytest.raises(InvalidRequest, match="started with: none"):
        engine.add(_request("r", [50, 51], "all"))
    assert not any(decision.what == "lora" for decision in engine.ledger)


def test_the_ledger_names_what_adapters_cost(kit: Any) -> None:
    (decision,) = [d for d in kit.engine().ledger if d.what == "lora"]
    assert decision.case == "adapters=all,patterns,queries"
    assert decision.reasons


def test_steps_without_an_adapter_carry_no_update(kit: Any) -> None:
    loaded = load_model(EngineConfig(model=str(kit.base), adapters={"a": str(kit.base / "all")}))
    assert loaded.adapters.for_step([(None, 3), (None, 1)]) is None
    assert loaded.adapters.for_step([(None, 3), ("a", 1)]) is not None


def test_their_memory_is_counted(kit: Any) -> None:
    plain = load_model(EngineConfig(model=str(kit.base), dtype="float32"))
    folders = {"a": str(kit.base / "all")}
    more = load_model(EngineConfig(model=str(kit.base), dtype="float32", adapters=folders))
    layers, hidden, inner, heads, kv_heads = 3, 48, 80, 6 * 16, 2 * 16
    a_values = 4 * (5 * hidden + heads + inner)
    b_values = 4 * (3 * (heads + 2 * kv_heads) + hidden + 2 * (2 * inner) + hidden)
    assert more.weight_bytes - plain.weight_bytes == layers * 4 * (a_values + b_values)
