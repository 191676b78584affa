"""What all benchmarks share (``benchmarks/arguments.py``), from this folder, and devices that both sides can use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NoReturn

from build import BuildError
from cases import WrongResultError, parse_nodes
from job import Devices
from layer import StarPuError

from heterotask_core.errors import HeteroTaskError
from heterotask_core.platform.cluster import find_platform

if "arguments" not in sys.modules:
    # By its file: with its folder on the path, the program calibration.py would hide the package of that name.
    _spec = spec_from_file_location("arguments", Path(__file__).parents[1] / "arguments.py")
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["arguments"] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["arguments"])
shared = sys.modules["arguments"]


def run_case_program(main: Callable[[], int]) -> NoReturn:
    """Run a program and end; errors of StarPU and of its layer are a line too."""
    shared.run_program(main, BuildError, StarPuError, WrongResultError)


def devices_of_both(text: str) -> str:
    """Take devices that this machine has and StarPU knows, as an argument."""
    nodes, each = parse_nodes(text)
    try:
        Devices.parse(each)
        find_platform(each, nodes=nodes)
    except (HeteroTaskError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
