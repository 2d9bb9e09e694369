"""What a plan derives from a config, against figures that were published or counted elsewhere."""

import math

import pytest
from safetensors import safe_open

from llm_engine.errors import UnsupportedModel
from llm_engine.plan.families import FAMILIES, describe, preset, preset_names
from llm_engine.plan.request import PlanRequest
from video_engine.plan import families as video
from video_engine.plan.request import ClipRequest

K = 1024

# Billions of weights: counted on transformers' and diffusers' classes, or published.
PARAMETERS = {
    "smollm2-135m-instruct": 0.1345,
    "qwen3-0.6b": 0.596,
    "qwen3-30b-a3b": 30.5,
    "gpt-oss-20b": 20.9,
    "deepseek-v3.2": 671.9,
    "deepseek-v4-flash": 284.33,
    "deepseek-v4.1-flash": 552 + 197,
    "glm-5.3": 743.9,
}
VIDEO_PARAMETERS = {"minimax-h3": 33.123, "wan2.2-i2v-a14b": 2 * 14.3, "wan2.2-ti2v-5b": 5.0}

CACHE_BYTES = [
    ("deepseek-v4-flash", "fp8", 3850),
    ("deepseek-v4-flash", "bf16", 6880),
    ("deepseek-v4.1-flash", "fp8", 890),
    ("deepseek-v4.1-flash", "bf16", 3 * (1024 + 256) / 2 + 1024 + 256),
    ("deepseek-v3.2", "bf16", 85_888),
    ("deepseek-v3.2", "fp8", 48_068),
    ("glm-5.3", "bf16", 95_232),
    ("glm-5.3", "fp8", 53_940),
    ("gpt-oss-20b", "bf16", 12 * 2 * 8 * 64 * 2),  # half of the layers keep a window instead
]

# Mean GFLOP a token over a causal prompt, without the head.
V4_TOTAL = [(4, 27.8), (8, 28), (16, 28.5), (64, 31.1), (128, 34.6), (256, 41.6), (1024, 83.5)]
V4_INDEXER = [(8, 0.35), (64, 2.82), (1024, 45.10)]
CORES = [("deepseek-v3.2", 64, 34.8, 32.7), ("glm-5.3", 64, 22.2, 20.9 * 21 / 78)]
LINEAR = [("deepseek-v4-flash", 25.5), ("deepseek-v3.2", 73.1), ("glm-5.3", 79.8)]
CORE_OPS = {"sparse_shared_kv", "sparse_mla", "indexer_topk", "paged_prefill"}


def shape(name, context=8 * K, cache="fp8"):
    request = PlanRequest(prefill_tokens=context, context=context, cache=cache)
    return describe(preset(name), request, name=name)


def gflop_per_token(model, ops=None, without=frozenset()):
    phase = model.phase("prefill")
    total = sum(
        group.num_layers * use.count * use.cost.flops
        for group in phase.groups
        if group.name != "head and sampler"
        for use in group.uses
        if use.op not in without and (ops is None or use.op in ops)
    )
    return total / phase.rows / 1e9


@pytest.mark.parametrize("name", preset_names())
def test_weights_of_a_language_model_add_up(name):
    assert shape(name).parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize("name", sorted(VIDEO_PARAMETERS))
def test_weights_of_a_video_model_add_up(name):
    found = video.describe(video.preset(name), ClipRequest(), name=name)
    assert found.parameters / 1e9 == pytest.approx(VIDEO_PARAMETERS[name], rel=0.01)


def test_the_plan_of_motion_small_has_the_weights_that_are_shipped():
    folder = video.SHIPPED["motion-small"] / "transformer"
    with safe_open(folder / "diffusion_pytorch_model.safetensors", "np") as file:
        stored = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    planned = video.describe(video.preset("motion-small"), ClipRequest(), name="motion-small")
    assert planned.parameters == pytest.approx(stored, rel=0.01)


@pytest.mark.parametrize(("name", "cache", "size"), CACHE_BYTES)
def test_a_token_takes_the_published_bytes_of_cache(name, cache, size):
    assert shape(name, cache=cache).cache_bytes_per_token == pytest.approx(size, abs=0.5)


def test_the_window_of_v4_is_a_fixed_size():
    groups = {rows.name: rows for rows in shape("deepseek-v4-flash").rows}
    assert groups["window"].bytes_per_sequence == 43 * 128 * 584


def test_a_page_of_v4_holds_whole_rows_of_every_group():
    rows = {group.name: group for group in shape("deepseek-v4-flash").rows}
    assert rows["sparse rows"].page_tokens == 256
    assert rows["sparse rows"].rows_per_page == 64
    assert rows["indexer keys"].rows_per_page == 64
    assert rows["compressed rows"].rows_per_page == 2


@pytest.mark.parametrize(("context", "gflop"), V4_TOTAL)
def test_work_of_v4_at_every_context(context, gflop):
    found = gflop_per_token(shape("deepseek-v4-flash", context * K))
    assert found == pytest.approx(gflop, rel=0.01)


@pytest.mark.parametrize(("context", "gflop"), V4_INDEXER)
def test_work_of_the_indexer_of_v4(context, gflop):
    found = gflop_per_token(shape("deepseek-v4-flash", context * K), {"indexer_topk"})
    assert found == pytest.approx(gflop, rel=0.02)


@pytest.mark.parametrize(("name", "context", "core", "search"), CORES)
def test_work_of_latent_attention(name, context, core, search):
    model = shape(name, context * K)
    assert gflop_per_token(model, {"sparse_mla"}) == pytest.approx(core, rel=0.01)
    assert gflop_per_token(model, {"indexer_topk"}) == pytest.approx(search, rel=0.01)


@pytest.mark.parametrize(("name", "gflop"), LINEAR)
def test_linear_work(name, gflop):
    assert gflop_per_token(shape(name), without=CORE_OPS) == pytest.approx(gflop, rel=0.02)


def test_the_bounded_replay_of_v41_halves_the_linear_work():
    long = shape("deepseek-v4.1-flash", 256 * K)
    assert gflop_per_token(long, without=CORE_OPS) == pytest.approx(16, rel=0.03)
    assert gflop_per_token(long, {"sparse_shared_kv"}) == pytest.approx(1.5, rel=0.05)


def test_work_of_h3_at_fifteen_seconds():
    clip = ClipRequest(width=1344, height=768, num_frames=345)
    denoise = video.describe(video.preset("minimax-h3"), clip, name="h3").phase("denoise")
    total = sum(g.num_layers * u.count * u.cost.flops for g in denoise.groups for u in g.uses)
    core = sum(
        g.num_layers * u.count * u.cost.flops
        for g in denoise.groups
        for u in g.uses
        if u.op == "full_attention"
    )
    assert denoise.rows == pytest.approx(105_500, rel=0.01)
    assert total / 1e15 == pytest.approx(19.9, rel=0.03)
    assert core / total == pytest.approx(0.80, abs=0.01)


def test_glm5_next_is_laid_out_from_its_config():
    kinds = ["indexed_attention" if i % 4 == 3 else "linear_attention" for i in range(45)]
    text = {
        "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "num_hidden_layers": 45, "num_attention_heads": 64, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
        "n_routed_experts": 288, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "swiglu_limit": 10.0, "linear_num_heads": 64,
        "linear_head_dim": 128, "hc_mult": 4, "vocab_size": 154880, "layer_types": kinds,
    }  # fmt: skip
    raw = {"model_type": "glm5_next", "text_config": text}
    found = describe(raw, PlanRequest(), name="glm-5.3-flash")
    state = {rows.name: rows for rows in found.rows}["recurrent state"]
    assert state.bytes_per_sequence / 1e6 == pytest.approx(142.6, abs=0.1)
    assert found.parameters / 1e9 == pytest.approx(313.8, rel=0.01)
    assert "kda" in {use.op for group in found.phases[0].groups for use in group.uses}


@pytest.mark.parametrize("name", preset_names())
def test_every_layer_has_attention_and_an_mlp(name):
    model = shape(name)
    raw = preset(name)
    num_layers = (raw.get("text_config") or raw)["num_hidden_layers"]
    for phase in model.phases:
        seen = [layer for group in phase.groups for layer in group.layers]
        assert all(seen.count(layer) >= 2 for layer in range(num_layers))


def test_a_config_without_a_size_is_refused_by_its_name():
    raw = preset("qwen3-0.6b")
    del raw["hidden_size"]
    with pytest.raises(UnsupportedModel, match="hidden_size"):
        describe(raw, PlanRequest(), name="broken")


def test_v4_without_its_layer_pattern_is_refused():
    raw = preset("deepseek-v4-flash")
    del raw["compress_ratios"]
    with pytest.raises(UnsupportedModel, match="class default is another model's pattern"):
        describe(raw, PlanRequest(), name="broken")


def test_an_unknown_family_lists_those_known():
    with pytest.raises(UnsupportedModel) as refusal:
        describe({"model_type": "gpt2"}, PlanRequest(), name="gpt2")
    assert all(family in str(refusal.value) for family in FAMILIES)


def test_a_chunk_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="prefill_tokens 10 is above context 5"):
        PlanRequest(prefill_tokens=10, context=5)
