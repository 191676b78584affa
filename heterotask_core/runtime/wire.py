"""Messages between a session and its job: an 8-byte length, a JSON head, raw arrays; nothing is pickled.

The head of a message names the arrays behind it: ``{"arrays": [[name, dtype, shape], …], …}``.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import KernelCall, Program, RankRole

_LENGTHS = struct.Struct("<QQ")
MAX_BYTES = 1 << 34
"""A longer message is refused: what is on the other side is no session."""


@dataclass(frozen=True)
class Message:
    """JSON values and arrays."""

    head: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def encode(self) -> bytes:
        """Return the bytes of the message, lengths first."""
        described = [[name, array.dtype.str, array.shape] for name, array in self.arrays.items()]
        head = json.dumps({**self.head, "arrays": described}).encode()
        body = b"".join(np.ascontiguousarray(array).tobytes() for array in self.arrays.values())
        return _LENGTHS.pack(len(head), len(body)) + head + body

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> Message:
        """Return the message in ``data``, whose arrays are read-only views of it.

        Raises:
            ExecutionError: it is none.
        """
        try:
            view = memoryview(data)
            head_bytes, _ = _LENGTHS.unpack(view[: _LENGTHS.size])
            offset = _LENGTHS.size + head_bytes
            head = json.loads(bytes(view[_LENGTHS.size : offset]))
            arrays = {}
            for name, dtype, shape in head.pop("arrays"):
                kind = np.dtype(dtype)
                count = math.prod(shape)
                arrays[name] = np.frombuffer(view, kind, count, offset).reshape(shape)
                offset += count * kind.itemsize
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise ExecutionError(f"damaged message between session and job: {error}") from error
        return Message(head, arrays)


def send(connection: socket.socket, message: Message) -> None:
    """Send a message, all of it."""
    connection.sendall(message.encode())


def receive(connection: socket.socket) -> bytearray | None:
    """Return the bytes of the next message, for :meth:`Message.decode`; None where the other side is gone.

    Raises:
        ExecutionError: what comes is no message.
    """
    lengths = _exactly(connection, _LENGTHS.size)
    if lengths is None:
        return None
    size = sum(_LENGTHS.unpack(lengths))
    if size > MAX_BYTES:
        raise ExecutionError(f"damaged message between session and job: {size} bytes are announced")
    rest = _exactly(connection, size)
    return None if rest is None else lengths + rest


def _exactly(connection: socket.socket, n_bytes: int) -> bytearray | None:
    data = bytearray(n_bytes)
    view, got = memoryview(data), 0
    while got < n_bytes:
        try:
            n = connection.recv_into(view[got:])
        except ConnectionResetError:
            # It left without having read everything that was sent to it.
            return None
        if n == 0:
            return None
        got += n
    return data


def program_message(program: Program, **head: Any) -> Message:
    """Return ``program``, without its ``meta`` (which no rank reads), as a message with more values in its head."""
    arrays, rest = {}, {}
    for f in fields(Program):
        value = getattr(program, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value
        elif f.name == "ranks":
            rest[f.name] = [[r.node, r.device, list(r.core_ids)] for r in value]
        elif f.name == "calls":
            rest[f.name] = [[c.module, c.kernel, c.variant, c.fingerprint, dict(c.params)] for c in value]
        elif f.name != "meta":
            rest[f.name] = value
    return Message({**head, "program": rest}, arrays)


def program_of(message: Message) -> Program:
    """Return the program in a message.

    Raises:
        ExecutionError: there is none.
    """
    try:
        rest = dict(message.head["program"])
        rest["ranks"] = tuple(RankRole(node, device, tuple(cores)) for node, device, cores in rest["ranks"])
        rest["calls"] = tuple(KernelCall(*call) for call in rest["calls"])
        rest["item_shapes"] = tuple(map(tuple, rest["item_shapes"]))
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in rest.items()}
        values |= {f.name: message.arrays[f.name] for f in fields(Program) if f.name in message.arrays}
        return Program(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionError(f"the message to the job holds no program: {error}") from error
