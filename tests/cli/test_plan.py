"""`lanewise plan`: wrong options are refused before any planning."""

import pytest
from click.testing import CliRunner

from service.commands.plan import plan


@pytest.mark.parametrize(
    ("option", "value"),
    [("--price-per-hour", "nan"), ("--price-per-hour", "-1"), ("--limit", "inf"), ("--limit", "0")],
)
def test_a_number_out_of_range_is_wrong_usage(option, value):
    result = CliRunner().invoke(plan, ["glm-5.3", option, value])
    assert result.exit_code == 2
    assert option in result.output
