"""What a run page shows while ranks run: how far they are, and what they print.

The thread that looks after the MPI job only leaves numbers here; another one talks to the server, at most every two
seconds, so that a slow or restarting server never delays the job.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from heterotask_core.runtime.echo import LOGGER as RANKS

EVERY_S = 2.0
_LAST_S = 10.0
"""How long the last update may take."""

_log = logging.getLogger(__name__)


class ProgressFeed:
    """A progress artifact of the current task run; use it as a context manager and call :meth:`update`."""

    def __init__(self, key: str, what: str) -> None:
        """``key``: of the artifact; ``what`` is counted, e.g. "ops"."""
        self._what = what
        self._began_s = time.monotonic()
        self._latest: tuple[int, int, float] | None = None
        self._ended = threading.Event()
        self._artifact = cast(UUID, create_progress_artifact(0.0, key=key, description="starting ranks"))
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._post_all,), daemon=True)

    def __enter__(self) -> ProgressFeed:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_LAST_S)

    def update(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` are done; returns at once."""
        self._latest = (done, total, time.monotonic() - self._began_s)

    def _post_all(self) -> None:
        posted = None
        with get_client(sync_client=True) as client:
            while True:
                last = self._ended.wait(EVERY_S)
                latest = self._latest
                if latest is not None and latest != posted:
                    try:
                        client.update_artifact(self._artifact, progress_update(*latest, what=self._what))
                        posted = latest
                    except Exception as error:  # Whatever ails the server, the job goes on.
                        _log.debug("progress not shown: %s", error)
                if last:
                    return


def progress_update(done: int, total: int, elapsed_s: float, *, what: str) -> ArtifactUpdate:
    """Return what the artifact shows: percent, counts and the expected end by the rate so far."""
    share = done / total if total else 1.0
    text = f"{done:,} of {total:,} {what}"
    if 0 < done < total:
        end = datetime.now().astimezone() + timedelta(seconds=elapsed_s * (total - done) / done)
        text += f", expected end {end:%H:%M:%S %Z}"
    return ArtifactUpdate(data=round(100 * share, 1), description=text)


class _Forward(logging.Handler):
    def __init__(self, logger: Any) -> None:
        super().__init__(logging.INFO)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.info("%s", record.getMessage())


@contextmanager
def rank_lines_to(logger: Any) -> Iterator[None]:
    """Pass what ranks print to ``logger``, with rank and node."""
    handler, level = _Forward(logger), RANKS.level
    RANKS.addHandler(handler)
    RANKS.setLevel(logging.INFO)
    try:
        yield
    finally:
        RANKS.removeHandler(handler)
        RANKS.setLevel(level)
