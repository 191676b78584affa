"""A job of one node on this host, which needs no agent: the caller watches its ranks, which are its own descendants.

A node whose data never leave it has nothing for an agent to carry. On two cores, which the ranks share with it, the
start of one more Python process was a quarter of a small job's time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.program.model import Program
from heterotask_core.runtime.arena import Counters
from heterotask_core.runtime.context import counters_file
from heterotask_core.runtime.launch.base import Launcher
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.line import AgentState
from heterotask_core.runtime.lookout import Progress
from heterotask_core.runtime.watch import RankWatch


def for_launcher(program: Program, launcher: Launcher) -> Program:
    """Return ``program`` as ranks get it: of one node whose ranks ``launcher`` starts on this host, without the agent.

    Ranks are numbered anew then; nothing else differs.
    """
    agents = np.array([role.device is None for role in program.ranks])
    one_node = len({role.node for role in program.ranks}) == 1
    if not isinstance(launcher, LocalLauncher) or not one_node or agents.all() or not agents.any():
        return program
    owners = program.lane_rank
    number = np.cumsum(~agents, dtype=np.int32) - 1
    return replace(
        program,
        ranks=tuple(role for role in program.ranks if role.device is not None),
        lane_rank=np.where(owners < 0, owners, number[owners]).astype(np.int32),
    )


class NearbyNode:
    """What :class:`~heterotask_core.runtime.line.Line` is for nodes with agents, from the job's counters on this host.

    Nothing is silent here and nobody hangs up: ``agents`` has one entry, which is as new as the last :meth:`poll`.
    """

    def __init__(self, watch: RankWatch) -> None:
        """Look at the ranks that ``watch`` follows."""
        self.agents = {0: AgentState()}
        self._watch = watch
        self._progress: Progress | None = None

    def follow(self, program: Program, files: Path) -> None:
        """Tell of this program from now on, by its counters in ``files``."""
        node = program.ranks[0].node
        counters = Counters(counters_file(files, program, node), len(program.lane_names))
        self._progress = Progress(program, counters, node)

    def poll(self) -> None:
        """Look how far the node is."""
        state = self.agents[0]
        state.traced = self._watch.traced()
        if self._progress is None:
            return
        counters = self._progress.counters
        state.running = counters.running
        # Once a job has run a program, it is not starting any more.
        state.repeat = max(counters.repeat, min(state.repeat, 0))
        facts = self._progress.facts(self._watch)
        state.done, state.progress, state.computed_s = facts["done"], facts["progress"], facts["computed_s"]

    def tell(self, word: str) -> None:
        """Make the report, if that is asked for; the ranks' end is the caller's own work."""
        if word == "report":
            self.agents[0].report = self._report()

    def hang_up(self) -> None:
        """There is no line."""

    def _report(self) -> dict[str, Any]:
        return {"lanes": []} if self._progress is None else self._progress.report(self._progress.counted)
