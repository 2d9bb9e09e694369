"""The file: kept whole, refused by name when damaged, edited or of another machine."""

from dataclasses import replace

import pytest

from kernels.calibration.table import calibration_path, load, save
from kernels.collectives.topology import this_topology
from kernels.table_file import TableFileError

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


def test_a_damaged_or_edited_file_is_refused_by_name(saved):
    _, path = saved
    text = path.read_text()
    path.write_text(text.replace('"num_cores"', '"num_sores"'))
    with pytest.raises(TableFileError, match=r"edited or damaged.*--calibrate"):
        load(path, HERE)
    path.write_text(text[:100])
    with pytest.raises(TableFileError, match="is no calibration"):
        load(path, HERE)


def test_another_machine_is_refused_naming_what_differs(saved):
    _, path = saved
    other = replace(HERE, num_cores=HERE.num_cores + 1)
    with pytest.raises(TableFileError, match=f"num_cores: measured with {HERE.num_cores}"):
        load(path, other)
