"""The contract that every device backend must keep, and the arguments that variants get."""

from __future__ import annotations

import time

import numpy as np
import pytest
from runtime_kernels import ADD, BUMP, TWICE

from heterotask_core.errors import HeteroTaskError, PlatformError
from heterotask_core.kernel import Variant
from heterotask_core.runtime.devices.base import Argument, open_backend

KINDS = ["cpu", "opencl", pytest.param("cuda", marks=pytest.mark.gpu)]
N = 1000
SLOT = 8192


@pytest.fixture(params=[*KINDS, "opencl in slabs of one slot"])
def opened(request):
    """(kind, backend, arena); the device's memory is as large as the arena, so offsets mean the same in both."""
    kind, *slabs = request.param.split(" ")
    if kind != "cpu":
        pytest.importorskip({"opencl": "pyopencl", "cuda": "cupy"}[kind])
    arena = np.zeros(4 * SLOT, np.uint8)
    slab_bytes = SLOT if slabs else 0
    try:
        backend = open_backend(
            kind, selector="", arena=arena, memory_bytes=arena.nbytes, slab_bytes=slab_bytes, cores=2
        )
    except PlatformError as error:
        pytest.skip(str(error))
    yield kind, backend, arena
    backend.close()


def _finish(event):
    while not event.query():
        time.sleep(0)
    start_s, end_s = event.times()
    assert start_s <= end_s
    return event


def _argument(role, slot, index=0, is_list=False, access="update"):
    return Argument(role, index, (N,), "float64", slot * SLOT, is_list, access)


def test_copies_and_kernel_in_a_chain_of_events(opened):
    """In, compute, within, out, each only told to wait for the one before."""
    kind, backend, arena = opened
    data = np.random.default_rng(7).normal(size=N)
    arena[: 8 * N] = data.view(np.uint8)
    variants = [v for v in TWICE.variants if v.device_kind == kind or (kind == "cuda" and v.source)]
    launch = backend.bind(variants[0], variants[0].load(), [_argument("input", 0), _argument("output", 1)], {}, None)
    before_s = time.monotonic()
    copied = backend.copy_in(0, 0, 8 * N, [], 1)
    computed = launch([copied])
    moved = backend.copy_within(SLOT, 2 * SLOT, 8 * N, [computed], 0)
    back = _finish(backend.copy_out(2 * SLOT, 3 * SLOT, 8 * N, [moved], 2))
    after_s = time.monotonic()
    # Exact to the last bit: product and sum are not contracted.
    np.testing.assert_array_equal(arena[3 * SLOT : 3 * SLOT + 8 * N].view(np.float64), 2.0 * data + 1.0)
    for event in (copied, computed, moved):
        assert event.query()
        start_s, end_s = event.times()
        assert before_s - 1e-3 <= start_s <= end_s <= after_s + 1e-3
    assert computed.times()[1] <= back.times()[0] + 1e-3


def test_a_launch_can_be_repeated_on_new_data(opened):
    kind, backend, arena = opened
    variant = next(v for v in TWICE.variants if v.device_kind == kind or (kind == "cuda" and v.source))
    launch = backend.bind(variant, variant.load(), [_argument("input", 0), _argument("output", 1)], {}, None)
    for value in (1.0, 2.0):
        arena[: 8 * N].view(np.float64)[:] = value
        computed = launch([backend.copy_in(0, 0, 8 * N, [], 1)])
        _finish(backend.copy_out(SLOT, 2 * SLOT, 8 * N, [computed], 2))
        np.testing.assert_array_equal(arena[2 * SLOT : 2 * SLOT + 8 * N].view(np.float64), 2 * value + 1)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_variant_on_the_host_of_a_device_reads_and_writes_the_slab(kind):
    """What is read comes down, what is written goes up, what is only read stays; lists and later launches work."""
    pytest.importorskip({"opencl": "pyopencl", "cuda": "cupy"}[kind])
    arena = np.zeros(4 * SLOT, np.uint8)
    backend = open_backend(kind, selector="", arena=arena, memory_bytes=arena.nbytes, cores=1)
    variant = Variant("host", kind, "runtime_kernels:mix", on_host=True, blocking=True)
    arguments = [
        _argument("parts", 0, 0, True, "read"),
        _argument("parts", 1, 1, True, "read"),
        _argument("data", 2),
        _argument("output", 3, access="write"),
    ]
    launch = backend.bind(variant, variant.load(), arguments, {"factor": 3.0}, None)
    values = np.random.default_rng(5).normal(size=(3, N))
    for row in range(2):
        values += row
        for slot in range(3):
            arena[slot * SLOT : slot * SLOT + 8 * N] = values[slot].view(np.uint8)
            copied = backend.copy_in(slot * SLOT, slot * SLOT, 8 * N, [], 1)
        computed = launch([copied])
        assert computed.query()
        arena[:] = 0
        for slot in range(4):
            out = _finish(backend.copy_out(slot * SLOT, slot * SLOT, 8 * N, [computed], 2))
        got = [arena[slot * SLOT : slot * SLOT + 8 * N].view(np.float64) for slot in range(4)]
        np.testing.assert_array_equal(got[0], values[0])
        np.testing.assert_array_equal(got[1], values[1])
        np.testing.assert_array_equal(got[2], values[2] + 1)
        np.testing.assert_array_equal(got[3], 3.0 * (values[0] + values[1]))
        assert computed.times()[1] <= out.times()[0] + 1e-3
    backend.close()


def test_host_variant_gets_lists_scratch_and_cores_in_place():
    arena = np.zeros(4 * SLOT, np.uint8)
    arena[: 8 * N].view(np.float64)[:] = 5.0
    backend = open_backend("cpu", selector="", arena=arena, memory_bytes=0, cores=3)
    add = ADD.variants[0]
    parts = [_argument("parts", 0, 0, True), _argument("parts", 0, 1, True), _argument("output", 1)]
    _finish(backend.bind(add, add.load(), parts, {}, None)([]))
    bump = BUMP.variants[0]
    _finish(backend.bind(bump, bump.load(), [_argument("data", 1)], {}, (3 * SLOT, 64))([]))
    assert (arena[SLOT : SLOT + 8 * N].view(np.float64) == 13.0).all()
    assert (arena[3 * SLOT : 3 * SLOT + 64] == 3).all()
    assert not arena[3 * SLOT + 64 :].any()


def test_memory_beyond_one_allocation_of_the_device_is_had_in_slabs_or_refused():
    cl = pytest.importorskip("pyopencl")
    most = cl.get_platforms()[0].get_devices()[0].max_mem_alloc_size
    arena = np.zeros(SLOT, np.uint8)
    with pytest.raises(PlatformError, match=f"holds at most {most}; write that as max_allocation_bytes"):
        open_backend("opencl", selector="", arena=arena, memory_bytes=most + 1, cores=1)
    backend = open_backend("opencl", selector="", arena=arena, memory_bytes=most + SLOT, slab_bytes=most, cores=1)
    arena[:] = np.arange(SLOT) % 251
    last = backend.copy_in(0, most, SLOT, [], 1)
    arena_before = arena.copy()
    _finish(last)
    arena[:] = 0
    _finish(backend.copy_out(most, 0, SLOT, [last], 2))
    np.testing.assert_array_equal(arena, arena_before)
    backend.close()


@pytest.mark.parametrize(("kind", "selector"), [("emulated", ""), ("opencl", "99:0"), ("opencl", "nonsense")])
def test_a_device_that_is_not_there_is_an_error(kind, selector):
    if kind == "opencl":
        pytest.importorskip("pyopencl")
    with pytest.raises(HeteroTaskError, match=r"cannot be executed|no OpenCL device"):
        open_backend(kind, selector=selector, arena=np.zeros(0, np.uint8), memory_bytes=0, cores=1)
