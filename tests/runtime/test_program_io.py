"""Programs survive the disk unchanged; damaged ones are refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hand_program import Builder
from runtime_kernels import FILL, TWICE

from heterotask_core.errors import StoreError
from heterotask_core.program.io import load_program, save_program
from heterotask_core.program.model import Program


def _program() -> Program:
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    x, there, y = b.slot("n0"), b.slot("n1", 0), b.slot("n1")
    first = b.task("c0", FILL, {"output": x}, params={"value": 1.5, "path": {"output": "a.npy"}})
    b.task("c1", TWICE, {"input": there, "output": y}, [b.transfer(x, there, [first])])
    return b.build()


def test_round_trip_keeps_every_field_and_type(tmp_path):
    program = _program()
    save_program(program, tmp_path / "plan")
    loaded = load_program(tmp_path / "plan")
    for f in fields(Program):
        before, after = getattr(program, f.name), getattr(loaded, f.name)
        if isinstance(before, np.ndarray):
            assert before.dtype == after.dtype, f.name
            np.testing.assert_array_equal(before, after, err_msg=f.name)
        else:
            assert before == after, f.name
    assert {p.name for p in (tmp_path / "plan").iterdir()} == {"program.npz", "program.json"}


def test_second_save_replaces_the_first(tmp_path):
    b = Builder([("c0", "cpu", "n0")])
    b.task("c0", FILL, {"output": b.slot("n0")}, params={"value": 1})
    save_program(b.build(), tmp_path)
    save_program(_program(), tmp_path)
    assert load_program(tmp_path).n_ops == 3


@pytest.mark.parametrize("name", ["program.npz", "program.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_damaged_program_is_refused(tmp_path, name, damage):
    save_program(_program(), tmp_path)
    path = tmp_path / name
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b'{"format": 99}')
    with pytest.raises(StoreError, match="delete this folder and plan again"):
        load_program(tmp_path)
