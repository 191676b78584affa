"""Random pictures, tilings and parameters: every exact variant gives the untiled reference's pixels."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from serial_executor import needs_opencl, opencl_program, run_serially

from heterotask_core.runtime.devices.base import source_text
from kernels.canny import numba_variants, numpy_variants
from kernels.canny.app import CANNY, CannyParams
from kernels.canny.graph import SOBEL
from kernels.canny.images import grey_image, picture_content
from kernels.canny.reference import canny_reference

VARIANTS = ["numpy", "numba", *(pytest.param(name, marks=needs_opencl) for name in ("opencl", "opencl_runs"))]


def picture(rows: int, columns: int, kind: str, seed: int) -> NDArray[np.uint8]:
    """Plateaus with noise, bare noise (long weak components), few levels (equal gradients), or one bright pixel."""
    rng = np.random.default_rng(seed)
    if kind == "plateaus":
        coarse = rng.integers(0, 200, (rows // 9 + 1, columns // 9 + 1))
        pixels = np.kron(coarse, np.ones((9, 9), dtype=int))[:rows, :columns] + rng.integers(0, 20, (rows, columns))
    elif kind == "noise":
        pixels = rng.integers(0, 256, (rows, columns))
    elif kind == "levels":
        pixels = 127 * rng.integers(0, 3, (rows, columns))
    else:
        pixels = np.zeros((rows, columns), dtype=int)
        pixels[rng.integers(0, rows), rng.integers(0, columns)] = 255
    return pixels.astype(np.uint8)


def edges(pixels: NDArray[np.uint8], variants: list[str], **params: float) -> tuple[NDArray, NDArray]:
    """Return the edges of the tiled graph, run with the first variant that a kernel has, and the reference's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.fromarray(pixels).save(folder / "input.png")
        given_params = CannyParams(image=str(folder / "input.png"), **params)
        run_serially(CANNY.build(given_params), folder, [*variants, variants[0].partition("_")[0]])
        found = np.asarray(Image.open(folder / "edges.png").convert("L"))
        grey = grey_image(given_params.image, 4096, picture_content(given_params.image))
    own = canny_reference(grey, sigma=given_params.sigma, low=given_params.low, high=given_params.high)
    return found, own


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.integers(3, 75),
    columns=st.integers(3, 75),
    tile=st.integers(16, 80),
    sigma=st.sampled_from([0.2, 0.5, 0.9, 1.0, 1.4, 2.0, 2.7, 3.6]),
    thresholds=st.tuples(st.floats(0.001, 1.0), st.floats(0.001, 1.0)).map(sorted),
    kind=st.sampled_from(["plateaus", "noise", "levels", "pixel"]),
    seed=st.integers(0, 10**6),
)
def test_tiles_give_the_pixels_of_the_whole(variant, rows, columns, tile, sigma, thresholds, kind, seed):
    low, high = thresholds
    found, own = edges(picture(rows, columns, kind, seed), [variant], tile=tile, sigma=sigma, low=low, high=high)
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(3, 3, 16), (3, 1000, 16), (3, 1000, 2048), (1000, 3, 101), (1001, 517, 100), (1001, 517, 1100), (16, 17, 16)],
)
def test_odd_sizes_and_partial_tiles(variant, rows, columns, tile):
    pixels = picture(rows, columns, "plateaus", rows)
    found, own = edges(pixels, [variant], tile=tile, sigma=1.4, low=0.03, high=0.2)
    assert found.any() or rows == columns == 3
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("variant", VARIANTS)
def test_halo_deeper_than_a_run_of_pixels(variant):
    found, own = edges(picture(150, 170, "levels", 2), [variant], tile=70, sigma=17.0, low=0.0005, high=0.003)
    assert found.any()
    np.testing.assert_array_equal(found, own)


@needs_opencl
def test_variants_may_alternate_from_kernel_to_kernel():
    """Every intermediate item is the same bits, so a plan may change the device anywhere."""
    pixels = picture(90, 130, "noise", 8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.fromarray(pixels).save(folder / "input.png")
        graph = CANNY.build(CannyParams(image=str(folder / "input.png"), tile=40, low=0.05, high=0.9))
        values = [run_serially(graph, folder, [variant]) for variant in ("numpy", "numba", "opencl", "opencl_runs")]
    for name, expected in values[0].items():
        for other in values[1:]:
            assert other[name].dtype == expected.dtype
            np.testing.assert_array_equal(other[name], expected, err_msg=name)
            # Also the sign of zero.
            assert other[name].tobytes() == expected.tobytes(), name


@needs_opencl
@pytest.mark.parametrize("double", [True, False])
def test_quotients_and_roots_are_correctly_rounded_with_and_without_double(double):
    import pyopencl as cl

    rng = np.random.default_rng(17)
    n = 200_000
    bits = rng.integers(0, 1 << 23, (2, n), dtype=np.uint32) | (rng.integers(64, 190, (2, n), dtype=np.uint32) << 23)
    # Hard cases: few significant bits give ties and exact results.
    bits[:, : n // 2] &= np.uint32(0xFFFFF000)
    a, b = bits.view(np.float32)
    a[:3], b[2] = 0.0, -1.5
    probe = """
    KERNEL probe(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *q, GLOBAL float *r, int n)
    {
        int i = GLOBAL_ID(0);
        if (i >= n) return;
        q[i] = divide(a[i], b[i]);
        r[i] = root_of(a[i]);
    }
    """
    head = "" if double else "#define WITHOUT_DOUBLE\n"
    context, queue, program = opencl_program(head + source_text(SOBEL.variant("opencl")) + probe)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in (a, b, np.zeros_like(a), np.zeros_like(a))]
    cl.Kernel(program, "probe")(queue, (n,), None, *buffers, np.int32(n))
    quotient, root = np.empty_like(a), np.empty_like(a)
    cl.enqueue_copy(queue, quotient, buffers[2])
    cl.enqueue_copy(queue, root, buffers[3])
    assert quotient.tobytes() == (a / b).tobytes()
    assert root.tobytes() == np.sqrt(a).tobytes()


@needs_opencl
def test_a_device_without_double_gives_the_same_edges(monkeypatch):
    import serial_executor

    pixels = picture(60, 70, "noise", 3)
    monkeypatch.setattr(
        serial_executor, "source_text", lambda variant: "#define WITHOUT_DOUBLE\n" + source_text(variant)
    )
    for variant in ("opencl", "opencl_runs"):
        found, own = edges(pixels, [variant], tile=32, sigma=1.4, low=0.05, high=0.4)
        np.testing.assert_array_equal(found, own)


@settings(max_examples=60, deadline=None)
@given(extent=st.integers(1, 60), sigma=st.floats(0.2, 6.0))
def test_masks_are_blurred_ones(extent, sigma):
    taps = numpy_variants.gaussian_taps(sigma)
    values = [np.empty(n, np.float32) for n in (len(taps), extent, extent + 3)]
    numba_variants.weights(*values, sigma=sigma)
    expected = [taps, numpy_variants.blurred_mask(extent, taps), numpy_variants.blurred_mask(extent + 3, taps)]
    for value, wanted in zip(values, expected, strict=True):
        assert value.tobytes() == wanted.tobytes()


def frame_pairs():
    """Two random blocks of labels that touch, and whether they are stacked."""
    side = st.integers(1, 9)
    return st.tuples(side, side, side, st.booleans(), st.integers(0, 10**6), st.floats(0.1, 0.9))


@pytest.mark.parametrize("variant", ["numpy", "numba"])
@settings(max_examples=80, deadline=None)
@given(case=frame_pairs())
def test_joined_frames_are_the_frame_of_the_joined_block(variant, case):
    """Slow reference: label the union of both blocks at once."""
    common, one, two, stacked, seed, density = case
    module = numpy_variants if variant == "numpy" else numba_variants
    shapes = [(one, common), (two, common)] if stacked else [(common, one), (common, two)]
    rng = np.random.default_rng(seed)
    whole_shape = (one + two, common) if stacked else (common, one + two)
    grade = (rng.random(whole_shape) < density).astype(np.uint8) * rng.choice([1, 1, 1, 2], whole_shape).astype(
        np.uint8
    )
    parts = [grade[:one], grade[one:]] if stacked else [grade[:, :one], grade[:, one:]]

    def labelled(block):
        labels, frame = np.empty(block.shape, np.int32), np.empty(2 * sum(block.shape), np.int32)
        numpy_variants.label(np.ascontiguousarray(block), labels, frame)
        return labels, frame

    (_, first), (_, second) = (labelled(part) for part in parts)
    whole_labels, whole = labelled(grade)
    scratch = {} if variant == "numpy" else {"scratch": np.full(12 * (len(first) + len(second)), 113, np.uint8)}
    options = {"first_shape": list(shapes[0]), "second_shape": list(shapes[1]), "stacked": stacked} | scratch
    union = np.empty_like(whole)
    module.merge(first, second, union, **options)
    np.testing.assert_array_equal(union, whole)
    final = whole.copy()
    final[rng.random(len(final)) < 0.2] *= -1
    # A component is strong everywhere or nowhere.
    for value in set(np.abs(whole[final < 0])):
        final[np.abs(whole) == value] = -value
    ends = np.empty_like(first), np.empty_like(second)
    module.spread(final, first, second, *ends, **options)
    strong = set(np.abs(whole_labels).ravel()[numpy_variants.frame_index(*whole_shape)[final < 0]])
    strong |= set(np.abs(whole_labels)[grade == 2])
    offset = 0
    for part, frame, end in zip(parts, (first, second), ends, strict=True):
        rows = slice(offset, offset + part.shape[0]) if stacked else slice(None)
        columns = slice(None) if stacked else slice(offset, offset + part.shape[1])
        labels = np.abs(whole_labels[rows, columns]).ravel()[numpy_variants.frame_index(*part.shape)]
        signs = np.where(np.isin(labels, [s for s in strong if s]), -1, 1)
        np.testing.assert_array_equal(end, np.abs(frame) * signs)
        offset += part.shape[0] if stacked else part.shape[1]
