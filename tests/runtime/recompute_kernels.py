"""Kernels that a second computation finds out."""

from __future__ import annotations

import itertools

import numpy as np

from heterotask_core.kernel import Kernel, Launch, Variant

_calls = itertools.count()


def fickle(data):
    data += next(_calls) % 2


def steady(input, data):
    data += input


def thrice(input, output):
    np.multiply(3.0, input, out=output)


def twice_source(input, output):
    n = input.shape[0]
    return [Launch("twice", (n,), (64,), (input, output, np.int32(n)))]


def _cpu(function) -> Variant:
    return Variant("plain", "cpu", f"{__name__}:{function.__name__}")


SOURCE = Variant("source", "opencl", f"{__name__}:twice_source", source="runtime_kernels:runtime_kernels.c")
FICKLE = Kernel("fickle", __name__, updates=("data",), variants=(_cpu(fickle),))
STEADY = Kernel("steady", __name__, reads=("input",), updates=("data",), variants=(_cpu(steady),))
THRICE = Kernel("thrice", __name__, reads=("input",), writes=("output",), variants=(_cpu(thrice), SOURCE))
