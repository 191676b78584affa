"""CUDA devices through CuPy: one slab, three non-blocking streams, the arena registered as pinned memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import MissingExtraError, PlatformError
from heterotask_core.kernel import ArrayArg, Variant
from heterotask_core.runtime.devices.base import Argument, DoneEvent, Launcher, Staging, by_role, source_text

try:
    import cupy as cp
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("CUDA devices need CuPy; install heterotask[cuda]") from error

_MILLI = 1e-3


class CudaEvent:
    """A pair of CUDA events whose times are moved to the host's clock."""

    __slots__ = ("_anchor", "_anchor_s", "_start", "raw")

    def __init__(self, start: Any, end: Any, anchor: Any, anchor_s: float) -> None:
        """Cover what lies between two recorded events; ``anchor`` was complete at ``anchor_s``."""
        self._start = start
        self.raw = end
        self._anchor = anchor
        self._anchor_s = anchor_s

    def query(self) -> bool:
        """Return whether everything up to the end event is complete; raises the device's error."""
        return bool(self.raw.done)

    def times(self) -> tuple[float, float]:
        """Return start and end on CLOCK_MONOTONIC."""
        start_ms = cp.cuda.get_elapsed_time(self._anchor, self._start)
        end_ms = cp.cuda.get_elapsed_time(self._anchor, self.raw)
        return self._anchor_s + start_ms * _MILLI, self._anchor_s + end_ms * _MILLI


@dataclass(frozen=True, slots=True)
class HostEvent(DoneEvent):
    """An operation that the host had finished when its call returned; ``raw`` is recorded behind it."""

    raw: Any


class CudaBackend:
    """A device chosen by ``selector``: its PCI bus id, or its index (empty: 0)."""

    own_memory = True
    on_host_core = False

    def __init__(self, arena: npt.NDArray[np.uint8], *, slab_bytes: int, selector: str) -> None:
        """Open the device, allocate the slab, pin the arena once.

        Raises:
            PlatformError: there is no such device, or the slab does not fit.
        """
        runtime = cp.cuda.runtime
        try:
            index = runtime.deviceGetByPCIBusId(selector) if ":" in selector else int(selector or 0)
            runtime.setDevice(index)
            self._slab = cp.cuda.Memory(max(1, slab_bytes))
        except (runtime.CUDARuntimeError, cp.cuda.memory.OutOfMemoryError) as error:
            raise PlatformError(
                f"CUDA device {selector or '0'!r}: {error}; `heterotask platform` lists what there is"
            ) from error
        self._arena_address = arena.ctypes.data
        self._pinned = arena.nbytes > 0
        if self._pinned:
            runtime.hostRegister(self._arena_address, arena.nbytes, 0)
        self._arena = arena
        self._streams = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
        self._modules: dict[str, Any] = {}
        self._staging = Staging()
        self._anchor = cp.cuda.Event()
        self._anchor.record(self._streams[0])
        self._anchor.synchronize()
        self._anchor_s = time.monotonic()

    def _array(self, argument: Argument) -> Any:
        pointer = cp.cuda.MemoryPointer(self._slab, argument.offset_bytes)
        return cp.ndarray(argument.shape, np.dtype(argument.dtype), pointer)

    def _workspace(self, scratch: tuple[int, int] | None) -> Any:
        if scratch is None:
            return None
        return cp.ndarray((scratch[1],), np.uint8, cp.cuda.MemoryPointer(self._slab, scratch[0]))

    def _issue(self, queue: int, after: Sequence[Any], work: Callable[[], object]) -> CudaEvent:
        """Issue ``work`` on a stream, after events, between two recorded events."""
        stream = self._streams[queue]
        for event in after:
            stream.wait_event(event.raw)
        start, end = cp.cuda.Event(), cp.cuda.Event()
        with stream:
            start.record(stream)
            work()
            end.record(stream)
        return CudaEvent(start, end, self._anchor, self._anchor_s)

    def bind(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Launcher:
        """Compile a source variant, or make CuPy arrays of the slab for an array variant."""
        if variant.on_host:
            return self._bind_on_host(function, arguments, params)
        workspace = self._workspace(scratch)
        if variant.source is None:
            values = {**by_role(arguments, self._array), **params}
            if workspace is not None:
                values["scratch"] = workspace
            return lambda after: self._issue(0, after, lambda: function(**values))
        text = source_text(variant)
        if text not in self._modules:
            # Contraction would round once where NumPy rounds twice.
            self._modules[text] = cp.RawModule(code=text, options=("--fmad=false",))
        module = self._modules[text]
        arrays = {(a.role, a.index): self._array(a) for a in arguments}
        bound = []
        for launch in function(**by_role(arguments, Argument.placeholder), **params):
            values_list = tuple(
                arrays[arg.role, arg.index] if isinstance(arg, ArrayArg) else workspace if arg is None else arg
                for arg in launch.args
            )
            grid = tuple(-(-g // n) for g, n in zip(launch.global_size, launch.local_size, strict=True))
            bound.append((module.get_function(launch.entry), grid, launch.local_size, values_list))

        def work() -> None:
            for kernel, grid, block, values in bound:
                kernel(grid, block, values)

        return lambda after: self._issue(0, after, work)

    def _bind_on_host(
        self, function: Callable[..., Any], arguments: Sequence[Argument], params: Mapping[str, Any]
    ) -> Launcher:
        """Download what is read, call the function, upload what is written; all before a launch returns."""
        staged = self._staging.reserve(arguments)
        device = [self._array(a) for a in arguments]
        stream = self._streams[0]

        def run(after: Sequence[Any]) -> HostEvent:
            for event in after:
                event.raw.synchronize()
            start_s = time.monotonic()
            views = [self._staging.view(a) for a in staged]
            pairs = list(zip(staged, views, device, strict=True))
            for argument, host, array in pairs:
                if argument.access != "write":
                    array.get(stream=stream, out=host)
            stream.synchronize()
            arrays = iter(views)
            function(**by_role(staged, lambda _: next(arrays)), **params)
            for argument, host, array in pairs:
                if argument.access != "read":
                    array.set(host, stream=stream)
            last = cp.cuda.Event()
            last.record(stream)
            last.synchronize()
            return HostEvent(start_s, time.monotonic(), last)

        return run

    def _copy(
        self, queue: int, target: int, source: int, size_bytes: int, after: Sequence[Any], kind: int
    ) -> CudaEvent:
        stream = self._streams[queue].ptr
        runtime = cp.cuda.runtime
        return self._issue(queue, after, lambda: runtime.memcpyAsync(target, source, size_bytes, kind, stream))

    def prepare(self, offset: int, size_bytes: int) -> None:
        """Copies need nothing but addresses."""

    def copy_in(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> CudaEvent:
        """Copy from the arena to the slab."""
        kind = cp.cuda.runtime.memcpyHostToDevice
        return self._copy(queue, self._slab.ptr + target, self._arena_address + source, size_bytes, after, kind)

    def copy_out(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> CudaEvent:
        """Copy from the slab to the arena."""
        kind = cp.cuda.runtime.memcpyDeviceToHost
        return self._copy(queue, self._arena_address + target, self._slab.ptr + source, size_bytes, after, kind)

    def copy_within(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> CudaEvent:
        """Copy inside the slab."""
        kind = cp.cuda.runtime.memcpyDeviceToDevice
        return self._copy(queue, self._slab.ptr + target, self._slab.ptr + source, size_bytes, after, kind)

    def read(self, argument: Argument) -> npt.NDArray[Any]:
        """Return a copy of an array in the slab."""
        self._streams[0].synchronize()
        return cp.asnumpy(self._array(argument), stream=self._streams[0])  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Nothing is kept but compiled modules."""

    def close(self) -> None:
        """Finish the streams and unregister the arena before it is unmapped."""
        for stream in self._streams:
            stream.synchronize()
        if self._pinned:
            cp.cuda.runtime.hostUnregister(self._arena_address)
