"""OpenCL devices through PyOpenCL: slabs, sub-buffers at planned offsets, three in-order queues.

A slab is one allocation, which devices limit to less than their memory. Offsets run on from slab to slab; the plan lets
nothing straddle two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import KernelError, MissingExtraError, PlatformError
from heterotask_core.kernel import ArrayArg, Variant
from heterotask_core.runtime.devices.base import Argument, DoneEvent, Launcher, Staging, by_role, source_text

try:
    import pyopencl as cl
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("OpenCL devices need PyOpenCL; install heterotask[opencl]") from error

_NANO = 1e-9


class OpenClEvent:
    """A PyOpenCL event whose device times are moved to the host's clock."""

    __slots__ = ("_first", "_offset_s", "raw")

    def __init__(self, first: Any, last: Any, offset_s: float) -> None:
        """Cover the commands from ``first`` to ``last`` of one queue."""
        self._first = first
        self.raw = last
        self._offset_s = offset_s

    def query(self) -> bool:
        """Return whether the last command is complete; raises :class:`KernelError` where it failed."""
        status = self.raw.command_execution_status
        if status < 0:
            raise KernelError(f"OpenCL error {status} at or before this operation")
        return bool(status == cl.command_execution_status.COMPLETE)

    def times(self) -> tuple[float, float]:
        """Return the device's start and end on CLOCK_MONOTONIC (anchored when the backend was opened)."""
        start_s = self._first.profile.start * _NANO + self._offset_s
        return start_s, self.raw.profile.end * _NANO + self._offset_s


@dataclass(frozen=True, slots=True)
class HostEvent(DoneEvent):
    """An operation that the host had finished when its call returned; ``raw`` is its last command."""

    raw: Any


class OpenClBackend:
    """A device chosen by ``selector`` "platform:device" (indices; empty: the first of the first)."""

    own_memory = True

    def __init__(self, arena: npt.NDArray[np.uint8], *, memory_bytes: int, slab_bytes: int, selector: str) -> None:
        """Open the device and allocate ``memory_bytes`` in slabs of ``slab_bytes`` (0: one of all).

        Raises:
            PlatformError: there is no such device, or a slab is larger than one allocation may be.
        """
        self._arena = arena
        device = _find(selector)
        # With more threads of the driver others take up the copies, as an accelerator's engines do.
        self.on_host_core = bool(device.type & cl.device_type.CPU) and device.max_compute_units == 1
        self._slab_bytes = min(slab_bytes, memory_bytes) or max(1, memory_bytes)
        if self._slab_bytes > device.max_mem_alloc_size:
            raise PlatformError(
                f"OpenCL device {device.name}: the plan needs {self._slab_bytes} bytes in one allocation, which holds "
                f"at most {device.max_mem_alloc_size}; write that as max_allocation_bytes of its memory into the "
                "platform file and plan again"
            )
        self._context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self._queues = [cl.CommandQueue(self._context, device, profiling) for _ in range(3)]
        # Zero-size buffers are refused.
        starts = range(0, max(1, memory_bytes), self._slab_bytes)
        sizes = [min(self._slab_bytes, max(1, memory_bytes) - start) for start in starts]
        self._slabs = [cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size) for size in sizes]
        self._parts: dict[tuple[int, int], Any] = {}
        self._programs: dict[str, Any] = {}
        self._staging = Staging()
        self._offset_s = self._anchor()

    def _anchor(self) -> float:
        """Return host clock minus device clock: the smallest of a few differences, error below a round trip."""
        byte = np.zeros(1, np.uint8)
        best = np.inf
        for _ in range(10):
            event = cl.enqueue_copy(self._queues[0], self._slabs[0], byte, is_blocking=False)
            event.wait()
            best = min(best, time.monotonic() - event.profile.end * _NANO)
        return float(best)

    def _part(self, offset: int, size_bytes: int) -> Any:
        """Return the sub-buffer of a byte range, made once."""
        key = (offset, size_bytes)
        if key not in self._parts:
            slab, start = divmod(offset, self._slab_bytes)
            self._parts[key] = self._slabs[slab].get_sub_region(start, size_bytes)
        return self._parts[key]

    def _program(self, variant: Variant) -> Any:
        text = source_text(variant)
        if text not in self._programs:
            try:
                program = cl.Program(self._context, text)
                self._programs[text] = program.build(options=["-cl-std=CL1.2"])
            except cl.Error as error:
                raise KernelError(f"variant {variant.name!r}: {variant.source} does not compile: {error}") from error
        return self._programs[text]

    def bind(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Launcher:
        """Compile the source (once a text) and set every argument; a launch only enqueues."""
        if variant.on_host:
            return self._bind_on_host(function, arguments, params)
        parts = {(a.role, a.index): self._part(a.offset_bytes, a.size_bytes) for a in arguments}
        workspace = None if scratch is None else self._part(*scratch)
        program = self._program(variant)
        bound = []
        for launch in function(**by_role(arguments, Argument.placeholder), **params):
            kernel = cl.Kernel(program, launch.entry)
            values = [
                parts[arg.role, arg.index] if isinstance(arg, ArrayArg) else workspace if arg is None else arg
                for arg in launch.args
            ]
            kernel.set_args(*values)
            size = tuple(-(-g // n) * n for g, n in zip(launch.global_size, launch.local_size, strict=True))
            bound.append((kernel, size, launch.local_size))
        queue = self._queues[0]

        def run(after: Sequence[Any]) -> OpenClEvent:
            wait = [event.raw for event in after] or None
            events = []
            for kernel, size, local in bound:
                events.append(cl.enqueue_nd_range_kernel(queue, kernel, size, local, wait_for=wait))
                wait = None
            queue.flush()
            return OpenClEvent(events[0], events[-1], self._offset_s)

        return run

    def _bind_on_host(
        self, function: Callable[..., Any], arguments: Sequence[Argument], params: Mapping[str, Any]
    ) -> Launcher:
        """Download what is read, call the function, upload what is written; all before a launch returns."""
        staged = self._staging.reserve(arguments)
        parts = [self._part(a.offset_bytes, a.size_bytes) for a in arguments]
        queue = self._queues[0]

        def run(after: Sequence[Any]) -> HostEvent:
            for event in after:
                event.raw.wait()
            start_s = time.monotonic()
            views = [self._staging.view(a) for a in staged]
            pairs = list(zip(staged, views, parts, strict=True))
            for argument, host, part in pairs:
                if argument.access != "write":
                    cl.enqueue_copy(queue, host, part, is_blocking=False)
            queue.finish()
            arrays = iter(views)
            function(**by_role(staged, lambda _: next(arrays)), **params)
            for argument, host, part in pairs:
                if argument.access != "read":
                    cl.enqueue_copy(queue, part, host, is_blocking=False)
            last = cl.enqueue_marker(queue)
            last.wait()
            return HostEvent(start_s, time.monotonic(), last)

        return run

    def _enqueue(self, queue: int, target: Any, source: Any, after: Sequence[Any], **options: Any) -> OpenClEvent:
        wait = [event.raw for event in after] or None
        event = cl.enqueue_copy(self._queues[queue], target, source, wait_for=wait, **options)
        self._queues[queue].flush()
        return OpenClEvent(event, event, self._offset_s)

    def prepare(self, offset: int, size_bytes: int) -> None:
        """Make the sub-buffer of a byte range."""
        self._part(offset, size_bytes)

    def copy_in(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> OpenClEvent:
        """Copy from the arena to the device's memory."""
        host = self._arena[source : source + size_bytes]
        return self._enqueue(queue, self._part(target, size_bytes), host, after, is_blocking=False)

    def copy_out(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> OpenClEvent:
        """Copy from the device's memory to the arena."""
        host = self._arena[target : target + size_bytes]
        return self._enqueue(queue, host, self._part(source, size_bytes), after, is_blocking=False)

    def copy_within(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> OpenClEvent:
        """Copy inside the device's memory."""
        return self._enqueue(queue, self._part(target, size_bytes), self._part(source, size_bytes), after)

    def read(self, argument: Argument) -> npt.NDArray[Any]:
        """Return a copy of an array in the device's memory."""
        host = np.empty(argument.shape, argument.dtype)
        if host.nbytes:
            part = self._part(argument.offset_bytes, argument.size_bytes)
            cl.enqueue_copy(self._queues[0], host, part, is_blocking=True)
        return host

    def forget(self) -> None:
        """Drop the sub-buffers."""
        self._parts.clear()

    def close(self) -> None:
        """Finish the queues and free the slabs."""
        for queue in self._queues:
            queue.finish()
        self._parts.clear()
        for slab in self._slabs:
            slab.release()


def _find(selector: str) -> Any:
    """Return the device that "platform:device" names."""
    platform_index, _, device_index = (selector or "0:0").partition(":")
    try:
        return cl.get_platforms()[int(platform_index)].get_devices()[int(device_index or 0)]
    except (cl.Error, ValueError, IndexError) as error:
        raise PlatformError(
            f"there is no OpenCL device {selector!r} here; `heterotask platform` lists what there is"
        ) from error
