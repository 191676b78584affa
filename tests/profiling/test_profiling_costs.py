"""Overheads: neutral by default, bounded."""

import math

import pytest

from heterotask_core.errors import CalibrationError
from heterotask_core.profiling.costs import Overheads


def test_default_overheads_change_nothing():
    assert Overheads().task_s("k", "cpu", 0.125) == 0.125
    assert Overheads().link("network", 1e-5, 1e9) == (1e-5, 1e9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dispatch_s": {"cpu": -1e-6}}, r"overhead dispatch_s\['cpu'\] is -1e-06; it must be between 0.0 and 1.0"),
        ({"compute_scale": {"cpu": 0.0}}, r"compute_scale\['cpu'\] is 0.0; it must be between 0.01 and 100.0"),
        ({"link_scale": {"network": math.nan}}, r"link_scale\['network'\] is nan"),
        ({"kernel_scale": {"k|cpu": math.inf}}, "is inf"),
        ({"link_setup_s": {"network": 2.0}}, "is 2.0"),
        ({"contention": -0.1}, "contention is -0.1; it must be between 0.0 and 10.0"),
    ],
)
def test_overheads_out_of_bounds_are_refused(values, message):
    with pytest.raises(CalibrationError, match=message):
        Overheads(**values)
