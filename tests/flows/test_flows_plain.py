"""Errors of ours in the log of a run: one line, once; what is not ours keeps its traceback."""

import logging

import pytest

from flows.plain import LOGGERS, OneLine, tell_errors_in_one_line
from heterotask_core.errors import ApplicationError


def passed(error, text="Task run failed with exception: %r", *, one_line=None, name=LOGGERS[1]):
    """Return the text of the record that carries ``error`` after the filter, None if it is held back."""
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, text, (error,), (type(error), error, None))
    return logging.Formatter().format(record) if (one_line or OneLine()).filter(record) else None


def test_an_error_of_ours_is_one_line_and_told_once():
    one_line, error = OneLine(), ApplicationError("no application 'x';\n  known: y")
    assert passed(error, one_line=one_line) == "error: no application 'x'; known: y"
    assert passed(error, "Encountered exception: %r", one_line=one_line, name=LOGGERS[0]) is None
    assert passed(ApplicationError("another"), one_line=one_line) == "error: another"
    assert passed(PermissionError(13, "Permission denied", "/x")) == "error: [Errno 13] Permission denied: '/x'"


def test_other_errors_and_logs_for_developers_keep_everything():
    assert passed(ValueError("bug")).startswith("Task run failed with exception: ValueError('bug')")
    logger = logging.getLogger(LOGGERS[1])
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        assert passed(ApplicationError("x")).startswith("Task run failed with exception: ApplicationError('x')")
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize("name", LOGGERS)
def test_the_filter_is_added_once(name):
    logger = logging.getLogger(name)
    before = list(logger.filters)
    try:
        tell_errors_in_one_line()
        tell_errors_in_one_line()
        assert len([f for f in logger.filters if isinstance(f, OneLine)]) == 1
    finally:
        for other in LOGGERS:
            logging.getLogger(other).filters[:] = before
