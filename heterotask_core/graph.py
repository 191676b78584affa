"""Task graphs: tasks in program order, dependencies inferred from access modes.

Sequential task flow, as in StarPU (Augonnet et al. 2011): a task reads, writes or updates data items;
every write or update makes a new *version* of the item, and a reader depends on the task that made the
version it takes. Versions are values: an older one stays valid for its readers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heterotask_core.errors import GraphError
from heterotask_core.kernel import Kernel, OutputPath


@dataclass(frozen=True, slots=True)
class DataItem:
    """A named array that tasks exchange; ``index`` is its position in the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index: int

    @property
    def size_bytes(self) -> int:
        """Size of one version."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Version:
    """The value of a data item after ``number`` writes; ``producer`` is a task index."""

    item: DataItem
    number: int
    producer: int
    index: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A version bound to a role of a task; several items of one role have positions 0, 1, …

    ``reads`` is the version taken (None for a pure write), ``makes`` the version made (None for a pure read).
    """

    role: str
    position: int
    is_list: bool
    item: DataItem
    reads: Version | None
    makes: Version | None


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a kernel."""

    index: int
    name: str
    kernel: Kernel
    arguments: tuple[Argument, ...]
    params: Mapping[str, Any]
    after: tuple[int, ...]
    on: tuple[str, ...]
    """Device or node names that may run it; empty: anywhere."""

    @property
    def inputs(self) -> list[Version]:
        """Versions taken, reads first and then updates, in declaration order."""
        pure = [a.reads for a in self.arguments if a.reads is not None and a.makes is None]
        return pure + [a.reads for a in self.arguments if a.reads is not None and a.makes is not None]

    @property
    def outputs(self) -> list[Version]:
        """Versions made."""
        return [a.makes for a in self.arguments if a.makes is not None]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by role; of a list role, the first item's shape."""
        return {a.role: a.item.shape for a in reversed(self.arguments)}


Bound = DataItem | Sequence[DataItem]


@dataclass
class TaskGraph:
    """A DAG of tasks over versioned data items, built in program order."""

    name: str
    exact: bool = True
    """Only exact variants run: every plan gives the same bits. False admits variants that round differently."""
    items: list[DataItem] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    _latest: dict[str, Version] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _item_names: set[str] = field(default_factory=set)

    def data(self, name: str, *, shape: Iterable[int], dtype: str) -> DataItem:
        """Declare a data item; it exists from its first write.

        Raises :class:`GraphError` for a duplicate name or a negative extent.
        """
        extents = tuple(int(n) for n in shape)
        if any(n < 0 for n in extents):
            raise GraphError(f"data item {name!r}: shape {extents} has a negative extent")
        if name in self._item_names:
            raise GraphError(f"data item {name!r} is declared twice; names must differ")
        item = DataItem(name, extents, np.dtype(dtype).name, len(self.items))
        self.items.append(item)
        self._item_names.add(name)
        return item

    def add(
        self,
        kernel: Kernel,
        *,
        name: str | None = None,
        reads: Mapping[str, Bound] | None = None,
        writes: Mapping[str, Bound] | None = None,
        updates: Mapping[str, Bound] | None = None,
        params: Mapping[str, Any] | None = None,
        after: Iterable[Task] = (),
        on: Iterable[str] = (),
    ) -> Task:
        """Append a task and return it.

        A role takes one data item or a list of them. ``params`` are JSON values or
        :class:`~heterotask_core.kernel.OutputPath`. Raises :class:`GraphError` for a wrong role, an item bound
        twice, a read of an item that nothing has written, or a parameter that is not JSON.
        """
        index = len(self.tasks)
        name = name if name is not None else f"{kernel.name}-{index}"
        if name in self._names:
            raise GraphError(f"task {name!r} is added twice; names must differ")
        given = {"reads": reads or {}, "writes": writes or {}, "updates": updates or {}}
        declared = {"reads": kernel.reads, "writes": kernel.writes, "updates": kernel.updates}
        for mode, bound in given.items():
            if set(bound) != set(declared[mode]):
                raise GraphError(
                    f"task {name!r}: kernel {kernel.name!r} {mode} roles {sorted(declared[mode])}, got {sorted(bound)}"
                )
        arguments: list[Argument] = []
        seen: set[str] = set()
        for mode in ("reads", "writes", "updates"):
            for role in declared[mode]:
                value = given[mode][role]
                is_list = not isinstance(value, DataItem)
                for position, item in enumerate([value] if isinstance(value, DataItem) else value):
                    if item.index >= len(self.items) or self.items[item.index] is not item:
                        raise GraphError(f"task {name!r}, role {role!r}: {item.name!r} belongs to another graph")
                    if item.name in seen:
                        raise GraphError(f"task {name!r}: data item {item.name!r} is bound to two roles")
                    seen.add(item.name)
                    taken = None
                    if mode != "writes":
                        taken = self._latest.get(item.name)
                        if taken is None:
                            raise GraphError(f"task {name!r} reads {item.name!r} before any task has written it")
                    made = None
                    if mode != "reads":
                        before = self._latest.get(item.name)
                        number = 1 if before is None else before.number + 1
                        made = Version(item, number, index, len(self.versions))
                        self.versions.append(made)
                    arguments.append(Argument(role, position, is_list, item, taken, made))
        for argument in arguments:
            if argument.makes is not None:
                self._latest[argument.item.name] = argument.makes
        task_params = dict(params or {})
        try:
            json.dumps(task_params, default=_encode)
        except TypeError as error:
            raise GraphError(f"task {name!r}: parameter is not a JSON value: {error}") from error
        task = Task(index, name, kernel, tuple(arguments), task_params, tuple(t.index for t in after), tuple(on))
        self.tasks.append(task)
        self._names[name] = index
        return task

    def predecessors(self, task: Task) -> set[int]:
        """Return the indices of the tasks that ``task`` directly depends on."""
        return {v.producer for v in task.inputs} | set(task.after)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def fingerprint(self) -> str:
        """Return a hash of tasks, accesses, shapes, params and kernel sources."""
        digest = hashlib.sha256(f"{self.name}|{self.exact}".encode())
        kernels: dict[int, str] = {}
        for task in self.tasks:
            key = id(task.kernel)
            if key not in kernels:
                kernels[key] = task.kernel.fingerprint()
            digest.update(
                json.dumps(
                    [
                        task.name,
                        kernels[key],
                        [[a.role, a.item.name, a.item.shape, a.item.dtype] for a in task.arguments],
                        dict(task.params),
                        task.after,
                        task.on,
                    ],
                    default=_encode,
                    sort_keys=True,
                ).encode()
            )
        return digest.hexdigest()[:16]


def class_key(task: Task) -> str:
    """Return the key of a task's *class*: tasks of one class cost the same on a device.

    Kernel, shapes and dtypes by role, and params (output paths and the kernel's ``free_params`` left out).
    """
    return json.dumps(
        [
            task.kernel.module,
            task.kernel.name,
            [[a.role, a.item.shape, a.item.dtype] for a in task.arguments],
            {
                k: v
                for k, v in task.params.items()
                if not isinstance(v, OutputPath) and k not in task.kernel.free_params
            },
        ],
        sort_keys=True,
    )


def _encode(value: Any) -> Any:
    if isinstance(value, OutputPath):
        return {"output": value.name}
    raise TypeError(f"{value!r} ({type(value).__name__})")
