"""Calibration of a workflow over MPI: nothing to choose, again and again, and the record that it leaves."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from calibration.application import MachineEvaluator, calibrate_workflow
from calibration.estimate import estimate_overheads
from heterotask_core.app import CheckResult
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.platform.discover import discover
from heterotask_core.profiling.costs import Overheads
from heterotask_core.stages import Workflow, incumbent_overheads, profile_stage
from heterotask_core.store import Store


def ones(*, dst):
    dst[:] = 1


ONES = Kernel("ones", __name__, writes=("dst",), variants=(Variant("numpy", "cpu", f"{__name__}:ones"),))


class Params(BaseModel):
    pass


class Ones:
    name = "ones"
    summary = "One task that fills an array"
    Params = Params

    def build(self, params):
        graph = TaskGraph("ones")
        graph.add(ONES, writes={"dst": graph.data("x", shape=(1000,), dtype="uint8")})
        return graph

    def check(self, params, output_dir: Path):
        return CheckResult(True, "nothing to compare")


@pytest.mark.mpi
def test_calibrates_repeatedly_and_keeps_a_record(tmp_path):
    store = Store(tmp_path / "store")
    workflow = Workflow.of(Ones(), Params(), discover("cpu:1"))
    for resume in (False, True):
        result = calibrate_workflow(workflow, store, evaluations=2, resume=resume, profile_budget_s=0.5)
        assert result.status == "nothing to calibrate"
        assert store.list("calibrations") == [workflow.key]
    assert incumbent_overheads(workflow, store) == result.overheads
    folder = store.find("calibrations", workflow.key)
    assert folder is not None
    assert (folder / "journal" / "result.json").exists()


@pytest.mark.mpi
def test_programs_are_measured_in_one_session_without_the_first_run(tmp_path):
    store = Store(tmp_path / "store")
    workflow = Workflow.of(Ones(), Params(), discover("cpu:1"))
    profiled = profile_stage(workflow, store, budget_s=0.5)
    with MachineEvaluator(workflow, profiled, store, tmp_path / "work", planner="heft") as evaluator:
        program, predicted_s = evaluator.plan(Overheads())
        for repeats in (2, 3):
            makespans, trace = evaluator.measure(program, repeats)
            assert len(makespans) == repeats
            assert trace["repeat"].to_list() == list(range(repeats))
            assert set(trace["origin"]) == {"measured"}
        assert evaluator.plan(Overheads())[1] == predicted_s
    assert estimate_overheads(
        [(trace, Overheads())], device_kinds=evaluator.device_kinds, link_kinds=evaluator.link_kinds
    ).overheads.kernel_scale.keys() == {"ones|cpu"}
