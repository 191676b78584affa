"""The line between a caller and the agents of its job: heartbeats and news in one direction, questions in the other.

TCP, a JSON object a line. An agent calls the address in the job's folder (``line.json``, mode 600) and says the token
that stands there. From then on it tells several times a second how far its node is; it answers ``report`` with what
every lane waits for, and ends its node's ranks when it hears ``end`` or when the line breaks: the caller is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterotask_core.errors import LaunchError

BEAT_S = 0.2
"""Time between two heartbeats."""
FILE = "line.json"
_LONGEST_GAP_S = 0.5
"""What counts at most of the time between two looks: a caller that was stopped itself accuses nobody."""
_MAX_LINE_BYTES = 16 * 2**20


@dataclass
class AgentState:
    """What the caller knows of one agent."""

    silent_s: float = 0.0
    progress: int = 0
    """Ops issued and done on its node's lanes, together: it changes whenever anything moves."""
    done: int = 0
    running: bool = False
    """Whether a program is between its first and its last barrier."""
    repeat: int = -1
    computed_s: float = 0.0
    """Seconds of a core that those of its node's ranks have used which run an op; it grows while they compute."""
    traced: bool = False
    dead: tuple[int, ...] = ()
    """Ranks of its node that ended first without being done."""
    signals: dict[int, int] = field(default_factory=dict)
    """Of ranks of its node, the signal that ended them, as far as it was seen."""
    report: dict[str, Any] | None = None
    gone: bool = False
    """The line broke although the agent had not said that it was done."""
    finished: bool = False


@dataclass(eq=False)
class _Peer:
    socket: socket.socket
    rank: int | None = None
    received: bytes = b""


@dataclass
class Line:
    """The caller's end; hang up when the job has ended."""

    folder: Path
    here_only: bool
    agents: dict[int, AgentState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Listen, and write the address for the agents; raises :class:`LaunchError` where that is impossible."""
        # Imported here because the agents' end, which is in this module too, starts sooner without OpenSSL.
        import secrets

        self._token, self._same = secrets.token_hex(16), secrets.compare_digest
        self._selector = selectors.EpollSelector()
        self._peers: list[_Peer] = []
        try:
            self._server = socket.create_server(("127.0.0.1" if self.here_only else "", 0), backlog=1024)
        except OSError as error:
            raise LaunchError(f"cannot listen for the job's agents: {error}") from error
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._looked_s = time.monotonic()
        hosts = ["127.0.0.1"] if self.here_only else host_addresses()
        path = self.folder / FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"hosts": hosts, "port": self._server.getsockname()[1], "token": self._token}, file)

    def fileno(self) -> int:
        """Return what can be read while there is something for :meth:`poll`."""
        return self._selector.fileno()

    def hang_up(self) -> None:
        """Close every connection; safe to call again."""
        while self._peers:
            self._drop(self._peers[0])
        self._server.close()
        self._selector.close()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take what has arrived, waiting at most ``timeout_s`` for the first of it."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
            else:
                self._read(key.data)
        now_s = time.monotonic()
        gap_s = min(now_s - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now_s
        for state in self.agents.values():
            state.silent_s += gap_s

    def tell(self, word: str) -> None:
        """Say ``report`` or ``end`` to every agent that is there."""
        for peer in self._peers:
            if peer.rank is not None:
                with contextlib.suppress(OSError):
                    peer.socket.sendall(f"{word}\n".encode())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._peers.append(_Peer(connection))
            self._selector.register(connection, selectors.EVENT_READ, self._peers[-1])

    def _read(self, peer: _Peer) -> None:
        try:
            received = peer.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        peer.received += received
        *lines, peer.received = peer.received.split(b"\n")
        for line in lines:
            if not self._take(peer, line):
                self._drop(peer)
                return
        if not received or len(peer.received) > _MAX_LINE_BYTES:
            if peer.rank is not None and not self.agents[peer.rank].finished:
                self.agents[peer.rank].gone = True
            self._drop(peer)

    def _take(self, peer: _Peer, line: bytes) -> bool:
        """Take one message; return False for one that is no agent's."""
        try:
            message = json.loads(line)
            if peer.rank is None:
                if not self._same(str(message["token"]), self._token):
                    return False
                peer.rank = int(message["rank"])
                self.agents[peer.rank] = AgentState()
                return True
            state = self.agents[peer.rank]
            state.silent_s = 0.0
            for name in ("progress", "done", "running", "repeat", "computed_s", "traced", "report", "finished"):
                if name in message:
                    setattr(state, name, message[name])
            state.dead = state.dead or tuple(message.get("dead", ()))
            state.signals |= {int(rank): int(number) for rank, number in message.get("signals", ())}
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()


def host_addresses() -> list[str]:
    """Return the addresses under which other hosts may reach this one: IPv4, loopback last."""
    # Agents import this module too and need no psutil.
    import psutil

    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    return sorted(found, key=lambda address: address.startswith("127."))


def call(folder: Path, rank: int, *, timeout_s: float = 5.0) -> socket.socket:
    """Return an agent's end of the line; raises :class:`LaunchError` when no address answers."""
    facts = json.loads((folder / FILE).read_text())
    refused = ""
    for host in facts["hosts"]:
        try:
            connection = socket.create_connection((host, facts["port"]), timeout=timeout_s)
        except OSError as error:
            refused = str(error)
            continue
        connection.sendall((json.dumps({"token": facts["token"], "rank": rank}) + "\n").encode())
        return connection
    raise LaunchError(
        f"rank {rank} cannot reach its caller at {', '.join(facts['hosts'])}, port {facts['port']}: {refused}; "
        "open the ports between the hosts of the job"
    )
