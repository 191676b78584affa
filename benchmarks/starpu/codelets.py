"""What StarPU runs for a task: the machine code of our CPU variants, and the launches of our OpenCL variants.

A CPU implementation is an address in this process with a list of integers and one of reals (``layer.h``). Applications
register how a task of a kernel is turned into one with :func:`native`; a kernel without gets the Python variant through
a callback, which holds the interpreter's lock and is meant for input and output only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from heterotask_core.graph import Task
from heterotask_core.kernel import OutputPath
from heterotask_core.runtime.quick_numba import quicken

# As our ranks do.
quicken()

Array = np.ndarray[Any, Any]

SIGNATURE = types.void(types.CPointer(types.voidptr), types.CPointer(types.int64), types.CPointer(types.float64))

compiled: Any = numba.cfunc(SIGNATURE, cache=True, fastmath=False, error_model="numpy")
"""Decorator of ``function(arrays, numbers, reals)`` that runs a jitted core on ``numba.carray`` views."""

CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_double)
)


@dataclass(frozen=True)
class Call:
    """A CPU implementation of one task; ``scratch_bytes`` is memory that it gets as a further array."""

    address: int
    numbers: Sequence[int] = ()
    reals: Sequence[float] = ()
    scratch_bytes: int = 0


@dataclass
class Host:
    """What tasks need from this process: the C functions, the results' folder, and memory that must stay alive."""

    functions: ctypes.CDLL
    folder: Path
    errors: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def function(self, name: str) -> int:
        """Return the address of a function of the C library."""
        return ctypes.cast(getattr(self.functions, name), ctypes.c_void_p).value or 0

    def address(self, array: Array) -> int:
        """Return the address of an array, which is kept alive."""
        self.kept.append(array)
        return int(array.ctypes.data)

    def text(self, value: bytes) -> int:
        """Return the address of a string that is kept alive."""
        buffer = ctypes.create_string_buffer(value)
        self.kept.append(buffer)
        return ctypes.addressof(buffer)

    def load(self, blocks: Sequence[Array]) -> Call:
        """Return the copy of views of host arrays into the task's arrays; only rows must be contiguous."""
        numbers = [len(blocks)]
        for block in blocks:
            self.kept.append(block)
            if block.flags.c_contiguous:
                numbers += [block.ctypes.data, block.nbytes, 1, block.nbytes]
                continue
            row_bytes = block.nbytes // len(block)
            numbers += [block.ctypes.data, block.strides[0], len(block), row_bytes]
        return Call(self.function("native_load"), numbers)

    def store(self, files: Sequence[tuple[str, str, tuple[int, ...], int, Sequence[int]]]) -> Call:
        """Return the writing of ``.npy`` files: (name, dtype, shape, rows, bytes of a row of each array)."""
        numbers = [len(files)]
        for name, dtype, shape, rows, row_bytes in files:
            header = npy_header(dtype, shape)
            path = self.text(str(self.folder / name).encode())
            numbers += [path, self.text(header), len(header), rows, len(row_bytes), *row_bytes]
        return Call(self.function("native_store"), numbers)


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of a ``.npy`` file."""
    import io

    stream = io.BytesIO()
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


Native = Callable[[Task, Host], Call]
NATIVE: dict[tuple[str, str], Native] = {}
"""(kernel's module, kernel's name) → how a task of it is called."""


def native(module: str, *kernels: str) -> Callable[[Native], Native]:
    """Register how tasks of kernels are called."""

    def register(make: Native) -> Native:
        for name in kernels:
            NATIVE[module, name] = make
        return make

    return register


def output_name(value: object) -> str:
    """Return the file's name that a parameter gives."""
    assert isinstance(value, OutputPath)
    return value.name


def by_callback(task: Task, host: Host) -> Call:
    """Return the first CPU variant of a task's kernel, called back in Python."""
    variant = next(v for v in task.kernel.variants if v.device_kind == "cpu")
    function = variant.load()
    params = {k: host.folder / v.name if isinstance(v, OutputPath) else v for k, v in task.params.items()}
    scratch_bytes = variant.scratch_bytes(task.params, task.shapes()) if variant.scratch_bytes else 0

    def call(arrays: Any, numbers: Any, reals: Any) -> None:
        try:
            values: dict[str, Any] = {}
            for k, a in enumerate(task.arguments):
                memory = (ctypes.c_uint8 * a.item.size_bytes).from_address(arrays[k] or 0)
                array = np.frombuffer(memory, a.item.dtype).reshape(a.item.shape)
                if a.is_list:
                    values.setdefault(a.role, []).append(array)
                else:
                    values[a.role] = array
            if scratch_bytes:
                memory = (ctypes.c_uint8 * scratch_bytes).from_address(arrays[len(task.arguments)])
                values["scratch"] = np.frombuffer(memory, np.uint8)
            function(**values, **params)
        except Exception as error:  # a C caller cannot see it
            host.errors.append(f"task {task.name}: {error!r}")

    callback = CALLBACK(call)
    host.kept.append(callback)
    return Call(ctypes.cast(callback, ctypes.c_void_p).value or 0, scratch_bytes=scratch_bytes)


def call_of(task: Task, host: Host) -> Call:
    """Return what a CPU worker runs for a task."""
    return NATIVE.get((task.kernel.module, task.kernel.name), by_callback)(task, host)
