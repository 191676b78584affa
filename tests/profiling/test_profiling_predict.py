"""Models over sizes: the right form is found, its error stated, and estimates say where they come from."""

import math
import os

import profiling_kernels as pk
import pytest

from heterotask_core.errors import ProfileError
from heterotask_core.platform.model import Device, Memory, Node, Platform
from heterotask_core.profiling.measure import profile
from heterotask_core.profiling.predict import fit_sizes, predict
from heterotask_core.store import Store

SIZES = [1e4, 4e4, 1.6e5, 6.4e5, 2.56e6]
CORE = min(os.sched_getaffinity(0))
HERE = Platform(
    (Node("n0", os.uname().nodename),),
    (Memory("n0", "n0"),),
    (Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (CORE,)),),
    (),
)


@pytest.mark.parametrize(
    ("form", "time_s"),
    [
        ("linear", lambda n: 1e-3 + 2e-9 * n),
        ("power", lambda n: 1e-12 * n**1.5),
        ("n log n", lambda n: 1e-9 * n * math.log2(n)),
    ],
)
def test_the_form_that_made_the_times_is_found(form, time_s):
    model = fit_sizes(SIZES, [time_s(n) for n in SIZES])
    assert model.form == form
    assert model.error < 1e-6
    assert model.time_s(1e7) == pytest.approx(time_s(1e7), rel=1e-6)


def test_times_that_follow_no_form_have_a_large_error():
    model = fit_sizes(SIZES, [1e-3, 5e-3, 1e-3, 8e-3, 1e-3])
    assert model.error > 0.5


def test_two_sizes_give_a_line_and_one_a_proportion_without_an_error():
    two = fit_sizes([100.0, 300.0, 300.0], [1.0, 2.0, 4.0])
    assert (two.form, two.time_s(200.0)) == ("linear", pytest.approx(2.0))
    one = fit_sizes([100.0], [1.0])
    assert (one.form, one.time_s(200.0)) == ("proportional", pytest.approx(2.0))
    assert math.isnan(one.error)
    assert math.isnan(two.error)


def test_nothing_measured_is_an_error():
    with pytest.raises(ProfileError, match="no measured time to predict from"):
        fit_sizes([1.0], [0.0])


def test_estimates_say_what_they_are_made_of(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ProfileError, match=r"kernel 'fill', variant 'numpy' was never measured on Xeon"):
        predict(pk.small_graph(64), HERE, store)
    for n in (64, 4096, 65536):
        profile(pk.small_graph(n), HERE, store, budget_s=0.2)
    found = {e.kernel: e for e in predict(pk.small_graph(64), HERE, store)}
    assert [(e.kernel, e.tasks, e.size_bytes, e.source, e.confidence) for e in found.values()] == [
        ("fill", 2, 256, "measured", "measured"),
        ("scale", 2, 512, "measured", "measured"),
        ("total", 1, 516, "measured", "measured"),
        ("save", 1, 4, "measured", "measured"),
    ]
    larger = {e.kernel: e for e in predict(pk.small_graph(1 << 20), HERE, store)}
    assert larger["fill"].source.startswith("model: ")
    assert larger["fill"].source.endswith(" over 3 sizes")
    # Sixteen times the largest size is too far for anything but a low confidence.
    assert larger["fill"].confidence == "low"
    # The file that is saved does not grow, so its time is known.
    assert larger["save"].source == "measured"
    assert 0 < found["fill"].estimate_s < 1
