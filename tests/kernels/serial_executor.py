"""Run a task graph serially in this process, with variants chosen by name; OpenCL ones on the first device."""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterotask_core.graph import Task, TaskGraph
from heterotask_core.kernel import ArrayArg, OutputPath, Variant
from heterotask_core.runtime.devices.base import source_text


def opencl_devices() -> bool:
    """Return whether an OpenCL platform is here."""
    try:
        import pyopencl as cl

        return bool(cl.get_platforms())
    except Exception:
        return False


needs_opencl = pytest.mark.skipif(not opencl_devices(), reason="no OpenCL device here: install heterotask[opencl]")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here to compile the source as CUDA")


def cuda_assembly(variant: Variant, folder: Path, architecture: str) -> str:
    """Compile a variant's source as CUDA for an architecture such as sm_80 and return the PTX."""
    source, ptx = folder / "source.cu", folder / "source.ptx"
    source.write_text(source_text(variant))
    command = ["nvcc", "-ptx", "--fmad=false", f"-arch={architecture}", "-o", str(ptx), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ptx.read_text()


def run_serially(graph: TaskGraph, output_dir: Path, prefer: Sequence[str]) -> dict[str, np.ndarray]:
    """Run every task with the first variant of ``prefer`` that its kernel has; return the last value of each item."""
    values: dict[int, np.ndarray] = {}
    latest: dict[str, np.ndarray] = {}
    for task in graph:
        variants = {v.name: v for v in task.kernel.variants}
        variant = next(variants[name] for name in (*prefer, "numpy") if name in variants)
        bound: dict[str, object] = {}
        for argument in task.arguments:
            if argument.reads is not None:
                array = values[argument.reads.index]
            else:
                array = np.full(argument.item.shape, 113, dtype=argument.item.dtype)
            if argument.makes is not None:
                array = array.copy() if argument.reads is not None else array
                values[argument.makes.index] = array
                latest[argument.item.name] = array
            else:
                array = array.view()
                array.setflags(write=False)
            if argument.is_list:
                bound.setdefault(argument.role, []).append(array)  # type: ignore[attr-defined]
            else:
                bound[argument.role] = array
        params = {k: output_dir / v.name if isinstance(v, OutputPath) else v for k, v in task.params.items()}
        if variant.device_kind == "opencl" and not variant.on_host:
            run_on_opencl(variant, task, bound, params)
        else:
            if variant.scratch_bytes is not None:
                size = variant.scratch_bytes(task.params, task.shapes())
                params["scratch"] = np.full(size, 113, dtype=np.uint8)
            variant.load()(**bound, **params)
    return latest


def run_on_opencl(variant: Variant, task: Task, bound: dict[str, object], params: dict[str, object]) -> None:
    """Run one task's launches on the first OpenCL device and copy the results back."""
    import pyopencl as cl

    context, queue, program = opencl_program(source_text(variant))
    buffers: dict[tuple[str, int], object] = {}
    placeholders: dict[str, object] = {}
    results = []
    made = {a.role for a in task.arguments if a.makes is not None}
    for role, value in bound.items():
        arrays = value if isinstance(value, list) else [value]
        args = [ArrayArg(role, k, array.shape, array.dtype.name) for k, array in enumerate(arrays)]
        placeholders[role] = args if isinstance(value, list) else args[0]
        for k, array in enumerate(arrays):
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, array.nbytes)
            cl.enqueue_copy(queue, buffer, np.ascontiguousarray(array))
            buffers[role, k] = buffer
            if role in made:
                results.append((array, buffer))
    scratch = None
    if variant.scratch_bytes is not None:
        garbage = np.full(variant.scratch_bytes(task.params, task.shapes()), 113, dtype=np.uint8)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        scratch = cl.Buffer(context, flags, hostbuf=garbage)
    for launch in variant.load()(**placeholders, **params):
        args = [
            buffers[a.role, a.index] if isinstance(a, ArrayArg) else scratch if a is None else a for a in launch.args
        ]
        size = tuple(-(-g // n) * n for g, n in zip(launch.global_size, launch.local_size, strict=True))
        kernel = cl.Kernel(program, launch.entry)
        kernel(queue, size, launch.local_size, *args)
    for array, buffer in results:
        cl.enqueue_copy(queue, array, buffer)
    queue.finish()


@functools.cache
def opencl_program(text: str) -> tuple[Any, Any, Any]:
    """Build a source once; return context, queue and program."""
    import pyopencl as cl

    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    program = cl.Program(context, text).build(options=["-cl-std=CL1.2"])
    return context, cl.CommandQueue(context), program
