"""The log of a failed run: an error of ours is one line, as on the command line, not a traceback for every caller."""

from __future__ import annotations

import logging

from heterotask_core.errors import HeteroTaskError

LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class OneLine(logging.Filter):
    """Shortens records that carry an error of ours, and lets one of each pass: Prefect tells the task's and the flow's.

    With the log level DEBUG all is left as it is.
    """

    def __init__(self) -> None:
        """Nothing was told yet."""
        super().__init__()
        self._told: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Change ``record``; return whether it passes."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HeteroTaskError, OSError)) or logging.getLogger(record.name).isEnabledFor(
            logging.DEBUG
        ):
            return True
        record.exc_info, record.exc_text = None, None
        record.msg, record.args = f"error: {' '.join(str(error).split())}", ()
        again, self._told = error is self._told, error
        return not again


_ONE_LINE = OneLine()


def tell_errors_in_one_line() -> None:
    """Do so in this process's flow and task runs; can be called again."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ONE_LINE)
