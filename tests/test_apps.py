"""Applications: found by name or path, parameters checked in one line."""

import sys
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

from heterotask_core.app import CheckResult
from heterotask_core.apps import find_application, parse_params
from heterotask_core.errors import ApplicationError
from heterotask_core.graph import TaskGraph


class Params(BaseModel):
    size: int = Field(512, ge=1, le=1000)
    sigma: float = 1.5
    mode: Literal["a", "b"] = "a"
    tiles: list[int] = []


class Toy:
    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "nothing"
    Params: ClassVar[type[BaseModel]] = Params

    def build(self, params: Params) -> TaskGraph:
        return TaskGraph("toy")

    def check(self, params: Params, output_dir: Path) -> CheckResult:
        return CheckResult(True, "fine")


TOY = Toy()
NOT_AN_APP = 5


def test_an_application_is_found_by_path():
    assert find_application(f"{__name__}:TOY") is TOY


def test_an_application_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "own_app_module.py").write_text(f"from {__name__} import TOY\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert find_application("own_app_module:TOY") is TOY


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-app", "no application 'no-such-app'; known: "),
        (__file__, "or give module:attribute; a problem's file goes to `heterotask plan --instance`"),
        ("no_such_module:X", "cannot import 'no_such_module:X': No module named 'no_such_module'"),
        (f"{__name__}:NOPE", "has no attribute 'NOPE'"),
        (f"{__name__}:NOT_AN_APP", "is no application (name, summary, Params, build, check)"),
        (":x", "cannot import ':x'"),
    ],
)
def test_what_is_no_application_is_refused(name, message):
    with pytest.raises(ApplicationError) as caught:
        find_application(name)
    assert message in str(caught.value)


def test_a_module_that_raises_is_refused_by_what_it_raises(tmp_path, monkeypatch):
    (tmp_path / "raising_app_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    with pytest.raises(
        ApplicationError, match=r"cannot import .*: ZeroDivisionError: division by zero; check the path"
    ):
        find_application("raising_app_module:APP")


def test_parameters_are_read_as_values():
    assert parse_params(TOY, ["size=7", "sigma=2", "mode=b", "tiles=[1, 2]"]) == Params(
        size=7, sigma=2.0, mode="b", tiles=[1, 2]
    )
    assert parse_params(TOY, []) == Params()


def test_text_is_taken_as_it_is_written(monkeypatch):
    class Texts(BaseModel):
        image: str = ""
        folder: Path = Path()
        switch: Literal["on", "off"] = "off"
        count: int | None = None

    monkeypatch.setattr(Toy, "Params", Texts)
    texts = ["image=a: b #1.png", "folder=007", "switch=on", "count=null"]
    assert parse_params(TOY, texts) == Texts(image="a: b #1.png", folder=Path("007"), switch="on", count=None)
    assert parse_params(TOY, ["image=a=b"]) == Texts(image="a=b")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["size"], "toy: parameter 'size' has no value; write name=value"),
        (["sizes=1"], "toy: no parameter 'sizes'; it has size, sigma, mode, tiles"),
        (["size=1", "size=2"], "toy: parameter 'size' is given twice"),
        (["size=0"], "toy: size: Input should be greater than or equal to 1 (got 0)"),
        (["size=big"], "toy: size: Input should be a valid integer, unable to parse string as an integer (got 'big')"),
        (["size=[1"], "toy: parameter 'size': '[1' is not a value"),
        (["mode=c"], "toy: mode: Input should be 'a' or 'b' (got 'c')"),
    ],
)
def test_wrong_parameters_are_refused_in_one_line(texts, message):
    with pytest.raises(ApplicationError) as caught:
        parse_params(TOY, texts)
    assert str(caught.value) == message
