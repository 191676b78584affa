"""Result files have the bytes of NumPy's own, whatever stood there, and are unreadable while they are half written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import results


def bytes_of_save(folder: Path, array: np.ndarray) -> bytes:
    np.save(folder / "expected.npy", array)
    return (folder / "expected.npy").read_bytes()


ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.zeros((0, 5), np.int32),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(20, dtype=np.complex64)[::2],
]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("before", [None, b"", b"short", b"x" * 5000])
def test_an_array_is_written_as_numpy_would(array: np.ndarray, before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    if before is not None:
        path.write_bytes(before)
    results.write_array(path, array)
    assert path.read_bytes() == bytes_of_save(tmp_path, np.ascontiguousarray(array))


@given(
    rows=st.integers(0, 9),
    widths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    block_bytes=st.sampled_from([1, 64, 1 << 18]),
)
def test_tiles_side_by_side_are_one_matrix(
    rows: int, widths: list[int], block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tiles")
    tiles = [np.full((rows, width), k, np.float32) + np.arange(width) / 8 for k, width in enumerate(widths)]
    tiles = [tile.astype(np.float32) for tile in tiles]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "BLOCK_BYTES", block_bytes)
        results.write_beside(folder / "a.npy", tiles)
    assert (folder / "a.npy").read_bytes() == bytes_of_save(folder, np.concatenate(tiles, axis=1))


def test_arrays_behind_each_other_are_one(tmp_path: Path) -> None:
    arrays = [np.arange(n, dtype=np.int32) for n in (3, 0, 5)]
    results.write_behind(tmp_path / "a.npy", arrays)
    assert (tmp_path / "a.npy").read_bytes() == bytes_of_save(tmp_path, np.concatenate(arrays))


@pytest.mark.parametrize("content", [b"", b"SIMPLE", b"SIMPLE  =" + b" " * 3000])
def test_bytes_replace_a_longer_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    path.write_bytes(b"y" * 4000)
    results.write_bytes(path, content)
    assert path.read_bytes() == content


def test_a_file_that_is_cut_off_over_an_older_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    results.write_array(path, np.arange(8.0))
    real, calls = os.pwrite, []

    def full_disk(file: int, content: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) > 2:  # after the old header is gone and 40 of 64 bytes are new
            raise OSError(28, "No space left on device")
        return real(file, bytes(content)[:40] if at else content, at)

    monkeypatch.setattr(os, "pwrite", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.npy"):
        results.write_array(path, np.arange(8.0) + 1)
    with pytest.raises(ValueError, match="pickled"):
        np.load(path)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: real(file, bytes(content)[:3], at))
    monkeypatch.setattr(results, "_header", lambda dtype, shape: b"head")
    results.write_array(tmp_path / "a", np.arange(250, dtype=np.uint8))
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(range(250))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        results.write_array(tmp_path / "nowhere" / "a.npy", np.zeros(1))
