"""Fits: planted constants come back, none is negative, the error is of what was left out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.calibration.computing import grid
from kernels.calibration.fitting import Sample, fit
from kernels.calibration.work import UNITS, Work, features

GEMMS = [work for work in grid() if work.kind == "gemm"]
CONSTANT = st.floats(0.5, 2.0)


@given(call=CONSTANT, flop=CONSTANT, weight=CONSTANT)
@settings(max_examples=20, deadline=None)
def test_planted_constants_come_back(call, flop, weight):
    planted = (call * 1e-4, flop * 1e-10, weight * 1e-9, 0.0)
    samples = []
    for work in GEMMS:
        terms = features(work)
        took_s = sum(c * t for c, t in zip(planted, terms, strict=True))
        samples.append(Sample(terms, took_s, took_s))
    found = fit(samples)
    for got, want in zip(found.constants, planted, strict=True):
        assert got == pytest.approx(want, rel=1e-6, abs=1e-15)
    assert found.error < 1e-9


def test_no_constant_is_negative_where_the_unbounded_ones_would_be():
    samples = [Sample((1.0, n), 2.0 * n - 1.0, 2.0 * n - 1.0) for n in (1.0, 2.0, 3.0, 5.0)]
    found = fit(samples)
    assert all(constant >= 0 for constant in found.constants)
    assert found.constants[0] == 0.0


def test_the_error_is_that_of_samples_left_out():
    """A line through all points but one: who is left out is predicted from the others alone."""
    times = {1.0: 1.0, 2.0: 2.0, 4.0: 4.0, 8.0: 8.0, 16.0: 32.0}
    clean = fit([Sample((n,), n, n) for n in times])
    bent = fit([Sample((n,), t, t) for n, t in times.items()])
    assert clean.error < 1e-12
    assert bent.error > 0.05


def test_a_group_is_left_out_as_a_whole_and_judged_by_its_sum():
    """Two groups: within each, parts are off by as much in either direction, sums are right."""
    samples = [
        Sample((n,), n + off, n + off, group)
        for group, n in (("a", 2.0), ("b", 4.0))
        for off in (-1.0, 1.0)
    ]
    equal = [replace(sample, unit_s=1.0) for sample in samples]
    assert fit(equal).error < 1e-12
    assert fit([replace(sample, group="") for sample in equal]).error > 0.1


def test_equal_units_keep_the_sum_where_relative_errors_do_not():
    samples = [Sample((1.0,), t, t, unit_s=1.0) for t in (1.0, 1.0, 7.0)]
    assert fit(samples).constants[0] == pytest.approx(3.0)
    relative = [replace(sample, unit_s=0.0) for sample in samples]
    assert fit(relative).constants[0] < 2.0


def test_one_group_alone_cannot_be_left_out():
    with pytest.raises(ValueError, match="0 samples without a group"):
        fit([Sample((1.0,), t, t, "only") for t in (1.0, 2.0, 3.0)])


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="2 samples for 2 constants"):
        fit([Sample((1.0, n), n, n) for n in (1.0, 2.0)])


def test_every_kind_of_work_is_measured_over_more_sizes_than_it_has_constants():
    for kind, units in UNITS.items():
        sizes = [work.sizes for work in grid() if work.kind == kind]
        assert len(set(sizes)) == len(sizes) > len(units)
        assert len(features(Work(kind, sizes[0]))) == len(units)
