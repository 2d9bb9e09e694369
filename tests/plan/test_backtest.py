"""Back-tests: inputs against their sources, the arithmetic, honesty of the kinds, the page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm_engine.plan.backtest import cases, models
from llm_engine.plan.backtest.cases import Chain, Input, MalformedCase, Stage, read_chains
from llm_engine.plan.backtest.evaluate import evaluate
from llm_engine.plan.backtest.table import BEGIN, END, back_tests, page_with_tables
from video_engine.plan import families as video
from video_engine.plan.request import ClipRequest

ROOT = Path(__file__).resolve().parents[2]
CHAINS = {chain.name: chain for chain in read_chains()}
# Figures of published claims that must be in the table, misses or not.
CLAIMS = {1932, 5850, 13274, 14546, 22584, 3236.78, 6222.72, 270000, 1050000, 141.6, 46.6, 2.48}
ANCHORS = {12500, 2000, 5300, 1641, 1.244}


@pytest.fixture(scope="module")
def outcomes():
    return {name: evaluate(chain) for name, chain in CHAINS.items()}


@pytest.fixture(scope="module")
def tables():
    return back_tests()


def prefill(**changes):
    given = {"model": "deepseek-v4-flash", "context": 32768, "cards": 8, "card_tflops": 110.0}
    return models.Prefill(**{**given, "ring_gb_s": 41.0, "latency_us": 0.0, **changes})


@pytest.mark.parametrize(
    ("model", "layout", "kilobytes"),
    [
        ("deepseek-v4-flash", "tp", 1233),
        ("deepseek-v4-flash", "cp-agrs", 662),
        ("deepseek-v4-flash", "cp-ep", 385),
        ("glm-5.3", "tp", 3355),
        ("glm-5.3", "cp-agrs", 1759),
        ("glm-5.3", "cp-ep", 1183),
        ("deepseek-v4.1-flash", "tp", 717),
    ],
)
def test_bytes_on_the_wire_are_the_published_ones(model, layout, kilobytes):
    sent = prefill(model=model, layout=layout, ring_gb_s=1.0, fan_ratio=1.0).wire_s * 1e9
    assert sent / 1e3 == pytest.approx(kilobytes, rel=0.002)


def test_serial_and_overlapped_rates_follow_from_their_parts():
    serial = prefill()
    assert 1 / serial.figure == pytest.approx(serial.compute_s + serial.wire_s)
    # 110 TF a card and 41 GB/s: 15.2 -> 24.0 thousand tokens a second at 80 % of overlap, with
    # 31.4 GF a token where the op costs count 29.4.
    assert serial.figure == pytest.approx(15200, rel=0.05)
    assert prefill(hidden=0.8).figure == pytest.approx(24000, rel=0.07)
    whole = prefill(hidden=1.0)
    assert 1 / whole.figure == pytest.approx(max(whole.compute_s, whole.wire_s))


def test_every_published_figure_is_there():
    found = {
        figure
        for chain in CHAINS.values()
        for stage in chain.stages
        for figure in (stage.published, stage.published_gain)
    }
    assert found >= CLAIMS | ANCHORS


def test_a_fit_meets_its_figure_and_only_a_fit_has_a_fitted_input(outcomes):
    for found in outcomes.values():
        for outcome in found:
            has_fitted = any(item.basis == "fitted" for item in outcome.stage.inputs)
            assert (outcome.kind == "fit") == has_fitted == bool(outcome.fitted)
            if has_fitted:
                assert abs(outcome.error) < 0.01


def test_fewer_inputs_are_fitted_than_figures_predicted(outcomes):
    kinds = [outcome.kind for found in outcomes.values() for outcome in found]
    assert kinds.count("fit") < kinds.count("prediction")


def test_limits_lie_above_every_row_of_their_chain(outcomes):
    for found in outcomes.values():
        limits = [outcome.gain for outcome in found if outcome.kind == "limit"]
        assert all(outcome.gain <= limit for limit in limits for outcome in found)


def test_a_rate_used_in_two_chains_is_the_same(outcomes):
    fitted = outcomes["pro6000"][-1].fitted["card_tflops"]
    kernels = CHAINS["v41-staircase"].stages[1].inputs[0]
    assert kernels.value == pytest.approx(fitted, abs=0.5)


@pytest.mark.parametrize(("name", "frames"), [("h3-clip", 362), ("h3-h20", 124)])
def test_work_of_a_clip_is_what_the_video_plan_counts(name, frames):
    shape = video.describe(video.preset("minimax-h3"), ClipRequest(num_frames=frames), name="h3")
    groups = shape.phase("denoise").groups
    given = {item.name: item.value for item in CHAINS[name].stages[0].inputs}
    for key, op in (("linear_pflop", "gemm"), ("attention_pflop", "full_attention")):
        uses = ((g.num_layers, u) for g in groups for u in g.uses if u.op == op)
        counted = sum(layers * u.count * u.cost.flops for layers, u in uses) / 1e15
        assert given[key] == pytest.approx(counted, rel=0.01)


def test_errors_are_measured_from_the_nearer_end_of_a_range():
    chain = CHAINS["pro6000"]
    inside = replace(chain.stages[1], published=10000.0, range_to=20000.0)
    below = replace(chain.stages[1], published=25000.0, range_to=30000.0)
    _, first, second = evaluate(replace(chain, stages=(chain.stages[0], inside, below)))
    assert first.error == 0.0
    assert second.error == pytest.approx(-0.5, abs=1e-4)


def stage(*inputs, **fields):
    return Stage(label="a", factor="base", inputs=inputs, **fields)


def chain(*stages, predictor="capacity"):
    texts = dict.fromkeys(("title", "unit", "source", "hardware", "forced"), "x")
    return Chain(name="c", predictor=predictor, stages=stages, **texts)


MODEL = Input(name="model", value="glm-5.3", basis="published")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (stage(MODEL, Input(name="shards", value=2, basis="assumed")), "memory_gb"),
        (stage(MODEL, Input(name="colour", value=2, basis="assumed")), "colour"),
        (
            stage(MODEL, Input(name="memory_gb", value=None, basis="fitted"), published=1e12),
            "no memory_gb gives 1e\\+12",
        ),
        (
            stage(MODEL, Input(name="shards", value=None, basis="fitted"), published=1.0),
            "no input that can be fitted",
        ),
    ],
)
def test_a_chain_that_cannot_be_evaluated_says_why(bad, words):
    with pytest.raises(MalformedCase, match=words):
        evaluate(chain(bad))


def test_a_fit_without_a_published_figure_is_refused(tmp_path):
    text = cases.CASES.read_text().replace("published = 1932\n", "")
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(MalformedCase, match="only to a published figure"):
        read_chains(tmp_path / "cases.toml")


def test_an_unknown_basis_is_refused(tmp_path):
    text = cases.CASES.read_text().replace('basis = "measured"', 'basis = "felt"', 1)
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(MalformedCase, match="felt"):
        read_chains(tmp_path / "cases.toml")


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="layouts are tp"):
        prefill(layout="diagonal")


def test_the_page_holds_the_tables_of_now(tables):
    page = (ROOT / "docs" / "planning.md").read_text()
    assert tables in page
    assert page_with_tables(f"a\n{BEGIN}\nstale\n{END}\nb") == f"a\n{BEGIN}\n\n{tables}\n{END}\nb"


def test_a_page_without_marks_is_refused(tables):
    with pytest.raises(ValueError, match="needs the lines"):
        page_with_tables(f"{BEGIN} and no end")
    assert BEGIN not in tables
    assert END not in tables


def test_every_row_of_a_table_has_all_its_cells(tables):
    for line in tables.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 9
