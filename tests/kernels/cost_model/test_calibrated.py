"""Rates from a calibration: what its constants say, and nothing that they do not."""

from dataclasses import replace

import pytest

from kernels.calibration.work import Fit, Work
from kernels.cost_model.calibrated import measured_rates
from kernels.cost_model.rates import rates_of
from kernels.hardware.detect import detect
from kernels.hardware.machine import load_machine
from tests.kernels.calibration.planted import planted

CORES = 2


def on_cores(count, **constants):
    """A calibration of `count` cores with these constants of its fits."""
    made = planted()
    computing = dict(made.computing)
    for kind, values in constants.items():
        computing[kind] = Fit(constants=values, error=0.03, num_samples=9)
    return replace(made, facts={**made.facts, "num_cores": count}, computing=computing)


def test_two_cores_compute_twice_what_a_thread_was_measured_at():
    made = on_cores(CORES, gemm=(1e-5, 2e-11, 2e-10, 0.0), attention=(1e-5, 4e-11, 2.56e-9, 0.0))
    found = measured_rates(made)
    product = Work("gemm", (4096, 4096, 4096))
    by_flops_s = 2 * 4096**3 / found.flops_s["dense"]
    assert by_flops_s == pytest.approx(made.seconds(product) / CORES, rel=0.01)
    attention = Work("attention", (512, 512, 8, 64))
    flops = 4 * 512 * 512 * 8 * 64
    assert flops / found.flops_s["attention"] == pytest.approx(
        (made.seconds(attention) - 1e-5) / CORES
    )
    assert found.memory_bytes_s == pytest.approx(CORES / 2e-10)
    assert found.fingerprint == made.fingerprint


def test_more_cores_compute_more_and_say_that_nobody_measured_that():
    few, many = measured_rates(on_cores(2)), measured_rates(on_cores(16))
    assert many.flops_s["dense"] == pytest.approx(8 * few.flops_s["dense"])
    assert any("from 2 threads to 16 cores" in text for text in many.texts)
    assert not any("threads" in text for text in few.texts)


def test_constants_left_at_zero_give_no_rate():
    found = measured_rates(on_cores(2, gemm=(1e-5, 0.0, 0.0, 1e-10)))
    assert found.work == {"attention"}
    rates = rates_of(detect().machine, has_fp8_math=False, measured=found)
    assumed = rates_of(detect().machine, has_fp8_math=False)
    assert rates.dense_flops_s == assumed.dense_flops_s
    assert rates.memory_bytes_s == assumed.memory_bytes_s
    assert rates.attention_flops_s == found.flops_s["attention"]
    assert any("dense" in text for text in rates.assumed)


def test_what_was_measured_takes_the_place_of_what_was_assumed():
    found = measured_rates(on_cores(2, gemm=(1e-5, 2e-11, 2e-10, 0.0)))
    machine = detect().machine
    rates = rates_of(machine, has_fp8_math=False, measured=found)
    assert rates.dense_flops_s == found.flops_s["dense"]
    assert rates.memory_bytes_s == found.memory_bytes_s
    assert rates.start_s == 1e-5
    assert rates.fingerprint == found.fingerprint
    assert rates.errors.gemm < rates_of(machine, has_fp8_math=False).errors.gemm
    left = next(text for text in rates.assumed if "efficiencies" in text)
    assert "dense" not in left
    assert "indexer" in left


def test_a_processor_lends_no_rates_to_cards():
    found = measured_rates(on_cores(2))
    for name in ("8x-l40s", "1x-h200", "8x-ascend910b"):
        machine = load_machine(name)
        with_table = rates_of(machine, has_fp8_math=True, measured=found)
        assert with_table == rates_of(machine, has_fp8_math=True)
        assert with_table.fingerprint == ""
