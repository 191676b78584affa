"""Replay of a recorded workflow: parameters, graph and check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.errors import ApplicationError
from heterotask_core.graph import TaskGraph
from kernels.wf.cpu_variants import digest, fill
from kernels.wf.graph import build_graph
from kernels.wf.wfformat import read_workflow


class WfParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field("", description="a recorded workflow in WfFormat 1.5 or 1.6 (JSON)")
    time_scale: float = Field(1.0, ge=0.0, le=1000.0, description="a task is busy for its recorded time times this")
    size_scale: float = Field(1.0, ge=0.0, le=1000.0, description="a file has its recorded size times this")


class Wf:
    """The application ``wf``; its result is ``digests.json``."""

    name: ClassVar[str] = "wf"
    summary: ClassVar[str] = "Replay of a recorded workflow (WfFormat): busy for its times, files really moved"
    Params: ClassVar[type[BaseModel]] = WfParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`ApplicationError` with the JSON path of a fault."""
        if not params.file:
            raise ApplicationError("wf replays a recorded workflow; give it with -p file=FILE (WfFormat JSON)")
        workflow = read_workflow(str(Path(params.file).resolve()))
        return build_graph(workflow, time_scale=params.time_scale, size_scale=params.size_scale)

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare the digests of all results with those of a serial replay that takes no time."""
        path = output_dir / "digests.json"
        if not path.is_file():
            return CheckResult(False, f"{path} is missing: the run wrote no result")
        workflow = read_workflow(str(Path(params.file).resolve()))
        # The content of a file is one value repeated, so it is made anew when it is read.
        values: dict[int, bytes] = {}
        written = {file for task in workflow.tasks for file in task.outputs}
        read = {file for task in workflow.tasks for file in task.inputs}

        def content(file: int) -> np.ndarray[Any, Any]:
            array = np.empty(round(workflow.file_bytes[file] * params.size_scale), np.uint8)
            fill(array, values[file])
            return array

        for file in read - written:
            values[file] = digest(workflow.file_names[file], ())
        for task in workflow.tasks:
            value = np.frombuffer(digest(task.name, (content(f) for f in task.inputs)), np.uint8)
            for k, file in enumerate(task.outputs):
                values[file] = digest(f"{k}", (value,))
        expected = {workflow.file_names[f]: digest("", (content(f),)).hex() for f in sorted(written - read)}
        found = json.loads(path.read_text())
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        details = (f"{len(wrong)} of {len(expected)} result files differ" + (f", first {wrong[0]!r}" if wrong else ""),)
        return CheckResult(not wrong, "all results are right" if not wrong else "results are wrong", details)


WF = Wf()
