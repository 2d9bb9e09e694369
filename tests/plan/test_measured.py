"""A calibration of this machine as plans take it: whose it is, and whether it can be trusted."""

import json
from dataclasses import replace

import pytest

from kernels.calibration.table import calibration_path, save
from kernels.collectives.topology import this_topology
from kernels.cost_model.calibrated import measured_rates
from kernels.hardware.machine import load_machine
from tests.kernels.calibration.planted import planted
from video_engine.plan.clip_plan import plan_clip
from video_engine.plan.families import describe, preset
from video_engine.plan.request import ClipRequest
from workers.planning.measured import measured_here
from workers.planning.plan import main

HERE = this_topology()
WEIGHT_BYTE_S = 1e-10  # of each of the two threads that were measured
CLIP = describe(preset("minimax-h3"), ClipRequest(num_frames=22), name="minimax-h3")


def calibration(**changes):
    """As planted, and with a rate of weights from memory."""
    made = planted()
    gemm = made.computing["gemm"]
    constants = (*gemm.constants[:2], WEIGHT_BYTE_S, *gemm.constants[3:])
    computing = {**made.computing, "gemm": replace(gemm, constants=constants)}
    return replace(made, computing=computing, **changes)


@pytest.fixture
def saved(tmp_path):
    """saved(**changes): a calibration of this machine in its place, and the file."""

    def save_it(**changes):
        made = calibration(**changes)
        return made, save(made, calibration_path(tmp_path, HERE))

    return save_it


def test_a_calibration_of_a_busy_machine_says_so(tmp_path, saved):
    saved(disturbed=0.4)
    assert "other programs had 40%: repeat" in measured_here(str(tmp_path))[1]
    saved(disturbed=0.05)
    assert "repeat" not in measured_here(str(tmp_path))[1]


def test_without_a_table_or_with_a_damaged_one_nothing_is_measured(tmp_path, saved):
    measured, why = measured_here(str(tmp_path))
    assert measured is None
    assert "nothing calibrated" in why
    _, path = saved()
    path.write_text(path.read_text()[:100])
    measured, why = measured_here(str(tmp_path))
    assert measured is None
    assert why.startswith("calibration refused")


def test_a_clip_on_this_machine_takes_its_measured_rates():
    """Products, attention and weights: each from the table, and each says so."""
    measured, machine = measured_rates(calibration()), load_machine("laptop-cpu")
    found = plan_clip(CLIP, machine, measured)
    used = {rate.name: rate for rate in found.rates}
    assert used["products"].per_s == measured.flops_s["dense"]
    assert used["attention"].per_s == measured.flops_s["attention"]
    assert used["memory"].per_s == measured.memory_bytes_s == 2 / WEIGHT_BYTE_S
    assert all(rate.origin == f"measured here {measured.made}" for rate in found.rates)
    assert found.basis.word == "calibrated"
    twice = replace(measured, flops_s={w: 2 * r for w, r in measured.flops_s.items()})
    faster = plan_clip(CLIP, machine, twice)
    assert faster.others[0].parts.gemm == pytest.approx(found.others[0].parts.gemm / 2)
    assert faster.others[0].parts.attention == pytest.approx(found.others[0].parts.attention / 2)


def test_rates_of_another_machine_never_come_from_this_one():
    measured = measured_rates(calibration())
    there = plan_clip(CLIP, load_machine("8x-l40s"), measured)
    assert there == plan_clip(CLIP, load_machine("8x-l40s"))
    assert there.basis.word == "assumed"
    assert "assumed" in next(rate.origin for rate in there.rates if rate.name == "memory")


def test_the_document_of_a_clip_says_where_each_rate_comes_from(tmp_path, capsys, saved):
    made, _ = saved()
    for arguments, basis in (((), "calibrated"), (("--machine", "laptop-cpu"), "assumed")):
        main(["minimax-h3", "--data", str(tmp_path), "--json", *arguments])
        rates = json.loads(capsys.readouterr().out)["layout"]["rates"]
        assert rates["basis"] == basis
        assert bool(rates["fingerprint"] == made.fingerprint) == (basis == "calibrated")
        assert {rate["name"] for rate in rates["used"]} == {"products", "attention", "memory"}
        is_here = [rate["origin"].startswith("measured here") for rate in rates["used"]]
        assert all(is_here) if basis == "calibrated" else not any(is_here)
