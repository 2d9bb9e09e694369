"""The file: kept whole, refused by name when damaged, edited or of another machine."""

import json
from dataclasses import replace

import pytest

from kernels.calibration.table import (
    CalibrationError,
    calibration_path,
    confidence,
    load,
    save,
)
from kernels.collectives.topology import this_topology

HERE = this_topology()


@pytest.fixture
def saved(tmp_path, make_calibration):
    """A calibration of this machine in its place."""
    made = make_calibration(seen_sizes={"gemm": ((1, 2, 3),)})
    return made, save(made, calibration_path(tmp_path, HERE))


def test_what_is_saved_is_loaded(saved, tmp_path):
    made, path = saved
    assert load(path, HERE) == made
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert "gemm 3%" in confidence(tmp_path, HERE)


def test_without_a_file_the_plan_says_so(tmp_path):
    assert "nothing calibrated" in confidence(tmp_path, HERE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("computing"), "KeyError: 'computing'"),
        (lambda r: r.update(schema=99), "schema 99"),
        (lambda r: r["facts"].update(num_cores=999), "it was edited"),
    ],
)
def test_a_damaged_file_is_refused_by_name(saved, tmp_path, change, message):
    _, path = saved
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(CalibrationError, match=message):
        load(path, HERE)
    assert "calibration refused" in confidence(tmp_path, HERE)


def test_half_a_file_is_refused(saved):
    _, path = saved
    path.write_text(path.read_text()[:100])
    with pytest.raises(CalibrationError, match="is no calibration"):
        load(path, HERE)


def test_another_machine_is_refused_naming_what_differs(saved):
    _, path = saved
    other = replace(HERE, num_cores=HERE.num_cores + 1)
    with pytest.raises(CalibrationError, match=f"num_cores: measured with {HERE.num_cores}"):
        load(path, other)
