"""LoRA on experts, in both of PEFT's formats, against weights merged in float64."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import ModelConfig
from llm_engine.types import GenerationRequest, SamplingParams
from tests.llm_engine.watched_logits import assert_same_bits, served

NUM_EXPERTS, RANK, ALPHA, WIDE, INNER = 8, 3, 6, 48, 28
MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": INNER,
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
LAYERS = (1, 2)  # those with experts
PROMPT = list(range(40, 63))
Merged = dict[str, torch.Tensor]
Fault = tuple[Callable[[dict[str, torch.Tensor]], Any], dict[str, Any], str]


def _random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * 0.3


def _by_module(generator: torch.Generator, *, modules: tuple[str, ...], step: int = 1) -> Any:
    """One pair a projection of every `step`-th expert, and attention's queries beside them."""
    tensors: dict[str, torch.Tensor] = {}
    deltas: Merged = {}
    rows = {"gate_proj": slice(0, INNER), "up_proj": slice(INNER, None), "down_proj": slice(None)}
    for layer in LAYERS:
        experts = f"model.layers.{layer}.mlp.experts"
        for module in modules:
            is_down = module == "down_proj"
            num_in, num_out = (INNER, WIDE) if is_down else (WIDE, INNER)
            name = f"{experts}.{'down_proj' if is_down else 'gate_up_proj'}"
            height = WIDE if is_down else 2 * INNER
            delta = deltas.setdefault(name, torch.zeros(NUM_EXPERTS, height, num_in).double())
            for expert in range(0, NUM_EXPERTS, step):
                a, b = _random(generator, RANK, num_in), _random(generator, num_out, RANK)
                prefix = f"base_model.model.{experts}.{expert}.{module}"
                tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
                delta[expert, rows[module]] = b.double() @ a.double() * ALPHA / RANK
    for layer in range(3):
        a, b = _random(generator, RANK, WIDE), _random(generator, 96, RANK)
        prefix = f"model.layers.{layer}.self_attn.q_proj"
        tensors |= {
            f"base_model.model.{prefix}.lora_A.weight": a,
            f"base_model.model.{prefix}.lora_B.weight": b,
        }
        deltas[f"{prefix}.weight"] = b.double() @ a.double() * ALPHA / RANK
    return tensors, deltas


def _stacked(generator: torch.Generator, *, is_swapped: bool) -> Any:
    """One pair for all experts of a weight, as PEFT 0.18 and, swapped, as 0.19 reads it."""
    tensors: dict[str, torch.Tensor] = {}
    deltas: Merged = {}
    for layer in LAYERS:
        experts = f"model.layers.{layer}.mlp.experts"
        for weight, num_out, num_in, nesting in (
            ("gate_up_proj", 2 * INNER, WIDE, "base_layer."),
            ("down_proj", WIDE, INNER, ""),
        ):
            width_a, width_b = (num_in, num_out) if is_swapped else (num_out, num_in)
            a = _random(generator, NUM_EXPERTS * RANK, width_a)
            b = _random(generator, width_b, RANK * NUM_EXPERTS)
            prefix = f"base_model.model.{experts}.{nesting}lora"
            tensors |= {f"{prefix}_A.weight": a, f"{prefix}_B.weight": b}
            pair = (
                b.double().reshape(width_b, RANK, NUM_EXPERTS),
                a.double().reshape(NUM_EXPERTS, RANK, width_a),
            )
            equation = "ore,eri->eoi" if is_swapped else "ore,eri->eio"
            deltas[f"{experts}.{weight}"] = torch.einsum(equation, *pair) * ALPHA / RANK
    return tensors, deltas


ADAPTERS: dict[str, Callable[[torch.Generator], Any]] = {
    "all": lambda g: _by_module(g, modules=("gate_proj", "up_proj", "down_proj")),
    "some": lambda g: _by_module(g, modules=("up_proj",), step=3),
    "0.18": lambda g: _stacked(g, is_swapped=False),
    "0.19": lambda g: _stacked(g, is_swapped=True),
}


class _Kit:
    """A tiny base model with experts, its adapters, and what merged weights give."""

    def __init__(self, oracle: Any, base: Path) -> None:
        self.oracle, self.base = oracle, base
        self.deltas: dict[str, Merged] = {}
        for seed, (name, make) in enumerate(ADAPTERS.items()):
            tensors, self.deltas[name] = make(torch.Generator().manual_seed(seed))
            write(base / name, tensors)

    def engine(self, **settings: Any) -> LLMEngine:
        folders = {name: str(self.base / name) for name in ADAPTERS}
        settings = {"page_size": 4, "prefill_chunk_tokens": 16, "speculation": "off", **settings}
        config = EngineConfig(model=str(self.base), dtype="float32", adapters=folders, **settings)
        return LLMEngine.load(config)

    def expected(self, adapter: str | None, num_steps: int = 10) -> tuple[list[int], Any]:
        """Greedy tokens under merged weights, and the logits of all positions before them."""
        deltas = self.deltas.get(adapter or "", {})
        saved = {name: self.oracle.get_parameter(name).detach().clone() for name in deltas}
        tokens, logits = list(PROMPT), None
        with torch.no_grad():
            for name, delta in deltas.items():
                self.oracle.get_parameter(name).add_(delta)
            for _ in range(num_steps):
                logits = self.oracle(torch.tensor([tokens])).logits[0]
                tokens.append(int(logits[-1].argmax()))
            for name, weight in saved.items():
                self.oracle.get_parameter(name).copy_(weight)
        return tokens[len(PROMPT) :], logits


def write(folder: Path, tensors: dict[str, torch.Tensor], **settings: Any) -> None:
    """A PEFT folder of these tensors."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "adapter_model.safetensors")  # fmt: skip


def _request(name: str, adapter: str | None, **params: Any) -> GenerationRequest:
    params = {"temperature": 0.0, "max_tokens": 10, "ignore_eos": True, **params}
    return GenerationRequest(
        request_id=name,
        messages=None,
        prompt_token_ids=tuple(PROMPT),
        params=SamplingParams(**params),
        adapter=adapter,
    )


@pytest.fixture(scope="module")
def kit(
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> _Kit:
    base = tmp_path_factory.mktemp("base")
    oracle = make_tiny(**MOE)
    oracle.save_pretrained(base)
    save_byte_tokenizer(base)
    return _Kit(oracle, base)


def test_a_mixed_batch_equals_merged_weights(
    kit: _Kit, tokens_of: Callable[..., dict[str, list[int]]]
) -> None:
    engine = kit.engine()
    choices = [None, *ADAPTERS, None]
    requests = [_request(f"{i} {name}", name) for i, name in enumerate(choices)]
    actual = tokens_of(engine.generate(requests))
    expected = {f"{i} {name}": kit.expected(name)[0] for i, name in enumerate(choices)}
    assert actual == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == len(ADAPTERS) + 1
    engine.check_integrity()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_logits_are_those_of_merged_weights(kit: _Kit, adapter: str) -> None:
    tokens, expected = kit.expected(adapter)
    answer, seen = served(kit.engine(prefill_chunk_tokens=7), _request("a", adapter))
    assert answer == tokens
    for position in range(len(PROMPT), len(expected) + 1):
        assert (seen[position][-1] - expected[position - 1]).abs().max() <= 2e-4


def test_they_keep_rows_apart_in_the_batch_invariant_mode(kit: _Kit) -> None:
    wanted = _request("a", "0.19", temperature=0.8, seed=5)
    alone = served(kit.engine(batch_invariant=True), wanted)
    engine = kit.engine(batch_invariant=True, prefill_chunk_tokens=5)
    others = [_request(f"o{i}", name, seed=i) for i, name in enumerate((None, *ADAPTERS, "0.19"))]
    assert_same_bits(alone, served(engine, wanted, *others), len(PROMPT))


FAULTS: dict[str, Fault] = {
    "expert 8": (
        lambda t: {k.replace("experts.7", "experts.8"): v for k, v in t.items()},
        {},
        r"adapts mlp\.experts\.8\.\w+ of layer 1, which has .*o_proj.*, and those of 8 experts",
    ),
    "dense layer": (
        lambda t: {k.replace("layers.1.mlp", "layers.0.mlp"): v for k, v in t.items()},
        {},
        r"mlp\.experts\.0\.down_proj of layer 0, which has mlp\.down_proj, .*self_attn\.v_proj$",
    ),
    "router": (
        lambda t: {"base_model.model.model.layers.1.mlp.gate.lora_A.weight": torch.zeros(3, 48)},
        {},
        r"adapts mlp\.gate of layer 1",
    ),
}
STACKED_FAULTS: dict[str, Fault] = {
    "no B": (
        lambda t: {k: v for k, v in t.items() if "layers.2.mlp.experts.lora_B" not in k},
        {},
        r"layers\.2\.mlp\.experts\.lora_A alone",
    ),
    "other rank": (lambda t: t, {"r": 2}, "8 experts of rank 2 ask for 16"),
    "patterns": (lambda t: t, {"rank_pattern": {"experts": 2}}, "rank_pattern and alpha_pattern"),
    "widths": (lambda t: {k: v[:, :47] for k, v in t.items()}, {}, "experts have 56 x 48, 48 x 28"),
    "dense layer": (
        lambda t: {k.replace("layers.1.", "layers.0."): v for k, v in t.items()},
        {},
        "layer 0 has no experts",
    ),
}


@pytest.mark.parametrize(
    ("source", "fault"),
    [("all", fault) for fault in FAULTS] + [("0.19", fault) for fault in STACKED_FAULTS],
)
def test_what_does_not_fit_is_named(kit: _Kit, tmp_path: Path, source: str, fault: str) -> None:
    change, settings, message = (FAULTS if source == "all" else STACKED_FAULTS)[fault]
    tensors = load_file(kit.base / source / "adapter_model.safetensors")
    write(tmp_path / "a", change(tensors), **settings)
    config = ModelConfig.from_mapping(json.loads((kit.base / "config.json").read_text()))
    with pytest.raises(UnsupportedModel, match=message):
        AdapterSet.load({"a": str(tmp_path / "a")}, config, torch.float32)
