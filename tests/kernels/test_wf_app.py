"""Replay of recorded workflows: reading, faults with their place, bytes that arrive."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import run_serially

from heterotask_core.app import Application
from heterotask_core.errors import ApplicationError
from kernels.wf import cpu_variants
from kernels.wf.app import WF, WfParams
from kernels.wf.wfformat import describe, read_workflow


def instance(tasks: list[dict[str, Any]], sizes: dict[str, int], seconds: float = 1.0) -> dict[str, Any]:
    return {
        "name": "made",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [{"name": t["id"], "children": [], "parents": [], **t} for t in tasks],
                "files": [{"id": name, "sizeInBytes": size} for name, size in sizes.items()],
            },
            "execution": {
                "makespanInSeconds": 3,
                "tasks": [{"id": t["id"], "runtimeInSeconds": seconds} for t in tasks],
            },
        },
    }


def diamond() -> dict[str, Any]:
    """Two tasks between a first and a last one, listed in the wrong order; one edge without a file."""
    return instance(
        [
            {"id": "last", "parents": ["left", "right"], "inputFiles": ["l"], "outputFiles": ["end"]},
            {"id": "first", "inputFiles": ["in"], "outputFiles": ["out"]},
            {"id": "left", "parents": ["first"], "inputFiles": ["out"], "outputFiles": ["l"]},
            {"id": "right", "parents": ["first"], "inputFiles": ["out"], "outputFiles": ["r"]},
        ],
        {"in": 1000, "out": 37, "l": 16, "r": 0, "end": 5},
    )


def write(folder: Path, content: Any) -> str:
    path = folder / "workflow.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    read_workflow.cache_clear()
    return str(path)


def test_wf_is_an_application() -> None:
    assert isinstance(WF, Application)


def test_a_workflow_is_described(tmp_path: Path) -> None:
    assert describe(read_workflow(write(tmp_path, diamond()))) == {
        "name": "made",
        "tasks": 4,
        "files": 5,
        "bytes": 1058,
        "work_s": 4.0,
        "longest_chain_s": 3.0,
        "levels": 3,
        "recorded_makespan_s": 3.0,
    }


def test_a_replay_moves_the_recorded_bytes_in_the_recorded_order(tmp_path: Path) -> None:
    params = WfParams(file=write(tmp_path, diamond()), time_scale=0.0, size_scale=2.0)
    graph = WF.build(params)
    by_name = {task.name: task for task in graph}
    assert [task.name for task in graph] == ["stage in", "first", "left", "right", "last", "store results"]
    names = list(by_name)
    assert {names[p] for p in graph.predecessors(by_name["last"])} == {"left", "right"}
    assert [item.size_bytes for item in graph.items] == [2000, 74, 32, 0, 10]
    run_serially(graph, tmp_path, ["numpy"])
    result = WF.check(params, tmp_path)
    assert (result.passed, result.details) == (True, ("0 of 2 result files differ",))


def test_the_check_notices_a_task_that_read_the_wrong_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu_variants.replay

    def wrong(*, inputs: Any, **arguments: Any) -> None:
        right(inputs=[content[::-1].copy() for content in inputs], **arguments)

    monkeypatch.setattr(cpu_variants, "replay", wrong)
    params = WfParams(file=write(tmp_path, diamond()), time_scale=0.0)
    run_serially(WF.build(params), tmp_path, ["numpy"])
    assert not WF.check(params, tmp_path).passed


@settings(max_examples=20, deadline=None)
@given(data=st.data(), n=st.integers(1, 12))
def test_random_workflows_are_replayed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, n: int) -> None:
    tasks = []
    for k in range(n):
        parents = data.draw(st.sets(st.integers(0, k - 1), max_size=3)) if k else set()
        tasks.append(
            {
                "id": f"t{k}",
                "parents": [f"t{p}" for p in parents],
                "inputFiles": [f"f{p}" for p in parents if data.draw(st.booleans())],
                "outputFiles": [f"f{k}"],
            }
        )
    sizes = {f"f{k}": data.draw(st.integers(0, 100)) for k in range(n)}
    folder = tmp_path_factory.mktemp("wf")
    listed = data.draw(st.permutations(tasks))
    params = WfParams(file=write(folder, instance(list(listed), sizes)), time_scale=0.0)
    run_serially(WF.build(params), folder, ["numpy"])
    assert WF.check(params, folder).passed


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the diamond with one value replaced; ``path`` as keys and indices joined by dots."""
    content: Any = diamond()
    *parts, last = path.split(".")
    place = content
    for part in parts:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = value
    return dict(content)


SPECIFICATION = "workflow.specification"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("schemaVersion", "1.4"), r"\$\.schemaVersion: '1\.4' is none of 1\.5, 1\.6"),
        (changed(f"{SPECIFICATION}.tasks.1.parents", 3), r"\$\.workflow\.specification\.tasks\[1\]\.parents: "),
        (changed(f"{SPECIFICATION}.tasks.1.parents", ["no"]), r"tasks\[1\]\.parents\[0\]: there is no task 'no'"),
        (changed(f"{SPECIFICATION}.tasks.1.inputFiles", ["no"]), r"tasks\[1\]\.inputFiles\[0\]: there is no file 'no'"),
        (changed(f"{SPECIFICATION}.tasks.1.id", "left"), r"tasks\[2\]\.id: 'left' stands twice"),
        (
            changed(f"{SPECIFICATION}.tasks.3.outputFiles", ["l"]),
            r"tasks\[3\]\.outputFiles\[0\]: 'l' is written by 'left'",
        ),
        (
            changed(f"{SPECIFICATION}.tasks.3.outputFiles", ["out"]),
            r"tasks\[3\]\.outputFiles\[0\]: 'out' is an input too",
        ),
        (changed(f"{SPECIFICATION}.tasks.1.parents", ["last"]), r"tasks\[0\]\.parents: 'last' waits for itself"),
        (changed(f"{SPECIFICATION}.files.0.sizeInBytes", -1), r"files\[0\]\.sizeInBytes: "),
        (changed("workflow.execution.tasks.0.runtimeInSeconds", -1), r"execution\.tasks\[0\]\.runtimeInSeconds: "),
        (changed("workflow.execution.tasks", []), r"tasks\[0\]\.id: there is no entry in"),
        ("{", r"\$: Invalid JSON"),
        ("[]", r"\$: "),
    ],
)
def test_a_fault_is_named_with_its_json_path(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ApplicationError, match=message):
        read_workflow(write(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="is not a file; give a WfFormat JSON file"):
        WF.build(WfParams(file=str(tmp_path / "none.json")))
    with pytest.raises(ApplicationError, match="give it with -p file=FILE"):
        WF.build(WfParams())
