"""A node without an agent: what ranks get, and what the caller tells of it."""

import numpy as np
import pytest
from hand_program import Builder, there_and_back
from runtime_kernels import FILL, TWICE

from heterotask_core.program.model import LaneKind
from heterotask_core.runtime.arena import Counters
from heterotask_core.runtime.context import counters_file
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.launch.slurm import SlurmLauncher
from heterotask_core.runtime.nearby import NearbyNode, for_launcher
from heterotask_core.runtime.watch import RankWatch


def _two():
    """Two tasks on c0; one on c1 that waits for the second of them."""
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n0")])
    x, y, z = (b.slot("n0") for _ in range(3))
    b.task("c0", FILL, {"output": x}, params={"value": 0})
    second = b.task("c0", TWICE, {"input": x, "output": y})
    b.task("c1", TWICE, {"input": y, "output": z}, [second])
    return b


def test_ranks_on_this_host_get_a_program_of_one_node_without_its_agent():
    program = _two().build()
    own = for_launcher(program, LocalLauncher())
    assert [role.device for role in program.ranks] == [None, "c0", "c1"]
    assert [role.device for role in own.ranks] == ["c0", "c1"]
    owners = [program.ranks[rank].device for rank in program.lane_rank]
    assert [own.ranks[rank].device for rank in own.lane_rank] == owners
    assert own.lane_ops is program.lane_ops
    assert for_launcher(own, LocalLauncher()) is own


def test_capacity_lanes_stay_nobodys():
    b = _two()
    b.lanes[-1, LaneKind.CAPACITY] = [0]
    own = for_launcher(b.build(), LocalLauncher())
    assert own.lane_rank.tolist() == [0, 1, -1]


def test_agents_stay_where_data_travel_and_where_another_launcher_starts_the_ranks():
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    there_and_back(b)
    for program, launcher in ((b.build(), LocalLauncher()), (_two().build(), SlurmLauncher())):
        assert for_launcher(program, launcher) is program


@pytest.fixture
def node(tmp_path):
    program = for_launcher(_two().build(), LocalLauncher())
    ranks = Counters(counters_file(tmp_path, program, "n0"), len(program.lane_names), create=True)
    near = NearbyNode(RankWatch(tmp_path, []))
    near.follow(program, tmp_path)
    near.poll()
    return near, ranks


def _lines(near):
    near.tell("report")
    return {line["lane"]: (line["op"], line.get("state")) for line in near.agents[0].report["lanes"]}


def test_caller_sees_how_far_the_ranks_are(node):
    near, ranks = node
    state = near.agents[0]
    assert (state.repeat, state.running, state.done, state.progress) == (-1, False, 0, 0)
    ranks.enter(0)
    ranks.set(0, issued=2, done=1)
    near.poll()
    assert (state.repeat, state.running, state.done, state.progress) == (0, True, 1, 3)
    ranks.leave()
    near.poll()
    assert not state.running


def test_report_says_what_every_lane_does_in_any_repeat(node):
    near, ranks = node
    for repeat in range(2):
        ranks.enter(repeat)
        ranks.set(0, issued=2 * repeat + 2, done=2 * repeat + 1)
        ranks.set(1, issued=repeat, done=repeat)
        lines = _lines(near)
        assert lines["1:COMPUTE"] == ("task 'twice1' (variant 'plain' of kernel 'twice')", "runs")
        assert lines["2:COMPUTE"] == ("task 'twice2'", "waits for task 'twice1' (rank 0)")
        ranks.set(0, issued=2 * repeat + 2, done=2 * repeat + 2)
        lines = _lines(near)
        assert lines["1:COMPUTE"] == (None, "has nothing left")
        assert lines["2:COMPUTE"] == ("task 'twice2'", "waits for its turn")


def test_a_session_that_loads_its_next_program_is_not_starting(node, tmp_path):
    near, ranks = node
    ranks.enter(3)
    ranks.leave()
    near.poll()
    assert near.agents[0].repeat == 3
    files = tmp_path / "next"
    files.mkdir()
    program = for_launcher(_two().build(), LocalLauncher())
    Counters(counters_file(files, program, "n0"), len(program.lane_names), create=True)
    near.follow(program, files)
    near.poll()
    assert (near.agents[0].repeat, near.agents[0].running) == (0, False)
    assert np.all(near.agents[0].done == 0)
