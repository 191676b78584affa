"""Time variants and copies on one device, in a process of its own: ``python -m heterotask_core.profiling.child JOB``.

JOB is a JSON file (see :mod:`heterotask_core.profiling.measure`). Answers are JSON lines on stdout, one an item and
one a copied size; whatever kernels print goes to stderr. The process pins itself before it imports NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterotask_core.runtime.devices.base import Backend, Launcher

ALIGNMENT_BYTES = 4096
LINK_SIZES_BYTES = tuple(4096 * 4**i for i in range(7))
LINK_SAMPLES = 9
MIN_SAMPLES = 5
MAX_SAMPLES = 60
MAX_WARM_UPS = 10
STEADY = 0.05
PRECISE = 0.005


def main(path: str) -> None:
    """Do the job and exit."""
    job = json.loads(Path(path).read_text())
    if job["core_ids"]:
        os.sched_setaffinity(0, job["core_ids"])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import numpy as np

    from heterotask_core.runtime.devices.base import open_backend

    items = [_place(item) for item in job["items"]]
    size = max([end for *_, end in items] + [max(LINK_SIZES_BYTES) if job["link"] else 0] + [ALIGNMENT_BYTES])
    spare = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -spare.ctypes.data % ALIGNMENT_BYTES
    arena = spare[start : start + size]
    # Untouched pages would be faulted in by the first samples.
    arena[:] = 0
    backend = open_backend(job["kind"], selector=job["selector"], arena=arena, slab_bytes=size, cores=job["cores"])
    try:
        for i, (item, placed) in enumerate(zip(job["items"], items, strict=True)):
            try:
                answer = _time_item(item, placed, job, backend, arena)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"item": i} | answer), file=answers)
        if job["link"]:
            for direction in ("in", "out"):
                for bytes_ in LINK_SIZES_BYTES:
                    samples = _time_copies(backend, direction, bytes_)
                    print(json.dumps({"link": direction, "size_bytes": bytes_, "samples": samples}), file=answers)
    finally:
        backend.close()


def _place(item: dict[str, Any]) -> tuple[list[Any], tuple[int, int] | None, int]:
    """Return the arguments with offsets, (offset, bytes) of the scratch buffer, and the end."""
    from heterotask_core.kernel import find_kernel
    from heterotask_core.runtime.devices.base import Argument

    end = 0
    arguments = []
    kernel = find_kernel(item["module"], item["kernel"])
    for a in item["arguments"]:
        access = kernel.access(a["role"])
        argument = Argument(a["role"], a["index"], tuple(a["shape"]), a["dtype"], end, a["is_list"], access)
        arguments.append(argument)
        end += -(-argument.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    variant = kernel.variant(item["variant"])
    if variant.scratch_bytes is None:
        return arguments, None, end
    shapes = {a["role"]: tuple(a["shape"]) for a in reversed(item["arguments"])}
    scratch = variant.scratch_bytes(item["params"], shapes)
    return arguments, (end, scratch), end + scratch


def _time_item(
    item: dict[str, Any],
    placed: tuple[list[Any], tuple[int, int] | None, int],
    job: dict[str, Any],
    backend: Backend,
    arena: Any,
) -> dict[str, Any]:
    """Return cold time and samples in seconds, from the launch until the completion is seen."""
    import numpy as np

    from heterotask_core.kernel import find_kernel
    from heterotask_core.profiling.capture import decode_params
    from heterotask_core.runtime.devices.base import HOST_TO_DEVICE, view

    arguments, scratch, _ = placed
    variant = find_kernel(item["module"], item["kernel"]).variant(item["variant"])
    pristine = {
        i: np.load(a["file"], allow_pickle=False) for i, a in enumerate(item["arguments"]) if a["file"] is not None
    }

    def fill(positions: list[int]) -> None:
        for i in positions:
            view(arena, arguments[i])[...] = pristine[i]
            if backend.own_memory and arguments[i].size_bytes:
                offset = arguments[i].offset_bytes
                _wait(backend.copy_in(offset, offset, arguments[i].size_bytes, (), HOST_TO_DEVICE))

    fill(list(pristine))
    updated = [i for i, a in enumerate(item["arguments"]) if a["updated"]]
    # A folder for each: two variants of a sink must not meet each other's files.
    params = decode_params(item["params"], Path(tempfile.mkdtemp(dir=job["output_dir"])))
    started = time.monotonic()
    launch = backend.bind(variant, variant.load(), arguments, params, scratch)
    _wait(launch(()))
    cold_s = time.monotonic() - started
    if item["sink"]:
        return {"cold_s": cold_s, "samples": [cold_s]}

    def once() -> float:
        fill(updated)
        return _time_launch(launch)

    end_s = time.monotonic() + job["slice_s"]
    before = once()
    for _ in range(MAX_WARM_UPS):
        now = once()
        if abs(now - before) <= STEADY * now or time.monotonic() > end_s:
            break
        before = now
    samples: list[float] = []
    while len(samples) < MAX_SAMPLES and (len(samples) < MIN_SAMPLES or time.monotonic() < end_s):
        samples.append(once())
        if len(samples) >= 2 * MIN_SAMPLES:
            median = float(np.median(samples))
            spread = float(np.median(np.abs(np.array(samples) - median)))
            if spread <= PRECISE * median * len(samples) ** 0.5:
                break
        elif samples[0] > job["slice_s"] and len(samples) >= 2:
            break
    return {"cold_s": cold_s, "samples": samples}


def _time_launch(launch: Launcher) -> float:
    started = time.monotonic()
    _wait(launch(()))
    return time.monotonic() - started


def _wait(event: Any) -> None:
    # A driver thread may share the core: give it up between queries.
    while not event.query():
        os.sched_yield()


def _time_copies(backend: Backend, direction: str, size_bytes: int) -> list[float]:
    from heterotask_core.runtime.devices.base import DEVICE_TO_HOST, HOST_TO_DEVICE

    samples = []
    for _ in range(LINK_SAMPLES + 2):
        started = time.monotonic()
        if direction == "in":
            _wait(backend.copy_in(0, 0, size_bytes, (), HOST_TO_DEVICE))
        else:
            _wait(backend.copy_out(0, 0, size_bytes, (), DEVICE_TO_HOST))
        samples.append(time.monotonic() - started)
    # The first two allocate and map.
    return samples[2:]


if __name__ == "__main__":
    main(sys.argv[1])
