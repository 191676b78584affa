"""How an agent sleeps at a barrier, and what wakes those who look after a job."""

import os
import threading

import pytest

from heterotask_core.runtime.arena import NodeMemory
from heterotask_core.runtime.native import native
from heterotask_core.runtime.watch import RankWatch

LONG_S = 300.0
compiled = pytest.mark.skipif(native() is None, reason="the compiled helper is not built")


def _ranks(folder, n):
    """Return ``n`` mappings of one node's memory, as its ranks have it."""
    first = NodeMemory(folder / "memory", 4096, 3, create=True)
    return [first, *(NodeMemory(folder / "memory", 4096, 3, create=False) for _ in range(n - 1))]


@compiled
def test_agent_does_not_rest_where_all_have_come(tmp_path):
    agent, device = _ranks(tmp_path, 2)
    for meeting in range(2):
        device.meet(1, 2)
        agent.meet(0, 2)
        assert agent.rest(2, LONG_S), meeting


@compiled
def test_agent_rests_no_longer_than_it_is_told(tmp_path):
    agent, *_ = _ranks(tmp_path, 2)
    agent.meet(0, 2)
    assert not agent.rest(2, 1e-3)


@compiled
def test_device_that_comes_wakes_the_agent_and_one_that_waits_does_not(tmp_path):
    agent, device = _ranks(tmp_path, 2)
    rests = []

    def wait():
        agent.meet(0, 2)
        while not agent.rest(2, LONG_S):
            rests.append(False)
        rests.append(True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    for _ in range(1000):
        device.wake_agent()
    device.meet(1, 2)
    device.ring()
    waiting.join(60.0)
    assert not waiting.is_alive()
    # Woken once at most, by the arrival; not at all if that came before it rested.
    assert rests in ([True], [False, True])


def test_news_end_the_wait_for_ranks_and_stay_open(tmp_path):
    reader, writer = os.pipe()
    watch = RankWatch(tmp_path, [0])
    watch.wake_by(reader)
    os.write(writer, b"x")
    watch.wait(LONG_S)
    assert (watch.first_dead, watch.complete, os.read(reader, 9)) == ((), False, b"x")
    watch.end(0.0)
    for descriptor in (reader, writer):
        os.close(descriptor)
