"""Back-tests: inputs against their sources, the arithmetic, honesty of the kinds, the page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.cost_model.exchange import bus_exchange
from kernels.cost_model.rates import flat_rates, product_rates
from kernels.hardware.products import load_product
from llm_engine.plan.backtest import cases, models
from llm_engine.plan.backtest.cases import Chain, Input, MalformedCase, Stage, read_chains
from llm_engine.plan.backtest.evaluate import evaluate
from llm_engine.plan.backtest.table import BEGIN, END, back_tests, page_with_tables
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.predict import Setting
from llm_engine.plan.search.prediction import StepSize
from llm_engine.plan.search.prompt import prompt_time
from llm_engine.plan.search.work import stage_work
from video_engine.plan import families as video
from video_engine.plan.request import ClipRequest

ROOT = Path(__file__).resolve().parents[2]
CHAINS = {chain.name: chain for chain in read_chains()}
# Figures of published claims that must be in the table, misses or not.
CLAIMS = {1932, 5850, 13274, 14546, 22584, 3236.78, 6222.72, 270000, 1050000, 141.6, 46.6, 2.48}
ANCHORS = {12500, 5540, 2870, 6287, 5283, 4315, 7196, 6853, 6012, 6301, 5982, 1641, 2060.1}
ANCHORS |= {2285.8, 2175.6, 1.244, 27126}


@pytest.fixture(scope="module")
def outcomes():
    return {name: evaluate(chain) for name, chain in CHAINS.items()}


@pytest.fixture(scope="module")
def tables():
    return back_tests()


def prefill(**changes):
    given = {"model": "deepseek-v4-flash", "context": 32768, "cards": 8, "card_tflops": 110.0}
    return models.Prefill(**{**given, "ring_gb_s": 41.0, "latency_us": 0.0, **changes})


def test_a_prompt_is_predicted_as_the_search_predicts_it():
    """Same functions, same figures: the search's time of a prompt on the same machine."""
    given = prefill(layout="cp-agrs", num_chunks=2)
    setting = Setting(
        rates=flat_rates(110e12, 1e18, 0),
        exchange=bus_exchange(41e9),
        num_devices=8,
    )
    layout = Layout(cp=8, experts="gather", num_chunks=2)
    steps = models.steps_of("deepseek-v4-flash")
    searched = prompt_time(steps, setting, layout, 8192, 32768)
    assert given.figure == pytest.approx(32768 / searched.seconds)


def test_a_rate_for_the_whole_step_is_what_a_card_computes():
    """One card, no exchange: its operations over its rate, indexer and head included."""
    alone = prefill(cards=1, context=8192)
    shape = models.steps_of("deepseek-v4-flash").at(
        StepSize(phase="prefill", rows=8192, context=8192)
    )
    groups = shape.phase("prefill").groups
    flops = sum(g.num_layers * u.count * u.cost.flops for g in groups for u in g.uses)
    assert 8192 / alone.figure == pytest.approx(flops / 110e12, rel=1e-6)


def test_hiding_everything_leaves_the_longer_side():
    """Of one step: overlap ends between that and both sides in turn."""
    serial, halves = prefill(context=8192), prefill(context=8192, num_chunks=2)
    everything = prefill(context=8192, hides_all=True)
    parts = serial.steps[0].parts
    wire_s = parts.wire + parts.latency
    assert 8192 / serial.figure == pytest.approx(parts.compute_s + wire_s)
    assert 8192 / everything.figure == pytest.approx(max(parts.compute_s, wire_s))
    assert serial.figure < halves.figure < everything.figure


def test_a_named_card_has_the_rates_of_its_tables():
    """Its kernels are no input of a chain: a gain is the only thing to add."""
    card = {"card_tflops": 0.0, "product": "rtx-pro-6000", "cards": 4}
    assert prefill(**card, kernel_gain=1.2).figure > prefill(**card).figure
    for wrong in ({"product": "rtx-pro-6000"}, {"card_tflops": 0.0}):
        with pytest.raises(ValueError, match="exactly one"):
            prefill(**wrong)


def test_prompts_side_by_side_keep_every_card_busy_in_attention():
    """Four ranks with prompts of their own: four take longer than one, and less than two."""
    own = {"layout": "dp-ep", "cards": 4, "chunk": 1024, "context": 8192}
    alone, four, five = (prefill(**own, prompts=count) for count in (1, 4, 5))
    assert 2 * alone.figure < four.figure < 4 * alone.figure
    together_s = 4 * 8192 / four.figure
    assert 5 * 8192 / five.figure == pytest.approx(together_s + 8192 / alone.figure)
    assert prefill(cards=4, prompts=3).figure == pytest.approx(prefill(cards=4).figure)


def test_a_format_that_the_table_does_not_know_changes_products_alone():
    card = {"card_tflops": 0.0, "product": "rtx-pro-6000", "cards": 4, "model": "glm-5.3"}
    known, slow = (prefill(**card, product_tflops=rate).steps[0].parts for rate in (0.0, 50.0))
    assert slow.gemm > 3 * known.gemm
    assert (slow.attention, slow.wire) == (known.attention, known.wire)


def test_without_the_replay_every_layer_computes_every_row():
    replay, whole = (
        models.steps_of("deepseek-v4.1-flash", all_layers=all_layers)
        for all_layers in (False, True)
    )
    assert (replay.facts.full_layers, whole.facts.full_layers) == (20, 40)
    step = StepSize(phase="prefill", rows=8192, context=8192)
    flops = [
        sum(
            g.num_layers * u.count * u.cost.flops
            for g in steps.at(step).phases[0].groups
            for u in g.uses
        )
        for steps in (replay, whole)
    ]
    assert 1.8 < flops[1] / flops[0] < 2.1
    assert replay.at(step).choices
    assert not whole.at(step).choices


# Milliseconds of 16,384 rows on one of four H100, by kernel (sglang#38884).
CAPTURED = {"moe_gemm": 209.1, "sparse_shared_kv": 81.3, "products": 75.1, "indexer_topk": 46.9}
CAPTURED_WIRE = 47.5


def test_each_captured_kernel_is_met_within_a_quarter():
    """Time by op of one chunk of the anchor: kernels that the capture names, and its exchanges."""
    inputs = {item.name: item.value for item in CHAINS["h100"].stages[0].inputs}
    steps = models.Prefill(**inputs).steps
    middle = steps[len(steps) // 2]
    shape = models.steps_of(inputs["model"]).at(middle.size)
    rates = product_rates(load_product(inputs["product"]), has_fp8_math=True)
    found = dict.fromkeys((*CAPTURED, "rest"), 0.0)
    for group in shape.phase("prefill").groups:
        for use in group.uses:
            alone = replace(group, uses=(use,))
            phase = replace(shape.phase("prefill"), groups=(alone,))
            work = stage_work(replace(shape, phases=(phase,)), middle.layout, middle.size, rates)
            is_product = use.op in ("gemm", "block_fp8_gemm", "attention_epilogue")
            op = "products" if is_product else use.op
            found[op if op in CAPTURED else "rest"] += work.total.total_s * 1e3
    for op, captured in CAPTURED.items():
        assert found[op] == pytest.approx(captured, rel=0.25), op
    assert middle.parts.wire * 1e3 == pytest.approx(CAPTURED_WIRE, rel=0.05)
    assert found["rest"] < 144.2, "small kernels: those that are not counted took longer"


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


def test_what_went_into_the_tables_is_no_prediction(outcomes, tables):
    """Rows whose own source the tables or inputs rest on: marked, shown, and not counted."""
    kinds = {name: [o.kind for o in found] for name, found in outcomes.items()}
    assert kinds["h100"] == ["calibrated"]
    assert kinds["v41-staircase"].count("calibrated") == 1
    counted = [kind for found in kinds.values() for kind in found].count("prediction")
    assert tables.startswith(f"{counted} predictions")
    assert tables.count("| calibrated |") == 2


def test_fewer_inputs_are_fitted_than_figures_predicted(outcomes):
    kinds = [outcome.kind for found in outcomes.values() for outcome in found]
    assert kinds.count("fit") < kinds.count("prediction")


def test_limits_lie_above_every_row_of_their_chain(outcomes):
    for found in outcomes.values():
        limits = [outcome.gain for outcome in found if outcome.kind == "limit"]
        assert all(outcome.gain <= limit for limit in limits for outcome in found)


def test_a_rate_used_in_two_chains_is_the_same(outcomes):
    fitted = next(
        o.fitted["card_tflops"] for o in outcomes["glm-pro6000"] if "card_tflops" in o.fitted
    )
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
    base, *_ = evaluate(replace(chain, stages=chain.stages[:1]))
    inside, below = (
        replace(
            chain.stages[1],
            inputs=(),
            published=share * base.predicted,
            range_to=3 * base.predicted,
        )
        for share in (0.5, 2.0)
    )
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
