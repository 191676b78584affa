"""A share of the tasks is computed again with the reference variant, and a difference is an error with its place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hand_program import COUNT, Builder
from recompute_kernels import FICKLE, STEADY, THRICE
from runtime_kernels import FILL, STORE, TWICE
from typer.testing import CliRunner

from heterotask_core import cli, stages
from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import LaneKind
from heterotask_core.runtime.recompute import chosen
from heterotask_core.runtime.session import Session
from heterotask_core.stages import Plan, Workflow
from heterotask_core.store import Store


def test_every_nth_op_is_chosen():
    assert chosen(range(10), 0.0) == set()
    assert chosen(range(10), 0.25) == {0, 4, 8}
    assert chosen(range(3), 1.0) == {0, 1, 2}


@pytest.mark.parametrize(("asked", "share"), [([], 0.0), (["--verify", "0.5"], 0.5)])
def test_the_commands_option_reaches_the_job(tmp_path, monkeypatch, asked, share):
    b = _updates(STEADY)
    workflow = Workflow(SimpleNamespace(name="hand"), None, SimpleNamespace(fingerprint=lambda: "hand"), b.platform)
    plan = Plan(b.build(), tmp_path / "plan", False, 1.0, 1.0)
    given = {}

    def execute(*_, **options):
        given.update(options)
        raise ExecutionError("enough")

    monkeypatch.setattr(cli, "open_workflow", lambda *_: (workflow, Store(tmp_path / "store")))
    monkeypatch.setattr(stages, "load_plan", lambda *_: plan)
    monkeypatch.setattr(stages, "execute", execute)
    result = CliRunner().invoke(cli.app, ["execute", "hand", "--plan", "somewhere", *asked])
    assert str(result.exception) == "enough"
    assert given["verify"] == share


def _updates(kernel) -> Builder:
    b = Builder([("c0", "cpu", "n0")])
    x, y = b.slot("n0"), b.slot("n0")
    first = [b.task("c0", FILL, {"output": s}, params={"value": 1}) for s in (x, y)]
    roles = {"data": y} if kernel is FICKLE else {"input": x, "data": y}
    changed = b.task("c0", kernel, roles, first)
    b.task("c0", STORE, {"input": y}, [changed], params={"path": {"output": "y.npy"}})
    return b


@pytest.mark.mpi
def test_updates_are_recomputed_from_what_they_found(tmp_path):
    good, bad = _updates(STEADY), _updates(FICKLE)
    with Session(good.platform) as session:
        session.run(good.build(), output_dir=tmp_path, repeats=2, verify=1.0)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), 2 * (np.arange(COUNT) + 1.0))
        with pytest.raises(ExecutionError) as caught:
            session.run(bad.build(), output_dir=tmp_path, verify=1.0)
        assert str(caught.value) == (
            "task 'fickle2' failed (variant 'plain' of kernel 'fickle', rank 0, node 'n0', device 'c0'): "
            "ExecutionError: variant 'plain': 'data' differs from reference variant 'plain' in 1000 of 1000 elements, "
            "first at 0: np.float64(1.0) instead of np.float64(2.0)"
        )
        session.run(bad.build(), output_dir=tmp_path)
        assert session.restarts == []


def _opencl(kernel) -> Builder:
    b = Builder([("c0", "cpu", "n0"), ("g0", "opencl", "n0")])
    x, there, made, back = b.slot("n0"), b.slot("g0", 0), b.slot("g0"), b.slot("n0", 1)
    filled = b.task("c0", FILL, {"output": x}, params={"value": 1})
    into = b.copy("g0", x, there, LaneKind.HOST_TO_DEVICE, [filled])
    computed = b.task("g0", kernel, {"input": there, "output": made}, [into])
    out = b.copy("g0", made, back, LaneKind.DEVICE_TO_HOST, [computed])
    b.task("c0", STORE, {"input": back}, [out], params={"path": {"output": "y.npy"}})
    return b


@pytest.mark.mpi
def test_device_variants_are_compared_with_the_reference_on_the_host(tmp_path):
    pytest.importorskip("pyopencl")
    good, bad = _opencl(TWICE), _opencl(THRICE)
    with Session(good.platform) as session:
        session.run(good.build(), output_dir=tmp_path, verify=1.0)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), 2 * (np.arange(COUNT) + 1.0) + 1)
        message = r"task 'thrice1' failed .* 'output' differs from reference variant 'plain' in 999 of 1000 elements"
        with pytest.raises(ExecutionError, match=message):
            session.run(bad.build(), output_dir=tmp_path, verify=1.0)
