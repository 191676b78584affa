"""Real planner, lowering and simulator with a hidden truth."""

import numpy as np
import pytest

from calibration.bench import program_key
from calibration.estimate import estimate_overheads
from calibration.loop import calibrate
from calibration.virtual import Truth, VirtualEvaluator
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.registry import planner
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel, Overheads
from heterotask_core.simulate import simulate

BOTH = (Variant("numpy", "cpu", "numpy:copyto"), Variant("opencl", "opencl", "numpy:copyto"))
LOAD = Kernel("load", __name__, writes=("dst",), variants=BOTH[:1])
BLUR = Kernel("blur", __name__, reads=("src",), writes=("dst",), variants=BOTH)
EDGE = Kernel("edge", __name__, reads=("src",), writes=("dst",), variants=BOTH)
PLATFORM = Platform(
    (Node("n0", "h"),),
    (Memory("n0", "n0"), Memory("n0.cl", "n0", 1 << 30)),
    (Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (0,)), Device("n0.cl", "opencl", "n0", "n0.cl", "GPU", (1,))),
    (Link("n0", "n0.cl", "host_to_device", 1e-5, 5e9), Link("n0.cl", "n0", "device_to_host", 1e-5, 5e9)),
)
QUIET = {"op_noise": 0.0, "run_noise": 0.0, "straggler_share": 0.0}
TRUTH = Overheads(
    dispatch_s={"cpu": 1e-4, "opencl": 3e-3},
    kernel_scale={"blur|cpu": 1.3},
    link_setup_s={"host_to_device": 2e-4},
    link_scale={"host_to_device": 1.5, "device_to_host": 1.2},
)


def evaluator(truth, *, seed=0, tiles=10):
    graph = TaskGraph("tiles")
    for i in range(tiles):
        raw, soft, edges = (graph.data(f"{name}{i}", shape=(256, 256), dtype="float32") for name in "rse")
        graph.add(LOAD, writes={"dst": raw})
        graph.add(BLUR, reads={"src": raw}, writes={"dst": soft})
        graph.add(EDGE, reads={"src": soft}, writes={"dst": edges})
    seconds = {"load": (1e-3,), "blur": (4e-3, 1e-3), "edge": (3e-3, 5e-4)}
    timings = {}
    for task in graph:
        for variant, cost in zip(task.kernel.variants, seconds[task.kernel.name], strict=True):
            model, cores = ("Xeon", 1) if variant.device_kind == "cpu" else ("GPU", 0)
            timings[(class_key(task), variant.name, variant.device_kind, model, cores)] = cost
    costs = CostModel(timings, {}, "by hand")
    return VirtualEvaluator(graph, PLATFORM, costs, planner=planner("heft"), truth=truth, evaluations=1, seed=seed)


def test_without_truth_and_noise_a_run_is_the_prediction():
    virtual = evaluator(Truth(**QUIET))
    planned_with = Overheads(dispatch_s={"opencl": 1e-3}, link_scale={"host_to_device": 2.0})
    program, predicted_s = virtual.plan(Overheads())
    makespans, trace = virtual.measure(program, 2)
    assert makespans == pytest.approx([predicted_s] * 2)
    assert trace["repeat"].to_list() == [0] * program.n_ops + [1] * program.n_ops
    assert trace["start_s"].to_list()[: program.n_ops] == pytest.approx(simulate(program).start_s.tolist())
    # Planned with overheads that do not exist, the same machine is faster than predicted.
    program, predicted_s = virtual.plan(planned_with)
    assert virtual.measure(program, 1)[0][0] < predicted_s


def test_planned_with_the_truth_the_prediction_is_right():
    virtual = evaluator(Truth(TRUTH, **QUIET))
    program, predicted_s = virtual.plan(TRUTH)
    assert virtual.expected_s(program) == pytest.approx(predicted_s)
    # A dispatch is a wait before the op: the task window opens with the first op, after its own.
    assert virtual.measure(program, 1)[0] == pytest.approx([predicted_s])


def test_noise_is_seeded_and_fresh_in_every_run():
    program, _ = evaluator(Truth()).plan(Overheads())
    runs = []
    for seed in (1, 1, 2):
        virtual = evaluator(Truth(), seed=seed)
        same, _ = virtual.plan(Overheads())
        assert program_key(same) == program_key(program)
        runs.append(list(virtual.measure(same, 3)[0]))
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 3


def test_interference_slows_only_what_runs_beside_others():
    alone, beside = evaluator(Truth(**QUIET)), evaluator(Truth(interference={"cpu": 0.5, "opencl": 0.5}, **QUIET))
    program, predicted_s = beside.plan(Overheads())
    assert predicted_s < beside.expected_s(program) < 1.5 * predicted_s
    assert alone.expected_s(alone.plan(Overheads())[0]) == pytest.approx(predicted_s)


def test_the_hidden_truth_is_estimated_from_the_trace():
    virtual = evaluator(Truth(TRUTH, straggler_share=0.01), tiles=20)
    program, _ = virtual.plan(Overheads())
    _, trace = virtual.measure(program, 5)
    found = estimate_overheads(
        [(trace, Overheads())], device_kinds=virtual.device_kinds, link_kinds=virtual.link_kinds
    ).overheads
    assert found.dispatch_s == pytest.approx(TRUTH.dispatch_s, rel=0.05)
    for key, value in found.kernel_scale.items():
        assert value == pytest.approx(TRUTH.kernel_scale.get(key, 1.0), rel=0.03)
    # Tiles of one size tell set-up and bandwidth apart in no way: the whole goes into the scale.
    planned = 1e-5 + 256 * 256 * 4 / 5e9
    total = 1.5 * planned + 2e-4
    assert found.link_scale["host_to_device"] == pytest.approx(total / planned, rel=0.1)


@pytest.mark.parametrize("seed", [1, 2])
def test_calibration_comes_close_to_planning_with_the_truth(tmp_path, seed):
    virtual = evaluator(Truth(TRUTH), seed=seed)
    oracle_s = virtual.expected_s(virtual.plan(TRUTH)[0])
    before_s = virtual.expected_s(virtual.plan(Overheads())[0])
    result = calibrate(virtual, record_dir=tmp_path, seed=seed, max_evaluations=10)
    after_s = virtual.expected_s(virtual.plan(result.overheads)[0])
    assert result.status == "promoted"
    assert before_s > 1.1 * oracle_s
    assert after_s < 1.05 * oracle_s
    assert result.predicted_s == pytest.approx(result.measured_s, rel=0.05)
    assert np.isclose(1 - after_s / before_s, result.comparison.gain, atol=0.03)
