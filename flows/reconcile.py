"""Sets right what killed workers and flow processes of this host left on the server.

A flow process carries the run's id in its environment. A run that the server believes to be under way here, and for
which there is no such process, has ended: it becomes Crashed, or Cancelled if that was wanted. With it the server
frees the slots that it held; slots that nobody holds any more are freed too.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Crashed

from flows.deploy import POOL

HOST_TAG = "host:"
"""Our flows tag their run with this and the host's name."""
PENDING_S = 60.0
"""A run that has not come to our code after so long without a process will not come any more."""
_ENDED = "its process is gone; set by `heterotask reconcile`"
_UNDER_WAY = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


@dataclass
class Reconciled:
    """What was set right: run name → new state, deployment's limit → slots freed."""

    runs: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a line a change, for people."""
        runs = [f"run {name}: {state} ({_ENDED.partition(';')[0]})" for name, state in self.runs.items()]
        return runs + [f"deployment {name}: {count} slot(s) freed" for name, count in self.slots.items()]


def host_tag() -> str:
    """Return the tag of runs on this host."""
    return HOST_TAG + platform.node()


def reconcile_host(pool: str = POOL) -> Reconciled:
    """Set right the runs of ``pool`` on this host, then the slots of its deployments."""
    found = Reconciled()
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNDER_WAY)))
    ours = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=wanted, work_pool_filter=ours)
        # The processes afterwards: a run that starts in between is not in the list.
        alive = runs_with_process()
        under_way: Counter[Any] = Counter()
        for run in runs:
            if str(run.id) in alive or not _is_dead_here(run):
                under_way[run.deployment_id] += 1
                continue
            cancelled = run.state_type == StateType.CANCELLING
            state: State[None] = Cancelled(message=_ENDED) if cancelled else Crashed(message=_ENDED)
            client.set_flow_run_state(run.id, state, force=True)
            found.runs[run.name] = state.name or state.type.value
        for deployment in client.read_deployments(work_pool_filter=ours):
            limit = deployment.global_concurrency_limit
            if limit is None:
                continue
            held = client.read_global_concurrency_limit_by_name(limit.name).active_slots
            if held > under_way[deployment.id]:
                update = GlobalConcurrencyLimitUpdate(active_slots=under_way[deployment.id])
                client.update_global_concurrency_limit(limit.name, update)
                found.slots[deployment.name] = held - under_way[deployment.id]
    return found


def runs_with_process() -> set[str]:
    """Return the ids of the flow runs that have a process of Prefect on this host (of this user, or all for root).

    MPI ranks inherit the id; they do not count.
    """
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")[1:]
            if not any(word.startswith(b"prefect") or b"/prefect/" in word for word in words):
                continue
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(b"PREFECT__FLOW_RUN_ID="):
                    found.add(entry.partition(b"=")[2].decode())
    return found


def _is_dead_here(run: FlowRun) -> bool:
    """Whether a run without a process on this host was on this host, and had time to show one."""
    hosts = [tag for tag in run.tags if tag.startswith(HOST_TAG)]
    if hosts:
        return host_tag() in hosts
    since = run.state.timestamp if run.state is not None else None
    return since is not None and (datetime.now(UTC) - since).total_seconds() > PENDING_S
