"""Flags: what their writer wrote before is there for whoever has seen them, compiled and in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heterotask_core.runtime.flags import LINE_WORDS, Flags
from heterotask_core.runtime.native import native

ROUNDS = 20_000


@pytest.fixture(params=["1", "0"], ids=["compiled", "python"])
def helper(request, monkeypatch):
    """Both implementations; the compiled one only where it was built."""
    monkeypatch.setenv("HETEROTASK_NATIVE", request.param)
    if request.param == "1" and native() is None:
        pytest.skip("the compiled helper was not built (no C compiler or no Python headers at installation)")
    return request.param


@pytest.mark.mpi
def test_litmus_no_stale_data_behind_a_seen_flag(tmp_path, helper):
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(8 * 1024))
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    script = Path(__file__).parent / "litmus.py"
    sides = [
        subprocess.Popen(
            [sys.executable, str(script), str(shared), str(ROUNDS), str(side)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for side in (0, 1)
    ]
    outputs = [side.communicate(timeout=120) for side in sides]
    assert [out for out, _ in outputs] == ["0\n", "0\n"]
    assert [err for _, err in outputs] == [f"{helper == '1'}\n"] * 2


def test_fallback_fences_before_the_store_and_after_the_load_that_saw(monkeypatch):
    monkeypatch.setenv("HETEROTASK_NATIVE", "0")
    words = np.zeros(2 * LINE_WORDS, np.uint64)
    fenced = []
    flags = Flags(words, fence=lambda: fenced.append(int(words[LINE_WORDS])))
    assert not flags.seen(1, 5)
    assert fenced == []
    flags.publish(1, 5)
    assert fenced == [0]
    assert flags.seen(1, 5)
    assert fenced == [0, 5]


def test_poll_says_which_ranges_are_complete(helper):
    words = np.zeros(6 * LINE_WORDS, np.uint64)
    flags = Flags(words)
    deps = np.array([0, 1, 2, 3], np.int32)
    ranges = [0, 2, 2, 4, -1, -1, 4, 4]
    assert flags.poll(5, 3, deps, ranges[:6], 0, 0) == 0
    assert flags.poll(5, 3, deps, ranges, 10**9, 0) == 0b1000
    flags.publish(0, 3)
    flags.publish(1, 2)
    assert flags.poll(5, 3, deps, ranges[:6], 1000, 0) == 0
    flags.publish(1, 4)
    flags.publish(2, 3)
    assert flags.poll(5, 3, deps, ranges[:6], 0, 0) == 0b1
    flags.publish(3, 3)
    assert flags.poll(5, 3, deps, ranges, 0, 0) == 0b1011
    flags.publish(5, 3)
    assert flags.poll(5, 3, deps, ranges, 0, 0) == -1
    assert flags.poll(5, 4, deps, ranges[:6], 0, 0) == 0


def test_a_helper_built_from_other_sources_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr("heterotask_core.runtime.native.LAYOUT", -1)
    assert native() is None
    # Where none was built there is nothing to say.
    assert caplog.messages in (
        [],
        ["the compiled helper is of another version and is not used; install again: pip install -e ."],
    )
