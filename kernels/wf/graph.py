"""The kernels of a replay and its graph: files are data items, recorded parents without a common file stay edges."""

from __future__ import annotations

from heterotask_core.graph import DataItem, Task, TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.wf.wfformat import Workflow

CPU = "kernels.wf.cpu_variants"


def _host(function: str) -> tuple[Variant, ...]:
    return (Variant("numpy", "cpu", f"{CPU}:{function}", requires=("numpy",)),)


STAGE = Kernel("stage", __name__, writes=("content",), free_params=("name",), variants=_host("stage"))
REPLAY = Kernel(
    "replay", __name__, reads=("inputs",), writes=("outputs",), free_params=("name",), variants=_host("replay")
)
STORE = Kernel("store", __name__, reads=("results",), variants=_host("store"), sink=True)


def build_graph(workflow: Workflow, *, time_scale: float, size_scale: float) -> TaskGraph:
    """Return the graph of a replay; a file of n bytes is an item of n · ``size_scale`` bytes, rounded."""
    graph = TaskGraph("wf")
    items: list[DataItem] = [
        graph.data(name, shape=(round(size * size_scale),), dtype="uint8")
        for name, size in zip(workflow.file_names, workflow.file_bytes, strict=True)
    ]
    written = {file for task in workflow.tasks for file in task.outputs}
    read = {file for task in workflow.tasks for file in task.inputs}
    for file in sorted(read - written):
        name = workflow.file_names[file]
        graph.add(STAGE, name=f"stage {name}", writes={"content": items[file]}, params={"name": name})
    added: list[Task] = []
    for task in workflow.tasks:
        producers = {p for p in task.parents if set(workflow.tasks[p].outputs) & set(task.inputs)}
        added.append(
            graph.add(
                REPLAY,
                name=task.name,
                reads={"inputs": [items[f] for f in task.inputs]},
                writes={"outputs": [items[f] for f in task.outputs]},
                params={"name": task.name, "seconds": task.seconds * time_scale},
                after=[added[p] for p in task.parents if p not in producers],
            )
        )
    results = sorted(written - read)
    graph.add(
        STORE,
        name="store results",
        reads={"results": [items[f] for f in results]},
        params={"path": OutputPath("digests.json"), "names": [workflow.file_names[f] for f in results]},
    )
    return graph
