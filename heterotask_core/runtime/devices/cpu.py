"""CPU devices: host variants called in place on views of the arena."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.kernel import Variant
from heterotask_core.runtime.devices.base import Argument, DoneEvent, Launcher, by_role, view


class CpuBackend:
    """Computes in the arena; every operation is complete when its call returns."""

    own_memory = False
    on_host_core = False

    def __init__(self, arena: npt.NDArray[np.uint8], *, cores: int) -> None:
        """Work in ``arena`` with ``cores`` cores (the rank is pinned to them already)."""
        self._arena = arena
        self._cores = cores

    def call(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Callable[[], object]:
        """Return the task as a call without arguments: the views are made here, once."""
        values = {**by_role(arguments, lambda argument: view(self._arena, argument)), **params}
        if scratch is not None:
            values["scratch"] = self._arena[scratch[0] : scratch[0] + scratch[1]]
        if variant.max_cores != 1:
            values["cores"] = self._cores if variant.max_cores is None else min(self._cores, variant.max_cores)
        return bound_call(function, values)

    def copy_call(self, source: int, target: int, size_bytes: int) -> Callable[[], object]:
        """Return a copy inside the arena as a call without arguments."""
        parts = self._arena[target : target + size_bytes], self._arena[source : source + size_bytes]
        return functools.partial(np.copyto, *parts)

    def bind(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Launcher:
        """Make the views once; a launch is the call alone."""
        call = self.call(variant, function, arguments, params, scratch)

        def launch(after: Sequence[Any]) -> DoneEvent:
            start_s = time.monotonic()
            call()
            return DoneEvent(start_s, time.monotonic())

        return launch

    def prepare(self, offset: int, size_bytes: int) -> None:
        """There is no memory but the arena."""

    def copy_within(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> DoneEvent:
        """Copy inside the arena."""
        start_s = time.monotonic()
        self.copy_call(source, target, size_bytes)()
        return DoneEvent(start_s, time.monotonic())

    copy_in = copy_within
    copy_out = copy_within

    def read(self, argument: Argument) -> npt.NDArray[Any]:
        """Return a copy of an array in the arena."""
        return view(self._arena, argument).copy()

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is outstanding, and the arena belongs to the node."""


def bound_call(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], object]:
    """Return ``function(**values)`` as a call without arguments, positional where the parameters allow that."""
    leading = []
    for name in _positional(function):
        if name not in values:
            break
        leading.append(values[name])
    if len(leading) == len(values):
        return functools.partial(function, *leading)
    named = set(_positional(function)[: len(leading)])
    return functools.partial(function, *leading, **{n: v for n, v in values.items() if n not in named})


@functools.cache
def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters that may be given by position, in order; none where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
