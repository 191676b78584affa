"""The search space and the Bayesian search on functions with a known best point."""

import math

import numpy as np
import pytest

from calibration.search import LOG_RANGE, Search, Space
from heterotask_core.profiling.costs import Overheads

SPACE = Space.of(("cpu", "opencl"), ("host_to_device", "device_to_host"))


def test_the_space_fixes_one_scale_and_has_six_dimensions_at_most():
    assert SPACE.names == ("compute_scale:opencl", "link_scale", "dispatch_s:cpu", "dispatch_s:opencl", "link_setup_s")
    assert Space.of(("cpu",), ()).names == ("dispatch_s:cpu",)
    assert len(Space.of(("cpu", "opencl", "cuda", "emulated"), ("network",)).names) == 6


def test_the_origin_changes_nothing_and_moves_multiply():
    around = Overheads(dispatch_s={"cpu": 1e-3}, compute_scale={"opencl": 2.0}, link_scale={"host_to_device": 3.0})
    same = SPACE.apply(around, [0.0] * 5)
    assert same.dispatch_s == {"cpu": 1e-3, "opencl": 0.0}
    assert same.compute_scale == {"cpu": 1.0, "opencl": 2.0}
    moved = SPACE.apply(around, [math.log(2), math.log(0.5), math.log(3), math.log(4), 0.0])
    assert moved.compute_scale == pytest.approx({"cpu": 1.0, "opencl": 4.0})
    assert moved.link_scale == pytest.approx({"host_to_device": 1.5, "device_to_host": 0.5})
    assert moved.dispatch_s == pytest.approx({"cpu": 3e-3, "opencl": 60e-6})


def test_bounds_hold_at_the_corners():
    around = Overheads(compute_scale={"opencl": 90.0}, dispatch_s={"cpu": 0.9})
    top = SPACE.apply(around, [LOG_RANGE] * 5)
    assert (top.compute_scale["opencl"], top.dispatch_s["cpu"]) == (100.0, 1.0)
    assert SPACE.apply(Overheads(), [-LOG_RANGE] * 5).dispatch_s == {"cpu": 0.0, "opencl": 0.0}


def run(seed, *, noise=0.01, steps=12):
    space = Space.of(("cpu", "opencl"), ())
    rng = np.random.default_rng(seed)
    search, points, best = Search(space, seed=seed), [], np.array([0.5, -0.7, 0.2])
    for _ in range(steps):
        point = search.ask()
        points.append(point)
        value = 0.2 * float(((np.array(point) - best) ** 2).sum()) + noise * rng.standard_normal()
        search.tell(point, value, noise=noise)
    return search, np.array(points), best


def test_the_smallest_posterior_mean_is_near_the_best_point_and_seeded():
    search, points, best = run(1)
    assert 0.2 * ((points[search.ranking()[0]] - best) ** 2).sum() < 0.05
    again, same_points, _ = run(1)
    assert np.array_equal(points, same_points)
    assert again.ranking() == search.ranking()


def test_improvement_is_infinite_before_a_model_and_below_the_noise_on_a_plateau():
    search = Search(SPACE, seed=0)
    assert search.expected_improvement([0.0] * 5) == math.inf
    assert search.ranking() == []
    rng = np.random.default_rng(0)
    for _ in range(14):
        search.tell(search.ask(), 0.01 * rng.standard_normal(), noise=0.01)
    assert search.expected_improvement(search.ask()) < 0.01
