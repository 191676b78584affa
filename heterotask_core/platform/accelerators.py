"""List OpenCL and CUDA devices; runs in a child process of the discovery and prints JSON."""

from __future__ import annotations

import json
from typing import Any


def opencl_fault(device: Any) -> str:
    """Return why nothing can be compiled for an OpenCL device, in the last line of what its driver says; "" if it can.

    Such devices are listed as any other: a PoCL older than the processor that it runs on is one.
    """
    import pyopencl

    try:
        program = pyopencl.Program(pyopencl.Context([device]), "__kernel void nothing(__global int *a) { a[0] = 0; }")
        program.build()
    except pyopencl.Error as error:
        said = [line.strip() for line in str(error).splitlines() if "error" in line.lower()]
        return said[-1] if said else type(error).__name__
    return ""


def print_opencl() -> None:
    """Print the OpenCL devices as a JSON list; selectors are ``platform index:device index``.

    A device with a ``fault`` cannot be used (see :func:`opencl_fault`).
    """
    import pyopencl

    found: list[dict[str, Any]] = []
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error:
        platforms = []
    for p, where in enumerate(platforms):
        for d, device in enumerate(where.get_devices()):
            found.append(
                {
                    "model": f"{where.name}: {device.name}".strip(),
                    "selector": f"{p}:{d}",
                    "driver": device.driver_version,
                    "memory_bytes": int(device.global_mem_size),
                    "alignment_bytes": max(256, int(device.mem_base_addr_align) // 8),
                    "max_allocation_bytes": int(device.max_mem_alloc_size),
                    "fault": opencl_fault(device),
                }
            )
    print(json.dumps(found))


def print_cuda() -> None:
    """Print the CUDA devices as a JSON list; selectors are PCI bus ids."""
    import cupy

    runtime = cupy.cuda.runtime
    found: list[dict[str, Any]] = []
    for d in range(runtime.getDeviceCount()):
        facts = runtime.getDeviceProperties(d)
        found.append(
            {
                "model": facts["name"].decode(),
                "selector": runtime.deviceGetPCIBusId(d),
                "driver": str(runtime.driverGetVersion()),
                "memory_bytes": int(facts["totalGlobalMem"]),
                "alignment_bytes": 256,
                "max_allocation_bytes": int(facts["totalGlobalMem"]),
            }
        )
    print(json.dumps(found))
