"""The result's file: bands of any widths and contents join to the PNG that another reader sees."""

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kernels.canny.png import band_bytes, compress_band, joined_checksum, write_png


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    heights=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    density=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_bands_join_to_the_picture(tmp_path_factory, widths, heights, density, seed):
    rng = np.random.default_rng(seed)
    rows, columns = sum(heights), sum(widths)
    picture = (rng.random((rows, columns)) < density).astype(np.uint8) * rng.integers(1, 256, dtype=np.uint8)
    bands = []
    for top, height in zip(np.cumsum([0, *heights[:-1]]), heights, strict=True):
        bands.append(np.full(band_bytes(height, columns), 113, dtype=np.uint8))
        line = picture[top : top + height]
        compress_band(np.split(line, np.cumsum(widths)[:-1], axis=1), bands[-1])
    path = tmp_path_factory.mktemp("png") / "edges.png"
    write_png(path, bands, heights, columns)
    assert [p.name for p in path.parent.iterdir()] == ["edges.png"]
    with Image.open(path) as file:
        assert file.mode == "1"
        np.testing.assert_array_equal(np.asarray(file), picture > 0)


def test_a_band_that_does_not_compress_fits():
    noise = np.random.default_rng(1).integers(0, 2, (800, 4000), dtype=np.uint8)
    band = np.empty(band_bytes(800, 4000), dtype=np.uint8)
    compress_band([noise], band)


@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_joined_checksum(first, second):
    assert joined_checksum(zlib.adler32(first), zlib.adler32(second), len(second)) == zlib.adler32(first + second)
