"""Packed weights through the native blocks: close to unpacked, the same however a batch is cut."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.native import library as native_library
from kernels.native.build import find_compiler
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.layers.bound_ops import STACK_REASON
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.step import Step
from llm_engine.layers.weight_form import choose_weights
from llm_engine.loader import LoadedModel, load_model
from llm_engine.weights.resolve import BUNDLED_NAME

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

PROMPT = torch.randint(0, 49000, (70,), generator=torch.Generator().manual_seed(1))


class Span:
    def __init__(self, start: int, num_tokens: int, pages: Sequence[int]) -> None:
        self.start, self.num_tokens, self.pages = start, num_tokens, pages


@pytest.fixture(scope="module")
def packed() -> LoadedModel:
    return load_model(EngineConfig(model=BUNDLED_NAME))


class Forward:
    """Hidden states and logits of spans over one native cache."""

    def __init__(self, loaded: LoadedModel, **kernels: str) -> None:
        config = EngineConfig(model=BUNDLED_NAME, kernels=kernels)
        self.model, self.config = loaded.model, loaded.model.config
        self.ops = decide(config, self.config, loaded.dtype, is_quantised=True).ops
        self.cache = NativeCache(self.config, 40, 16)

    @torch.inference_mode()
    def __call__(self, spans: list[Any], ids: torch.Tensor, adapters: Any = None) -> torch.Tensor:
        attend = NativeAttend(self.cache, spans, self.model.rotary)
        step = Step(ids, attend, adapters)
        return self.model.logits(self.model.hidden(step, self.ops), self.ops)


class NoUpdate:
    """An adapter that adds nothing: the step is composed of single ops all the same."""

    def __init__(self) -> None:
        self.parts: set[str] = set()

    def update(self, layer: int, part: str, x_NI: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        self.parts.add(part)
        return y_NO


def test_packed_logits_are_close_to_unpacked(packed: LoadedModel, smollm2_oracle: Any) -> None:
    """The bound is four times the error of bfloat16 weights and activations in transformers."""
    with torch.inference_mode():
        exact = smollm2_oracle(PROMPT[None]).logits[0]
        rounded = copy.deepcopy(smollm2_oracle).bfloat16()(PROMPT[None]).logits[0].float()
    ours = Forward(packed)([Span(0, 70, range(5))], PROMPT)
    assert (ours - exact).pow(2).mean() <= 16 * (rounded - exact).pow(2).mean()


def test_batches_and_chunks_change_no_bit(packed: LoadedModel) -> None:
    whole = Forward(packed)([Span(0, 70, range(5))], PROMPT)
    forward = Forward(packed)
    parts = [forward([Span(0, 33, [7, 2, 9, 4, 1])], PROMPT[:33])]
    both = [Span(33, 1, [7, 2, 9, 4, 1]), Span(0, 20, [20, 30])]
    rows = forward(both, torch.cat((PROMPT[33:34], PROMPT[:20])))
    assert torch.equal(rows[1:], whole[:20])
    parts += [rows[:1], forward([Span(34, 36, [7, 2, 9, 4, 1])], PROMPT[34:])]
    assert torch.equal(torch.cat(parts), whole)


def test_composed_blocks_agree_with_native_ones(packed: LoadedModel) -> None:
    native = Forward(packed)([Span(0, 70, range(5))], PROMPT)
    adapters = NoUpdate()
    composed = Forward(packed)([Span(0, 70, range(5))], PROMPT, adapters)
    asked = Forward(packed, attention_block="torch", mlp_block="torch")
    assert adapters.parts == {"qkv", "out", "gate_up", "down"}
    for other in (composed, asked([Span(0, 70, range(5))], PROMPT)):
        # Norms round differently, which a rounding to 8 bits may turn into a whole step.
        assert (native - other).pow(2).mean() <= 0.05 * native.var()


def test_one_call_for_all_layers_changes_no_bit(packed: LoadedModel) -> None:
    whole, cut = Forward(packed), Forward(packed)
    assert whole.ops.native_stack is not None
    cut.ops = replace(cut.ops, native_stack=None)
    spans: list[Any] = [Span(0, 20, [5, 2]), Span(0, 50, range(10, 14))]
    hidden = []
    for forward in (whole, cut):
        with torch.inference_mode():
            attend = NativeAttend(forward.cache, spans, forward.model.rotary)
            hidden.append(forward.model.hidden(Step(PROMPT, attend), forward.ops))
    assert torch.equal(*hidden)


def test_the_ledger_shows_what_runs(packed: LoadedModel) -> None:
    ops = Forward(packed).ops
    chosen = {d.what: d.chosen for d in ops.decisions}
    assert (chosen["attention_block"], chosen["mlp_block"]) == ("native", "native")
    assert chosen.keys().isdisjoint({"paged_prefill", "paged_decode", "rotary_insert"})
    assert STACK_REASON in ops.decisions[-1].reasons
    mixed = Forward(packed, mlp_block="torch").ops
    assert mixed.native_stack is None
    assert all(STACK_REASON not in d.reasons for d in mixed.decisions)
    with pytest.raises(InvalidConfig, match="paged_decode, but the engine runs"):
        Forward(packed, paged_decode="cpu")


CONFIG = EngineConfig(model="m")
CPU = EngineDevice.of("cpu")


@pytest.mark.parametrize(
    ("config", "is_quantised", "reason"),
    [
        (replace(CONFIG, dtype="float32"), True, "an explicit dtype means unpacked"),
        (CONFIG, False, "do not hold every linear map"),
        (replace(CONFIG, page_size=4), True, "page=4 is no multiple of 16"),
    ],
)
def test_weights_are_unpacked_for_a_reason(
    packed: LoadedModel, config: EngineConfig, is_quantised: bool, reason: str
) -> None:
    is_packed, decision = choose_weights(
        config, packed.model.config, CPU, is_quantised=is_quantised
    )
    assert (is_packed, decision.chosen, decision.source) == (False, "unpacked", "default")
    assert reason in "; ".join(decision.rejected[0].reasons)
    with pytest.raises(InvalidConfig, match=reason):
        choose_weights(
            replace(config, weights="packed"), packed.model.config, CPU, is_quantised=is_quantised
        )


def test_an_explicit_wish_is_met(packed: LoadedModel) -> None:
    for wish in ("packed", "unpacked"):
        config = replace(CONFIG, weights=wish)
        is_packed, decision = choose_weights(config, packed.model.config, CPU, is_quantised=True)
        assert (is_packed, decision.chosen, decision.source) == (wish == "packed", wish, "explicit")


def test_without_a_compiler_torch_runs_and_says_so(
    packed: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "no C++ compiler: looked for g++, clang++; install one"
    monkeypatch.setattr(native_library, "build_problem", lambda: problem)
    is_packed, decision = choose_weights(CONFIG, packed.model.config, CPU, is_quantised=True)
    assert not is_packed
    assert problem in "; ".join(decision.rejected[0].reasons)


def test_the_whole_engine_answers(
    packed: LoadedModel, make_request: Callable[..., Any], tokens_of: Callable[..., Any]
) -> None:
    """Alone, and among others: the same tokens."""
    from llm_engine.engine import LLMEngine

    requests = [
        make_request(str(i), PROMPT[: 20 + 7 * i].tolist(), temperature=0.0, max_tokens=8)
        for i in range(5)
    ]
    engine = LLMEngine(packed, EngineConfig(model=BUNDLED_NAME, prefill_chunk_tokens=32))
    together = tokens_of(engine.generate(requests))
    engine = LLMEngine(packed, EngineConfig(model=BUNDLED_NAME))
    for request in requests:
        alone = tokens_of(engine.generate([request]))
        assert alone[request.request_id] == together[request.request_id]
