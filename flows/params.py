"""What a person fills in to start a flow: flat models, so that Prefect shows them as forms and checks the bounds."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.apps import find_application, parse_params
from heterotask_core.planning.base import Budget
from heterotask_core.platform.cluster import find_platform
from heterotask_core.stages import DEFAULT_EVALUATIONS, Workflow
from heterotask_core.store import Store

PlannerName = Literal[
    "portfolio",
    "peft",
    "heft",
    "cpop",
    "lookahead",
    "peft-link",
    "peft-area",
    "peft-data",
    "heft-oct",
    "restricted",
    "cpsat",
    "eager",
    "prio",
    "lws",
    "dm",
    "dmda",
    "dmdar",
    "dmdas",
    "heteroprio",
]
"""The planners of the registry, written out so that the form offers them (a test compares)."""


class WorkflowParams(BaseModel):
    """The workflow, the devices and the store; every flow takes these."""

    model_config = ConfigDict(extra="forbid")

    app: str = Field(
        min_length=1, description="Application: a name from `heterotask apps`, or package.module:attribute."
    )
    app_params: list[str] = Field(
        default=[], max_length=100, description="Parameters of the application, each as name=value."
    )
    devices: str = Field(default="", description="Devices of each node, e.g. cpu:2 or cpu:1,opencl:1; empty: CPUs.")
    nodes: int = Field(default=1, ge=1, le=64, description="Virtual nodes on the worker's host.")
    store: str = Field(
        default=".heterotask", min_length=1, description="Folder for profiles, plans and runs, on the worker's host."
    )

    def workflow(self) -> Workflow:
        """Build the graph on the devices present.

        Raises :class:`~heterotask_core.errors.ApplicationError` or :class:`~heterotask_core.errors.PlatformError`.
        """
        app = find_application(self.app)
        return Workflow.of(app, parse_params(app, self.app_params), find_platform(self.devices, nodes=self.nodes))

    def open_store(self) -> Store:
        """Open the store; raises :class:`~heterotask_core.errors.StoreError` for a folder that is something else."""
        return Store(self.store)


class ProfileParams(WorkflowParams):
    """Parameters of the flow ``profile``, and of all that profile first."""

    profile_budget_s: float = Field(default=20.0, ge=0.1, le=3600.0, description="Seconds to spend on timing.")


class PlanParams(ProfileParams):
    """Parameters of the flow ``plan``."""

    planner: PlannerName = Field(default="portfolio", description="Planner; portfolio tries many and searches.")
    evaluations: int = Field(
        default=DEFAULT_EVALUATIONS, ge=0, le=1_000_000, description="Search budget of the planner in evaluations."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the search.")

    def budget(self) -> Budget:
        """Return the planner's budget."""
        return Budget(evaluations=self.evaluations, seed=self.seed)


class ExecuteParams(WorkflowParams):
    """Parameters of the flow ``execute``."""

    plan: str = Field(min_length=1, description="Name of a plan in the store, as the flow `plan` reports it.")
    repeats: int = Field(default=1, ge=1, le=1000, description="How often to run the program in one MPI job.")


class PipelineParams(PlanParams):
    """Parameters of the flow ``pipeline``."""

    repeats: int = Field(default=1, ge=1, le=1000, description="How often to run the program in one MPI job.")
    check: bool = Field(default=False, description="Compare the results with the application's reference.")


class CalibrateParams(WorkflowParams):
    """Parameters of the flow ``calibrate``."""

    evaluations: int = Field(default=20, ge=2, le=10_000, description="Programs to measure at most.")
    seed: int = Field(default=0, ge=0, description="Seed of the search.")
    resume: bool = Field(default=True, description="Go on with an interrupted calibration of this workflow.")


class NightlyParams(CalibrateParams):
    """Parameters of the flow ``nightly``."""

    fresh_h: float = Field(
        default=20.0, ge=0.0, le=8760.0, description="Skip if the last calibration is younger (hours) and still holds."
    )
    max_load: float = Field(
        default=0.5, ge=0.0, le=64.0, description="Skip if more runnable processes a core than this are on the host."
    )
