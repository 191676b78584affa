"""Calibration of a workflow over MPI: nothing to choose, again and again, and the record that it leaves."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from calibration.application import calibrate_workflow
from heterotask_core.app import CheckResult
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.platform.discover import discover
from heterotask_core.stages import Workflow, incumbent_overheads
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
