"""Instance and plan files: every fault is named with its place, nothing is a traceback, what is exported comes back."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotask_core.errors import InfeasiblePlanError, InstanceError
from heterotask_core.planning import json_file
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem, read_instance
from heterotask_core.planning.instance_export import problem_to_instance, sort_tasks
from heterotask_core.planning.plan_file import plan_to_json, read_plan, write_plan
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import planner

DOCUMENT: dict[str, Any] = {
    "format": "heterotask-instance/1",
    "name": "two nodes",
    "contention": True,
    "memories": [
        {"name": "n0", "node": "n0"},
        {"name": "gpu", "node": "n0", "capacity_bytes": 4000},
        {"name": "n1", "node": "n1"},
    ],
    "devices": [
        {"name": "cpu0", "kind": "cpu", "memory": "n0", "lanes": ["a"]},
        {"name": "pair", "kind": "cpu2", "memory": "n0", "lanes": ["a", "b"]},
        {"name": "gpu", "kind": "cuda", "memory": "gpu"},
        {"name": "far", "kind": "cpu", "memory": "n1"},
    ],
    "links": [
        {"from": "n0", "to": "gpu", "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e6, "lanes": ["bus"]},
        {"from": "gpu", "to": "n0", "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e6, "lanes": ["bus", "back"]},
        {"from": "n0", "to": "n1", "bandwidth_bytes_per_s": 1e5},
        {"from": "n1", "to": "n0", "bandwidth_bytes_per_s": 1e5},
    ],
    "kernels": {
        "load": {"seconds": {"cpu": 0.1}},
        "blur": {"variants": {"serial": {"seconds": {"cpu": 0.3, "far": 0.2}}, "gpu": {"seconds": {"cuda": 0.01}}}},
    },
    "data": [
        {"name": "x", "size_bytes": 1000, "home": "n0"},
        {"name": "y", "size_bytes": 1000},
        {"name": "z", "size_bytes": 500, "home": ["n0", "n1"], "final": "n1"},
    ],
    "tasks": [
        {"name": "t0", "kernel": "load", "reads": ["x"], "writes": ["y"], "on": ["n0"]},
        {"name": "t1", "kernel": "blur", "reads": ["x"], "updates": ["y"], "after": ["t0"]},
        {"name": "t2", "kernel": "blur", "reads": ["y"], "updates": ["z"]},
        {"name": "t3", "kernel": "own", "seconds": {"cuda": 0.5, "pair": 0.25}, "reads": ["z"], "writes": ["x"]},
    ],
    "meta": {"source": "test"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one value replaced (``...``: removed)."""
    document = copy.deepcopy(DOCUMENT)
    *way, last = [int(k) if k.isdigit() else k for k in path.split(".")]
    place: Any = document
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "x", "$.format: must be 'heterotask-instance/1', is 'x'"),
        ("extra", 1, "$: unknown key 'extra'; there are format, name, contention, memories"),
        ("contention", 1, "$.contention: must be true or false, is 1"),
        ("name", 3, "$.name: must be a string, is 3"),
        ("tasks", {}, "$.tasks: must be a list of objects, is an object of 0"),
        ("devices", [], "$.devices: there is no device"),
        ("memories.1.name", "n0", "$.memories[1].name: 'n0' is there already, at $.memories[0]"),
        ("memories.1.capacity_bytes", -1, "$.memories[1].capacity_bytes: -1 must be 0 or more"),
        ("memories.1.capacity_bytes", 1.5, "$.memories[1].capacity_bytes: 1.5 is not a whole number of bytes"),
        ("devices.0.memory", "ram", "$.devices[0].memory: there is no memory 'ram'"),
        ("devices.0.lanes", "a", "$.devices[0].lanes: must be a list of strings, is 'a'"),
        ("devices.0.lanes", ["a", "a"], "$.devices[0].lanes: names 'a' twice"),
        ("devices.1.name", "cpu0", "$.devices[1].name: 'cpu0' is there already, at $.devices[0]"),
        ("devices.1.kind", ..., "$.devices[1].kind: must be a string, is missing"),
        ("links.0.to", "n0", "$.links[0]: leads from 'n0' to itself; leave it out"),
        ("links.1", DOCUMENT["links"][0], "$.links[1]: has the same ends as $.links[0]; keep one"),
        ("links.0.bandwidth_bytes_per_s", 0, "$.links[0].bandwidth_bytes_per_s: 0 must be above 0"),
        ("links.0.latency_s", -1e-9, "$.links[0].latency_s: -1e-09 must be 0 or more"),
        ("links.0.speed", 1, "$.links[0]: unknown key 'speed'; there are from, to, latency_s"),
        ("kernels.load.seconds.tpu", 1, "$.kernels.load.seconds: there is no device or device kind 'tpu'"),
        ("kernels.load.seconds.cpu", -1, "$.kernels.load.seconds.cpu: -1 must be 0 or more"),
        ("kernels.load.seconds.cpu", float("nan"), "$.kernels.load.seconds.cpu: nan is not a finite number"),
        ("kernels.load.seconds.cpu", float("inf"), "$.kernels.load.seconds.cpu: inf is more than 1e+100"),
        ("kernels.load.seconds.cpu", 10**400, "… (401 characters) is more than 1e+100"),
        ("kernels.load.seconds.cpu", True, "$.kernels.load.seconds.cpu: True is not a finite number"),
        ("kernels.blur.variants", {}, "$.kernels.blur.variants: there is no variant"),
        ("kernels.blur.seconds", {}, "$.kernels.blur: has seconds and variants; keep one"),
        ("kernels.blur.variants.gpu", 3, "$.kernels.blur.variants.gpu: must be an object, is 3"),
        ("data.1.name", "x", "$.data[1].name: 'x' is there already, at $.data[0]"),
        ("data.0.size_bytes", -1, "$.data[0].size_bytes: -1 must be 0 or more"),
        ("data.0.size_bytes", ..., "$.data[0].size_bytes: None is not a finite number"),
        ("data.0.home", "ram", "$.data[0].home: there is no memory 'ram'"),
        ("data.0.home", {"n0": 1}, "$.data[0].home: must be a list of strings, is an object of 1"),
        ("data.2.final", "ram", "$.data[2].final: there is no memory 'ram'"),
        ("data.3", {"name": "w", "size_bytes": 1, "final": "n0"}, "$.data[3].final: 'w' is never written and has no"),
        ("tasks.1.name", "t0", "$.tasks[1].name: 't0' is there already, at $.tasks[0]"),
        ("tasks.0.kernel", "none", "$.tasks[0].kernel (t0): there is no kernel 'none', and the task has no seconds"),
        ("tasks.0.reads", ["q"], "$.tasks[0].reads: there is no data item 'q'"),
        ("tasks.0.reads", "x", "$.tasks[0].reads: must be a list of strings, is 'x'"),
        ("tasks.0.reads", ["y"], "$.tasks[0].writes (t0): 'y' is also in reads; one list only"),
        ("tasks.1.reads", ["x", "x"], "$.tasks[1].reads: names 'x' twice"),
        ("tasks.0.writes", ..., "$.tasks[1].updates (t1): reads 'y' before it is written; give it a home"),
        (
            "tasks.0.after",
            ["t2"],
            "$.tasks[0].after (t0): 't2' stands later, at $.tasks[2]: a cycle, or the wrong order",
        ),
        ("tasks.0.after", ["t0"], "$.tasks[0].after (t0): 't0' stands here: a cycle"),
        ("tasks.0.after", ["t9"], "$.tasks[0].after: there is no task 't9'"),
        ("tasks.0.on", ["n9"], "$.tasks[0].on (t0): there is no device or node 'n9'"),
        ("tasks.3.seconds", {"x" * 200: 1}, "$.tasks[3].seconds: there is no device or device kind 'xxxxxxx"),
        ("tasks.0.name", "\ud800", "$.tasks[0].name: '\\ud800' holds half a character"),
    ],
)
def test_a_fault_is_named_with_its_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(InstanceError) as caught:
        instance_to_problem(changed(path, value))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_a_missing_route_names_the_data_and_both_memories() -> None:
    document = changed("links", [])
    message = "'z' has no route of at most 4 links from memory 'n0' to 'n1', where it must end; add links"
    with pytest.raises(InfeasiblePlanError, match=re.escape(message)):
        planner("peft").plan(instance_to_problem(document), budget=Budget())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nan.json", b'{"NaN\\"": 1,\n "x": NaN}', "line 2, column 7: NaN; every number must be finite"),
        ("inf.json", b'{"x": -Infinity}', "line 1, column 7: -Infinity; every number"),
        ("torn.json", b'{"x": ', "not JSON"),
        ("deep.json", b"[" * 100_000, "not JSON"),
        ("bytes.json", b"\xff\xfe\x00", "not JSON"),
        ("twice.json", b'{"seconds": {"cpu": 1,\n "cpu": 2}}', "line 2: an object holds the key 'cpu' twice"),
        (
            "later.json",
            b'[{"a": "a", "b": {"a\\"{": 1}},\n {"b": {"a": "}"}},\n {"a": 1,\n "\\u0061": 2}]',
            "line 4: an object holds the key 'a' twice",
        ),
        ("huge.json", b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
        ("cut.json.gz", gzip.compress(b'{"x": 1}' * 100, mtime=0)[:-10], "cannot be read"),
        ("no.json.gz", b'{"x": 1}', "cannot be read"),
        ("list.json", b"[1, 2]", "$: must be an object, is a list of 2"),
        ("null.json", b"null", "$: must be an object, is None"),
    ],
)
def test_a_file_that_is_no_instance_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InstanceError) as caught:
        read_instance(tmp_path / name)
    assert name in str(caught.value)
    assert message in str(caught.value)


def test_large_files_are_refused_before_they_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(InstanceError, match=r"large.json: 2147483648 bytes, more than the limit of"):
        read_instance(tmp_path / "large.json")
    monkeypatch.setattr(json_file, "MAX_BYTES", 100_000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(InstanceError, match=r"bomb.json.gz: more than 100000 bytes when read"):
        read_instance(tmp_path / "bomb.json.gz")
    monkeypatch.setattr(json_file, "MAX_VALUES", 1000)
    (tmp_path / "many.json").write_bytes(b"[" + b"[]," * 2000 + b"[]]")
    with pytest.raises(InstanceError, match=r"many.json: more than 1000 values"):
        read_instance(tmp_path / "many.json")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths into a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, inner in items for p in places(inner, (*path, key)))]


ALL_PLACES = [p for p in places(DOCUMENT) if p]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([1e308, -0.0, 5e-324, 2**63, 10**400, float("nan"), float("inf"), "n0", "gpu", "x", "t0", "", "é"]),
    st.sampled_from(ALL_PLACES).map(lambda p: _at(DOCUMENT, p)),
    st.lists(st.sampled_from(["x", "y", "t0", "n0", 1]), max_size=3),
    st.dictionaries(st.sampled_from(["cpu", "seconds", "name", "on"]), st.floats(), max_size=2),
)


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ALL_PLACES), st.sampled_from(["set", "drop", "twice"]), VALUES), max_size=3))
def test_a_mutated_instance_is_planned_or_refused(changes: list[tuple[tuple[Any, ...], str, Any]]) -> None:
    document = copy.deepcopy(DOCUMENT)
    for path, how, value in changes:
        try:
            place = _at(document, path[:-1])
            if how == "drop":
                del place[path[-1]]
            elif how == "twice" and isinstance(place, list):
                place.append(copy.deepcopy(place[path[-1]]))
            else:
                place[path[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue
    refusal, schedule = "", None
    try:
        schedule = planner("heft").plan(instance_to_problem(document), budget=Budget())
    except (InstanceError, InfeasiblePlanError) as error:
        refusal = str(error)
    if schedule is None:
        assert len(refusal.splitlines()) == 1
        return
    assert np.isfinite(schedule.makespan_s)
    assert schedule.makespan_s >= schedule.lower_bound_s * (1 - 1e-6)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_torn_or_bent_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    packed = data.draw(st.booleans())
    raw = json.dumps(DOCUMENT).encode()
    raw = bytearray(gzip.compress(raw, mtime=0) if packed else raw)
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    path = tmp_path_factory.getbasetemp() / ("bent.json.gz" if packed else "bent.json")
    path.write_bytes(raw)
    refusal = str(path)
    try:
        read_instance(path)
    except InstanceError as error:
        refusal = str(error)
    assert str(path) in refusal


def assert_equal_problems(a: Problem, b: Problem) -> None:
    for field in dataclasses.fields(Problem):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "variant_cost_s":
            assert all(np.array_equal(p, q) for p, q in zip(x, y, strict=True))
        elif isinstance(x, np.ndarray):
            assert np.array_equal(x, y), field.name
            assert x.dtype == y.dtype, field.name
        elif field.name != "class_names":
            assert x == y, field.name


def test_an_exported_problem_reads_back_equal() -> None:
    problem = instance_to_problem(DOCUMENT)
    document = json.loads(json.dumps(problem_to_instance(problem)))
    assert_equal_problems(instance_to_problem(document), problem)


def test_tasks_are_sorted_into_program_order() -> None:
    document = changed("tasks.2.updates", ...)
    document["tasks"][1] = {"name": "t1", "kernel": "blur", "reads": ["y"]}
    document["tasks"][3]["writes"] = []
    shuffled = document | {"tasks": [document["tasks"][i] for i in (2, 1, 0, 3)]}
    with pytest.raises(
        InstanceError, match=r"\$.tasks\[0\].reads \(t2\): reads 'y' before it is written, which task 't0'"
    ):
        instance_to_problem(shuffled)
    assert [t["name"] for t in sort_tasks(shuffled)["tasks"]] == ["t0", "t2", "t1", "t3"]
    instance_to_problem(sort_tasks(shuffled))


def test_no_order_is_made_up() -> None:
    with pytest.raises(InstanceError, match=r"\$.tasks\[1\] \(t1\): 'y' has more than one version"):
        sort_tasks(DOCUMENT)
    tasks = [{"name": f"t{i}", "kernel": "load", "after": [f"t{(i + 1) % 3}"]} for i in range(3)]
    with pytest.raises(InstanceError, match=r"a cycle: 't0' waits for 't1' waits for 't2' waits for 't0'"):
        sort_tasks(changed("tasks", tasks))


def test_plan_file_round_trip(tmp_path: Path) -> None:
    problem = instance_to_problem(DOCUMENT)
    schedule = planner("peft").plan(problem, budget=Budget())
    for name in ("plan.json", "plan.json.gz"):
        write_plan(tmp_path / name, problem, schedule)
        assert plan_to_json(problem, read_plan(tmp_path / name, problem)) == plan_to_json(problem, schedule)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json", "plan.json.gz"]
    with pytest.raises(InstanceError, match="cannot be written"):
        write_plan(tmp_path / "missing" / "plan.json", problem, schedule)


def test_bytes_moved_are_counted_by_link() -> None:
    problem = instance_to_problem(DOCUMENT)
    schedule = planner("heft").plan(problem, budget=Budget())
    moved = schedule.link_bytes(problem)
    assert (
        moved.sum()
        == schedule.moved_bytes(problem)
        == sum(problem.version_size_bytes[v] for v in schedule.transfer_version)
    )
    assert moved[2] >= 500
