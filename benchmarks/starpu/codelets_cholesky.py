"""Cholesky's CPU codelets: SciPy's BLAS and LAPACK by address, the jitted kernel matrix."""

from __future__ import annotations

import ctypes

import numba
import numpy as np
from codelets import Call, Host, compiled, native, output_name

from heterotask_core.graph import Task
from kernels.blas import extension
from kernels.cholesky.numba_variants import _gram
from kernels.cholesky.points import points

GRAPH = "kernels.cholesky.graph"
NAMES = ("sgemm", "ssyrk", "strsm", "spotrf", "dgemm", "dsyrk", "dtrsm", "dpotrf")


@compiled
def _gram32(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    left = numba.carray(arrays[0], (numbers[0], numbers[2]), np.float32)
    right = numba.carray(arrays[numbers[3]], (numbers[1], numbers[2]), np.float32)
    tile = numba.carray(arrays[numbers[3] + 1], (numbers[0], numbers[1]), np.float32)
    _gram(left, right, tile, np.float32(reals[0]))
    if reals[1] != 0.0:
        for i in range(numbers[0]):
            tile[i, i] += np.float32(reals[1])


@compiled
def _gram64(arrays, numbers, reals):  # type: ignore[no-untyped-def]
    left = numba.carray(arrays[0], (numbers[0], numbers[2]), np.float64)
    right = numba.carray(arrays[numbers[3]], (numbers[1], numbers[2]), np.float64)
    tile = numba.carray(arrays[numbers[3] + 1], (numbers[0], numbers[1]), np.float64)
    _gram(left, right, tile, reals[0])
    if reals[1] != 0.0:
        for i in range(numbers[0]):
            tile[i, i] += reals[1]


def _pointer(name: str) -> int:
    """Return the address of a routine that SciPy exports to Cython."""
    module = extension("cython_lapack" if "potrf" in name else "cython_blas")
    capsule = module.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))


def _hand_over(host: Host) -> None:
    for which, name in enumerate(NAMES):
        host.functions.native_blas(ctypes.c_int(which), ctypes.c_void_p(_pointer(name)))


@native(GRAPH, "load")
def load(task: Task, host: Host) -> Call:
    """A block of the points."""
    (item,) = (a.item for a in task.arguments)
    start = task.params["start"]
    block = points(task.params["size"])[start : start + item.shape[0]]
    return host.load([np.ascontiguousarray(block, item.dtype)])


@native(GRAPH, "gram", "gram_diagonal")
def gram(task: Task, host: Host) -> Call:
    """A tile of the kernel matrix."""
    shapes = task.shapes()
    function = _gram32 if task.params["dtype"] == "float32" else _gram64
    numbers = [*shapes["tile"], shapes["left"][1], int("right" in shapes)]
    return Call(function.address, numbers, [task.params["gamma"], task.params.get("jitter", 0.0)])


@native(GRAPH, "potrf", "trsm", "syrk", "gemm")
def factor(task: Task, host: Host) -> Call:
    """A step of the factorisation."""
    _hand_over(host)
    shapes, name = task.shapes(), task.kernel.name
    sizes = {
        "potrf": [shapes["tile"][0]],
        "trsm": [*shapes["tile"]],
        "syrk": [*shapes.get("panel", ())],
        "gemm": [*shapes["tile"], *shapes.get("left", ())[1:]],
    }[name]
    return Call(host.function(f"native_{name}_{task.params['dtype']}"), sizes)


@native(GRAPH, "store")
def store(task: Task, host: Host) -> Call:
    """A block row as a ``.npy`` file."""
    items = [a.item for a in task.arguments]
    itemsize, rows = np.dtype(items[0].dtype).itemsize, items[0].shape[0]
    shape = (rows, sum(item.shape[1] for item in items))
    widths = [itemsize * item.shape[1] for item in items]
    return host.store([(output_name(task.params["path"]), items[0].dtype, shape, rows, widths)])
