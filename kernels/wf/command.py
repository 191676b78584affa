"""The command ``heterotask wf``, registered by entry point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from heterotask_core.commands.options import JsonOption


def wf(
    action: Annotated[Literal["import"], typer.Argument(help="import: tell what a recorded workflow holds.")],
    file: Annotated[Path, typer.Argument(help="A workflow in WfFormat 1.5 or 1.6 (JSON).")],
    as_json: JsonOption = False,
) -> None:
    """Read a recorded workflow (WfCommons' WfFormat) and tell what it holds; `heterotask run wf` replays it."""
    from kernels.wf.wfformat import describe, read_workflow

    found = describe(read_workflow(str(file.resolve())))
    if as_json:
        print(json.dumps(found))
        return
    print(f"workflow {found['name']}")
    print(f"  {found['tasks']} tasks in {found['levels']} levels, {found['files']} files of {found['bytes']} bytes")
    print(f"  {found['work_s']:.1f} s of work, longest chain {found['longest_chain_s']:.1f} s")
    if found["recorded_makespan_s"] is not None:
        print(f"  recorded makespan {found['recorded_makespan_s']:.1f} s")
    print(f"replay: heterotask run wf -p file={file} -p time_scale=0.001 -p size_scale=0.001")
