"""List OpenCL and CUDA devices; runs in a child process of the discovery and prints JSON."""

from __future__ import annotations

import json
from typing import Any


def print_opencl() -> None:
    """Print the OpenCL devices as a JSON list; selectors are ``platform index:device index``."""
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
