"""The line between caller and agents: who is let in, what is heard, who counts as silent or gone."""

from __future__ import annotations

import json
import socket

import pytest

from heterotask_core.errors import LaunchError
from heterotask_core.runtime.line import FILE, Line, call


@pytest.fixture
def line(tmp_path):
    found = Line(tmp_path, here_only=True)
    yield found
    found.hang_up()


def _say(connection: socket.socket, **message) -> None:
    connection.sendall((json.dumps(message) + "\n").encode())


def _poll(line: Line, condition) -> None:
    for _ in range(500):
        if condition():
            return
        line.poll(0.02)
    raise AssertionError(line.agents)


def test_agent_is_heard_asked_and_missed(line, tmp_path):
    agent = call(tmp_path, 4)
    _say(agent, running=True, repeat=2, progress=10, done=4, dead=[5])
    _poll(line, lambda: 4 in line.agents and line.agents[4].running)
    state = line.agents[4]
    assert (state.repeat, state.progress, state.done, state.dead, state.gone) == (2, 10, 4, (5,), False)
    line.tell("report")
    assert agent.recv(100) == b"report\n"
    _say(agent, report={"lanes": []}, dead=[6])
    _poll(line, lambda: state.report is not None)
    assert state.dead == (5,), "who died first is not forgotten"
    agent.close()
    _poll(line, lambda: state.gone)


def test_agent_that_says_it_is_done_is_not_missed(line, tmp_path):
    agent = call(tmp_path, 0)
    _say(agent, finished=True)
    agent.close()
    _poll(line, lambda: 0 in line.agents and line.agents[0].finished)
    line.poll(0.05)
    assert not line.agents[0].gone


@pytest.mark.parametrize(
    "greeting", [b'{"token": "guess", "rank": 1}\n', b"GET / HTTP/1.1\n", b"[]\n", b'{"rank": 1}\n']
)
def test_strangers_are_hung_up_on(line, tmp_path, greeting):
    port = json.loads((tmp_path / FILE).read_text())["port"]
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(greeting)
        stranger.settimeout(0.0)

        def hung_up() -> bool:
            try:
                return stranger.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        _poll(line, hung_up)
    assert line.agents == {}


def test_address_is_for_the_owner_only(line, tmp_path):
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_caller_out_of_reach_is_one_clear_line(tmp_path):
    Line(tmp_path, here_only=True).hang_up()
    with pytest.raises(
        LaunchError, match=r"rank 3 cannot reach its caller at 127\.0\.0\.1, port \d+: .*open the ports"
    ):
        call(tmp_path, 3)
