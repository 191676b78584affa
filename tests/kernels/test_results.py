"""Result files have the bytes of NumPy's own, whatever stood there, and are unreadable while they are half written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from special_files import make_socket

from kernels import results

Writer = Callable[[Path, Sequence[np.ndarray]], None]


def bytes_of_save(folder: Path, array: np.ndarray) -> bytes:
    np.save(folder / "expected.npy", array)
    return (folder / "expected.npy").read_bytes()


RECORD = np.dtype([("row", "<i4"), ("at", ">f8", (2,)), ("name", "S3")])
PADDED = np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24})
ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.zeros((0, 5), np.int32),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4)),
    np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
    np.arange(20, dtype=np.complex64)[::2],
    np.float64(3.5) * np.ones(()),
    np.array(7, ">u2"),
    np.array([(1, (2.0, 3.0), b"ab"), (4, (5.0, 6.0), b"xyz")], RECORD),
    np.array((1, (2.0, 3.0), b"ab"), RECORD),
    np.asfortranarray(np.zeros((2, 3), RECORD)),
    np.zeros(3, PADDED),
    np.zeros(2, [("température", "<f4")]),
    np.zeros(2, [("Δ", "<f4")]),
    np.zeros(2, [(f"a field with a long name, number {i}", "<f4") for i in range(2000)]),
    np.array(["2026-11-30", "NaT"], "datetime64[ns]"),
    np.array(["ab", "ü"]),
    np.array([True, False]),
    np.zeros(4, "S0"),
    np.zeros((), "V5"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}-{a.shape}-{a.flags.f_contiguous}")
@pytest.mark.parametrize("before", [None, b"", b"short", b"x" * 5000])
@pytest.mark.filterwarnings("ignore:Stored array in format [23].0")
def test_an_array_is_written_as_numpy_would(array: np.ndarray, before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    if before is not None:
        path.write_bytes(before)
    results.write_array(path, array)
    back, expected = path.read_bytes(), bytes_of_save(tmp_path, array)
    # NumPy leaves room for a longer shape, which its functions for version 3 do not hand out.
    assert back == expected or back[:7] == expected[:7] == b"\x93NUMPY\x03"
    loaded, saved = (np.load(tmp_path / name, max_header_size=10**6) for name in ("a.npy", "expected.npy"))
    assert (loaded.dtype, loaded.shape, loaded.flags.f_contiguous) == (
        saved.dtype,
        saved.shape,
        saved.flags.f_contiguous,
    )
    assert loaded.tobytes() == saved.tobytes()


@pytest.mark.parametrize(
    "array", [np.array([None]), np.zeros(1, [("a", "O")]), np.array(["a"], np.dtypes.StringDType())]
)
def test_python_objects_are_refused_and_what_was_there_stays(array: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"an older result")
    with pytest.raises(ValueError, match="hold Python objects"):
        results.write_array(tmp_path / "a.npy", array)
    assert (tmp_path / "a.npy").read_bytes() == b"an older result"


@pytest.mark.parametrize("write", [results.write_behind, results.write_beside])
def test_arrays_that_do_not_fit_together_are_refused_before_anything_is_written(write: Writer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.npy: arrays of shapes .* do not fit together along axis"):
        write(tmp_path / "a.npy", [np.zeros((2, 2)), np.zeros((3, 3))])
    with pytest.raises(ValueError, match="do not fit together"):
        write(tmp_path / "a.npy", [np.zeros(()), np.zeros(())])
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((2, 2), np.float32), np.full((2, 2), 1e-300)],
        [np.ones((2, 2), np.int8), np.full((2, 2), 300, np.int16)],
        [np.ones((2, 2), "i4,f8"), np.zeros((2, 2), "i4,f8")],
        [np.asfortranarray(np.arange(4.0).reshape(2, 2)), np.arange(4.0).reshape(2, 2)],
        [np.arange(8.0).reshape(2, 2, 2), np.arange(8.0).reshape(2, 2, 2)],
        [np.asfortranarray(np.arange(6.0).reshape(2, 3))],
        [np.zeros((2, 2), "S2"), np.full((2, 2), b"abc")],
    ],
)
def test_parts_become_what_numpy_makes_of_them(arrays: list[np.ndarray], axis: int, tmp_path: Path) -> None:
    (results.write_behind if axis == 0 else results.write_beside)(tmp_path / "a.npy", arrays)
    same = {a.dtype for a in arrays} == {arrays[0].dtype}
    expected = np.concatenate(arrays, axis=axis, dtype=arrays[0].dtype if same else None)
    expected = np.ascontiguousarray(expected)
    assert (tmp_path / "a.npy").read_bytes() == bytes_of_save(tmp_path, expected)


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
    monkeypatch.setattr(results, "_header", lambda dtype, shape, turned: b"head")
    results.write_array(tmp_path / "a", np.arange(250, dtype=np.uint8))
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(range(250))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        results.write_array(tmp_path / "nowhere" / "a.npy", np.zeros(1))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_socket, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_refused_without_waiting(make: Callable[[Path], None], read: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    make(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if read and not path.is_socket() else None
    try:
        with pytest.raises(
            OSError, match=r"something that is no file stands in the result's place; remove it: .*a.npy"
        ):
            results.write_array(path, np.zeros(3))
    finally:
        if reader is not None:
            os.close(reader)
