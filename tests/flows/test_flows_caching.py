"""What is taken from the store: plans of the same inputs and version; nothing else."""

import flows_app
import pytest
from prefect.cache_policies import NO_CACHE

from flows import steps
from flows.params import PlanParams
from heterotask_core import stages


@pytest.fixture
def planned(tmp_path):
    """Plan with changed parameters in one store; returns (name, whether it came from the store)."""
    profiles = {}

    def plan(**changed):
        config = PlanParams(
            app=f"{flows_app.__name__}:TINY", devices="cpu:1", planner="heft", store=str(tmp_path / "store")
        ).model_copy(update=changed)
        workflow, store = config.workflow(), config.open_store()
        if workflow.key not in profiles:
            profiles[workflow.key] = stages.profile_stage(workflow, store, budget_s=0.1)
        plan = stages.plan_stage(
            workflow, profiles[workflow.key], store, planner=config.planner, budget=config.budget()
        )
        return plan.folder.name, plan.reused

    return plan


def test_a_plan_is_taken_from_the_store_only_for_the_same_inputs_and_version(planned, monkeypatch):
    first, reused = planned()
    assert not reused
    assert planned() == (first, True)
    others = [planned(planner="peft"), planned(seed=1), planned(app_params=["n=17"])]
    monkeypatch.setattr(stages, "PACKAGE_VERSION", "0.0.0")
    others.append(planned())
    assert [reused for _, reused in others] == [False] * 4
    assert len({first, *(name for name, _ in others)}) == 5
    monkeypatch.undo()
    assert planned() == (first, True)


def test_prefect_itself_caches_no_step():
    made = [steps.profile_step, steps.plan_step, steps.execute_step, steps.report_step, steps.check_step]
    assert [step.cache_policy for step in (*made, steps.calibrate_step)] == [NO_CACHE] * 6
    assert [step.retries for step in made] == [0, 0, 1, 0, 0]
