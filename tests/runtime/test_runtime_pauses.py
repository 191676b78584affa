"""Ranks that are stopped at random points and go on later change when things happen, never what comes out."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading

import numpy as np
import psutil
import pytest
from random_graphs import random_graph
from test_runtime_planned import Costs, N, _platform

from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.program.lower import lower
from heterotask_core.runtime.job import execute

pytestmark = pytest.mark.mpi


class Pauses:
    """Stops one rank of the job under way now and then, each for a while."""

    def __init__(self, seed: int, most: int) -> None:
        self._rng = random.Random(seed)
        self._left = most
        self._timers: list[threading.Timer] = []
        self.count = 0

    def __call__(self, done: int, total: int) -> None:
        """What `execute` calls while it waits: done, of all ops."""
        ranks = [p.pid for p in psutil.Process().children(recursive=True) if self._is_rank(p)]
        if not 0 < done < total or not self._left or not ranks:
            return
        pid = self._rng.choice(ranks)
        self._signal(pid, signal.SIGSTOP)
        timer = threading.Timer(self._rng.uniform(0.01, 0.2), self._signal, (pid, signal.SIGCONT))
        timer.start()
        self._timers.append(timer)
        self._left -= 1
        self.count += 1

    def end(self) -> None:
        """Wait until everybody goes on."""
        for timer in self._timers:
            timer.join()

    @staticmethod
    def _signal(pid: int, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)

    @staticmethod
    def _is_rank(process: psutil.Process) -> bool:
        try:
            return "heterotask_core.runtime.worker" in process.cmdline() and "mpiexec" not in process.name()
        except psutil.Error:
            return False


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_pauses_change_no_result(tmp_path, seed):
    graph, values = random_graph(seed, 40, length=N)
    platform = _platform()
    problem = build_problem(graph, platform, Costs({}, {}))
    program = lower(graph, platform, problem, planner("peft").plan(problem, budget=Budget()))
    pauses = Pauses(seed, most=12)
    try:
        execute(program, platform, output_dir=tmp_path, repeats=60, timeout_s=120, progress=pauses)
    finally:
        pauses.end()
    assert pauses.count > 0
    for i, value in enumerate(values):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), value)
