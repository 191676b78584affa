"""CPU devices: host variants called in place on views of the arena."""

from __future__ import annotations

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

    def __init__(self, arena: npt.NDArray[np.uint8], *, cores: int) -> None:
        """Work in ``arena`` with ``cores`` cores (the rank is pinned to them already)."""
        self._arena = arena
        self._cores = cores

    def bind(
        self,
        variant: Variant,
        function: Callable[..., Any],
        arguments: Sequence[Argument],
        params: Mapping[str, Any],
        scratch: tuple[int, int] | None,
    ) -> Launcher:
        """Make the views once; a launch is the call alone."""
        values = {**by_role(arguments, lambda argument: view(self._arena, argument)), **params}
        if scratch is not None:
            values["scratch"] = self._arena[scratch[0] : scratch[0] + scratch[1]]
        if variant.max_cores != 1:
            values["cores"] = self._cores if variant.max_cores is None else min(self._cores, variant.max_cores)

        def launch(after: Sequence[Any]) -> DoneEvent:
            start_s = time.monotonic()
            function(**values)
            return DoneEvent(start_s, time.monotonic())

        return launch

    def copy_within(self, source: int, target: int, size_bytes: int, after: Sequence[Any], queue: int) -> DoneEvent:
        """Copy inside the arena."""
        start_s = time.monotonic()
        self._arena[target : target + size_bytes] = self._arena[source : source + size_bytes]
        return DoneEvent(start_s, time.monotonic())

    copy_in = copy_within
    copy_out = copy_within

    def close(self) -> None:
        """Nothing is outstanding, and the arena belongs to the node."""
