"""Configurations read, and those that cannot be run refused with what can."""

from typing import Any

import pytest

from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import ModelConfig
from llm_engine.models.registry import MODELS, model_class

BASE: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}


def test_what_is_left_out_follows_from_the_rest() -> None:
    config = ModelConfig.from_mapping(BASE)
    assert (config.num_kv_heads, config.head_dim, config.max_position) == (2, 4, 4096)
    assert config.moe is None
    assert not config.has_head_norms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "longrope.*supported: default"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"vocab_size": None, "hidden_size": None}, "cannot be read"),
    ],
)
def test_what_it_cannot_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        ModelConfig.from_mapping(BASE | change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        ModelConfig.from_mapping({"hidden_size": 8, "num_attention_heads": 2})


SLIDES = "sliding_attention"
FULL = "full_attention"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sliding_window": 512}, {0, 1, 2, 3}),
        ({"sliding_window": None}, None),
        ({"sliding_window": 0}, None),
        ({"sliding_window": 512, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "use_sliding_window": True}, {0, 1, 2, 3}),
        ({"sliding_window": 512, "layer_types": [FULL] * 4}, None),
        ({"sliding_window": 512, "layer_types": [SLIDES, FULL, FULL, SLIDES]}, {0, 3}),
        (
            {"sliding_window": 512, "use_sliding_window": False, "layer_types": [SLIDES] * 4},
            None,
        ),
        ({"sliding_window": 4096}, None),
        ({"sliding_window": 512, "max_window_layers": 2}, {0, 1, 2, 3}),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            {3},
        ),
        (
            {
                "architectures": ["GptOssForCausalLM"],
                "sliding_window": 128,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
            {0, 2},
        ),
    ],
)
def test_which_layers_have_a_window(change: dict[str, Any], expected: set[int] | None) -> None:
    """A window as long as the context is none."""
    config = ModelConfig.from_mapping(BASE | {"num_hidden_layers": 4} | change)
    assert config.max_position == 4096
    assert (config.windows and set(config.windows.layers)) == expected
    if config.windows is not None:
        assert config.windows.tokens == change["sliding_window"]
        bounded = config.within_window()
        assert (bounded.windows, bounded.max_position) == (None, change["sliding_window"])


def test_fewer_layer_types_than_layers_are_refused() -> None:
    change = {"num_hidden_layers": 3, "sliding_window": 8, "layer_types": [SLIDES]}
    with pytest.raises(UnsupportedModel, match="layer_types names 1 layers, the model has 3"):
        ModelConfig.from_mapping(BASE | change)


def test_yarn_stretches_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = ModelConfig.from_mapping(BASE | {"rope_scaling": yarn})
    assert config.max_position == 16384
    assert config.rope.attention_factor == pytest.approx(1.13862943611)


def test_an_unknown_architecture_names_the_known() -> None:
    with pytest.raises(UnsupportedModel, match="supported: LlamaForCausalLM"):
        model_class("MambaForCausalLM")
    assert all(model_class(name).__name__ == cls for name, (_, cls) in MODELS.items())
