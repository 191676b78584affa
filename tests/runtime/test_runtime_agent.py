"""An agent without a core of its own takes little of the one it shares, and still carries everything."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest
from hand_program import COUNT, Builder
from runtime_kernels import BURN, FILL, STORE

from heterotask_core.runtime.native import native
from heterotask_core.runtime.session import Session

pytestmark = pytest.mark.mpi
STEPS = 30
TASK_S = 10e-3


@pytest.fixture
def two_cores():
    """This process and the jobs that it starts have two cores: four ranks share them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:2]))
    yield
    os.sched_setaffinity(0, before)


def _exchange() -> Builder:
    """Two nodes work on what the other has made, step after step; every receive is posted long before it is served."""
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    here, ready, version = [], [], 0
    for side in (0, 1):
        here.append(b.slot(f"n{side}"))
        ready.append(b.task(f"c{side}", FILL, {"output": here[side]}, params={"value": float(side)}))
        version += 1
    for _ in range(STEPS):
        made = []
        for side in (0, 1):
            output = b.slot(f"n{side}")
            done = b.task(
                f"c{side}", BURN, {"input": here[side], "output": output}, [ready[side]], params={"cpu_s": TASK_S}
            )
            made.append((output, done, version))
            version += 1
        for side in (0, 1):
            output, done, number = made[1 - side]
            here[side] = b.slot(f"n{side}", number)
            ready[side] = b.transfer(output, here[side], [done])
    b.task("c0", STORE, {"input": here[0]}, [ready[0]], params={"path": {"output": "end.npy"}})
    return b


def _naps() -> list[int]:
    """Return, by rank, how often its process gave the core away by going to sleep. Ranks are started in order."""
    ranks = [
        process
        for process in psutil.Process().children(recursive=True)
        if "heterotask_core.runtime.worker" in process.cmdline() and "mpiexec" not in process.name()
    ]
    return [process.num_ctx_switches().voluntary for process in sorted(ranks, key=lambda process: process.pid)]


@pytest.mark.skipif(native() is None, reason="the compiled helper was not built")
def test_an_agent_sleeps_while_its_devices_compute(two_cores, tmp_path):
    b = _exchange()
    program = b.build()
    with Session(b.platform) as session:
        session.run(program, output_dir=tmp_path)
        before = _naps()
        session.run(program, output_dir=tmp_path)
        after = _naps()
    agents = [rank for rank, role in enumerate(program.ranks) if role.device is None]
    # Every task is fifty naps long; some are cut short by other load.
    assert all(after[rank] - before[rank] > 5 * STEPS for rank in agents)
    np.testing.assert_array_equal(np.load(tmp_path / "end.npy"), np.arange(COUNT) + STEPS)
