"""Lines of ranks as log messages: whole lines only, each with rank and node, bounded, nothing without a listener."""

import logging

import pytest

from heterotask_core.program.model import RankRole
from heterotask_core.runtime import echo

RANKS = (RankRole("n0", None, ()), RankRole("n1", "n1.cpu0", (0,)))


@pytest.fixture
def heard(caplog):
    caplog.set_level(logging.INFO, logger="heterotask.ranks")
    return lambda: [record.getMessage() for record in caplog.records]


def test_lines_arrive_once_and_whole(tmp_path, heard):
    lines = echo.Echo(tmp_path, RANKS)
    lines.poll()
    out = tmp_path / "output-1.txt"
    out.write_text("first\n\nsec")
    lines.poll()
    assert heard() == ["rank 1, node n1: first"]
    with out.open("a") as file:
        file.write("ond\nthird")
    lines.poll()
    assert heard() == ["rank 1, node n1: first", "rank 1, node n1: second"]
    lines.poll(last=True)
    assert heard()[2:] == ["rank 1, node n1: third"]


def test_a_flood_is_cut(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(echo, "MAX_LINES", 2)
    (tmp_path / "output-0.txt").write_text("a\nb\nc\n")
    lines = echo.Echo(tmp_path, RANKS)
    lines.poll()
    lines.poll()
    assert heard() == ["rank 0, node n0: a", "rank 0, node n0: b", "rank 0, node n0: further lines are left out"]


def test_nobody_listens(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="heterotask.ranks")
    (tmp_path / "output-0.txt").write_text("a\n")
    echo.Echo(tmp_path, RANKS).poll()
    assert caplog.records == []
