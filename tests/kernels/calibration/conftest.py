"""Calibrations with planted constants."""

import pytest

from tests.kernels.calibration.planted import planted


@pytest.fixture
def make_calibration():
    """See `planted`."""
    return planted
