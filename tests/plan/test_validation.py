"""Validation: nothing predicted was measured, gates open and shut, layouts compute the same."""

import json
import os
from dataclasses import replace

import pytest

from kernels.calibration.computing import grid
from kernels.calibration.crew import Crew, CrewFailed
from kernels.calibration.talking import OPERATIONS, SIZES_BYTES
from kernels.calibration.together import predict
from kernels.calibration.work import Fit
from tests.kernels.calibration.planted import planted
from workers.planning.validation.layouts import layouts_of
from workers.planning.validation.report import Report, Row
from workers.planning.validation.toys import TOYS, Toy
from workers.planning.validation.tracing import trace, with_seconds
from workers.planning.validation.validate import plans_of, validate

PLANS = plans_of(TOYS)


@pytest.fixture(scope="session")
def calibration():
    """Planted constants, with the sizes that a real one has seen."""
    line = Fit(constants=(1e-4, 0.0), error=0.0, num_samples=6)
    kinds = {work.kind for work in grid()}
    return planted(
        wire=dict.fromkeys(OPERATIONS, line),
        wire_busy=dict.fromkeys(OPERATIONS, line),
        computing_lost=dict.fromkeys(OPERATIONS, line),
        balance_bytes_s=7e7,
        seen_bytes_s=(3e7,),
        seen_sizes={k: tuple(w.sizes for w in grid() if w.kind == k) for k in kinds},
    )


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_no_work_and_no_message_of_a_plan_was_measured_by_the_calibration(plan, calibration):
    schedule, works = trace(plan)
    measured = set(grid())
    assert not measured & {work for own in works.values() for work in own}
    sizes = {node.size_bytes for node in schedule.nodes if node.kind == "collective"}
    assert sizes
    assert not sizes & set(SIZES_BYTES)
    timeline = predict(with_seconds(schedule, works, calibration), calibration, 7e7)
    computing_s = sum(s.end_s - s.begin_s for s in timeline.spans if s.node.rank == 0) / 2
    assert timeline.duration_s > 0
    assert computing_s > 0


def test_a_prediction_from_its_own_measurement_is_refused(calibration):
    schedule, works = trace(PLANS[0])
    seen = next(work for own in works.values() for work in own)
    circular = replace(calibration, seen_sizes={seen.kind: (seen.sizes,)})
    with pytest.raises(ValueError, match="was measured by the calibration itself"):
        with_seconds(schedule, works, circular)


def row(plan, predicted_s, measured_s, **changes):
    """A row of one toy at one rate."""
    given = {
        "group": "toy",
        "plan": plan,
        "rate_bytes_s": 1e8,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "predicted_core_s": predicted_s / 2,
        "measured_core_s": measured_s / 2,
        "spread": 0.01,
        "num_runs": 5,
        "disturbed": 0.0,
        "order": "",
    }
    return Row(**(given | changes))


def report(*rows):
    """A report of these rows."""
    return Report(
        rows=rows,
        machine="here",
        calibrated="today",
        calibration_disturbed=0.0,
        load=0.5,
        drift=0.0,
        made="today",
        duration_s=1.0,
    )


def test_good_predictions_open_the_gates():
    found = report(row("a", 1.0, 1.1), row("b", 2.0, 1.9), row("c", 3.0, 3.0))
    assert found.failures == ()
    assert found.agreement == 1.0
    assert found.regret == 0.0
    assert found.mean_error == pytest.approx((1 / 11 + 1 / 19) / 3)
    json.dumps(found.as_dict())


def test_wrong_predictions_shut_the_gate_and_are_named():
    found = report(row("a", 1.0, 2.0), row("b", 2.0, 4.0), row("c", 3.0, 3.0))
    assert found.median_error == 0.5
    assert any("median error 50.0%" in failure for failure in found.failures)
    assert any(failure.startswith("b at 100 MB/s: -50%") for failure in found.failures)


def test_a_choice_that_costs_shuts_the_gate_though_errors_are_small():
    found = report(row("a", 1.0, 1.1), row("b", 1.02, 1.0))
    assert found.choices[0].chosen == "a"
    assert found.choices[0].best == "b"
    assert found.regret == pytest.approx(0.1)
    assert found.agreement == 0.0
    assert any("chose a, 10% slower than b" in failure for failure in found.failures)


def test_an_order_that_is_not_virtual_times_shuts_the_gate():
    found = report(row("a", 1.0, 1.0, order="x began before y"), row("b", 2.0, 2.0))
    assert found.failures == ("order: x began before y",)


def test_a_failure_on_a_busy_machine_says_so():
    found = report(row("a", 1.0, 2.0, disturbed=0.6))
    assert "repeat on a quiet machine" in found.failures[-1]
    assert "load 0.5" in found.busy
    assert not found.as_dict()["is_quiet"]


def test_a_failure_on_a_machine_of_another_speed_says_so():
    slower = replace(report(row("a", 1.0, 2.0)), drift=0.3)
    assert "products take +30%" in slower.failures[-1]
    assert not any("products" in failure for failure in report(row("a", 1.0, 2.0)).failures)
    assert replace(report(row("a", 1.0, 1.0)), drift=0.3).failures == ()


def test_regret_is_judged_by_its_mean_and_told_whole():
    """Four choices at four rates; one costs a tenth, so the mean of 2.5 % passes."""
    rows = [
        row(plan, predicted_s, measured_s, rate_bytes_s=rate)
        for rate in (1e6, 2e6, 3e6, 4e6)
        for plan, predicted_s, measured_s in (
            ("a", 1.0, 1.1 if rate == 4e6 else 1.0),
            ("b", 1.02, 1.0 if rate == 4e6 else 1.02),
        )
    ]
    found = report(*rows)
    assert found.failures == ()
    told = found.as_dict()
    assert told["regret"] == pytest.approx(0.025)
    assert told["median_regret"] == 0.0
    assert told["worst_regret"] == pytest.approx(0.1)


SMALL = (
    Toy(
        name="small",
        num_layers=1,
        num_tokens=256,
        channels=96,
        heads=2,
        inner=64,
        chunks=(128, 256),
    ),
    Toy(
        name="small experts",
        num_layers=1,
        num_tokens=256,
        channels=96,
        heads=2,
        inner=64,
        num_experts=8,
        chunks=(256,),
    ),
    Toy(
        name="small video",
        num_layers=1,
        num_tokens=128,
        channels=96,
        heads=2,
        inner=64,
        is_causal=False,
        chunks=(128,),
    ),
)


@pytest.fixture
def crew():
    """Two ranks."""
    with Crew(dict(os.environ) | {"OMP_NUM_THREADS": "1"}) as ranks:
        yield ranks


def test_a_table_a_hundred_times_too_slow_shuts_the_gate_on_two_real_ranks(crew, calibration):
    """Every layout of a toy computes the same or `validate` raises; each runs in order."""
    wrong = {
        kind: replace(fit, constants=tuple(100 * c for c in fit.constants))
        for kind, fit in calibration.computing.items()
    }
    slow = replace(calibration, computing=wrong, balance_bytes_s=4e8)
    found = validate(crew, slow, "here", lambda _: None, limit_s=0, toys=SMALL)
    assert len(found.rows) == 3 * sum(len(t.chunks) * len(layouts_of(t)) for t in SMALL)
    assert not any(row.order for row in found.rows)
    assert all(row.num_runs >= 5 for row in found.rows)
    assert any(failure.startswith("median error") for failure in found.failures)
    assert any("give --calibrate as well" in failure for failure in found.failures)
    assert found.median_core_error > 2


def test_a_rank_that_fails_is_named_with_its_reason(crew):
    with pytest.raises(
        CrewFailed, match=r"rank 0 failed during _check_nothing[\s\S]*AttributeError"
    ):
        crew.run(_check_nothing)


def _check_nothing(seat):
    return seat.nothing
