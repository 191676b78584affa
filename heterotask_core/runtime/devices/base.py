"""The contract of a device backend: what a worker needs to run kernels and copies on its device.

A backend belongs to one rank. *Issuing never blocks* except where it computes: on a CPU, and for variants
``on_host``. Every call that issues
returns an :class:`Event`; operations issued to one queue run in order, those of different queues concurrently,
and ``after`` makes an operation wait for earlier events of the same backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from heterotask_core.kernel import PRELUDE, Access, ArrayArg, Variant

COMPUTE, HOST_TO_DEVICE, DEVICE_TO_HOST = 0, 1, 2
"""Queues of a device, numbered as the lane kinds."""


class Event(Protocol):
    """Completion of an issued operation."""

    def query(self) -> bool:
        """Return whether it is complete, without blocking; raises what the device reports."""

    def times(self) -> tuple[float, float]:
        """Return start and end in seconds of CLOCK_MONOTONIC; only after :meth:`query` was true."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a variant gets: its role and where it lies in the memory the device computes in."""

    role: str
    index: int
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    is_list: bool
    access: Access = "update"

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def placeholder(self) -> ArrayArg:
        """Return what a source variant sees."""
        return ArrayArg(self.role, self.index, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """An operation that was complete when its call returned."""

    start_s: float
    end_s: float

    def query(self) -> bool:
        """Return True."""
        return True

    def times(self) -> tuple[float, float]:
        """Return the times taken by the host."""
        return self.start_s, self.end_s


class Staging:
    """Host copies of a device's arrays for variants ``on_host``; one runs at a time, so one buffer serves all."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._memory = np.empty(0, np.uint8)

    def reserve(self, arguments: Sequence[Argument]) -> list[Argument]:
        """Return the arguments at offsets in the staging buffer, which grows where it must (before the start)."""
        staged, end = [], 0
        for argument in arguments:
            staged.append(replace(argument, offset_bytes=end))
            end += -(-argument.size_bytes // 64) * 64
        if end > self._memory.size:
            self._memory = np.empty(end, np.uint8)
        return staged

    def view(self, argument: Argument) -> npt.NDArray[Any]:
        """Return the host copy of a reserved argument."""
        return view(self._memory, argument)


Launcher = Callable[[Sequence[Any]], Event]
"""Runs a bound task after the given events of the same backend."""


class Backend(Protocol):
    """A device: kernels in its own memory (a CPU: in the arena), copies between that and the arena."""

    own_memory: bool
    """Whether the device has memory of its own; without, it computes in the arena."""
    on_host_core: bool
    """Whether one thread of a driver computes on the rank's core: the rank may not get it back until a kernel ends."""

    def bind(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Launcher:
        """Prepare a task (compile, set arguments); ``scratch`` is (offset, bytes) in the computing memory."""

    def prepare(self, offset: int, size_bytes: int) -> None:
        """Make what copies of these bytes of the device's memory need: later nothing is allocated."""

    def copy_in(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> Event:
        """Copy from the arena (offset ``source``) to the device's memory (offset ``target``)."""

    def copy_out(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> Event:
        """Copy from the device's memory to the arena."""

    def copy_within(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> Event:
        """Copy inside the memory that the device computes in."""

    def read(self, argument: Argument) -> npt.NDArray[Any]:
        """Return a copy of an array in the memory that the device computes in, once kernels issued before are done."""

    def forget(self) -> None:
        """Drop what was bound: another program follows."""

    def close(self) -> None:
        """Wait for everything issued and free the device's memory."""


def by_role(arguments: Sequence[Argument], make: Callable[[Argument], Any]) -> dict[str, Any]:
    """Return role → array (or list of arrays, in order) with ``make`` building each."""
    arrays: dict[str, Any] = {}
    for argument in arguments:
        if argument.is_list:
            arrays.setdefault(argument.role, []).append(make(argument))
        else:
            arrays[argument.role] = make(argument)
    return arrays


def view(memory: npt.NDArray[np.uint8], argument: Argument) -> npt.NDArray[Any]:
    """Return the part of ``memory`` that ``argument`` describes, with its dtype and shape."""
    return np.ndarray(argument.shape, argument.dtype, memory, argument.offset_bytes)


def source_text(variant: Variant) -> str:
    """Return prelude, macros and C source of a source variant as one text, lines numbered as in the source."""
    prelude = PRELUDE.read_text()
    path = variant.source_path()
    macros = "".join(f"#define {name} {value}\n" for name, value in variant.defines)
    return f'{prelude}\n{macros}#line 1 "{path.name}"\n{path.read_text()}'


def open_backend(
    kind: str, *, selector: str, arena: npt.NDArray[np.uint8], memory_bytes: int, slab_bytes: int = 0, cores: int
) -> Backend:
    """Open the device of ``kind`` that ``selector`` names, with ``memory_bytes`` of its own memory.

    ``slab_bytes`` is the largest allocation that the plan counts on; nothing straddles a multiple of it; 0: no limit.

    Raises:
        PlatformError: the kind has no backend, or the device is not there.
        MissingExtraError: the package that drives it is not installed.
    """
    from heterotask_core.errors import PlatformError

    if kind == "cpu":
        from heterotask_core.runtime.devices.cpu import CpuBackend

        return CpuBackend(arena, cores=cores)
    if kind == "opencl":
        from heterotask_core.runtime.devices.opencl import OpenClBackend

        return OpenClBackend(arena, memory_bytes=memory_bytes, slab_bytes=slab_bytes, selector=selector)
    if kind == "cuda":
        from heterotask_core.runtime.devices.cuda import CudaBackend

        return CudaBackend(arena, slab_bytes=memory_bytes, selector=selector)
    raise PlatformError(
        f"devices of kind {kind!r} cannot be executed (only cpu, opencl, cuda); simulate the plan instead"
    )
