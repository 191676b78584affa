"""Named tuples of arrays handed to compiled code as one array of addresses (Numba).

A compiled function that takes arrays counts references to each of them and unpacks each from Python: with the
dozens that planning has, that took most of the time of a call, and most of the time of compiling it. So the caller
passes :func:`addresses`, and the function makes bare pointers of them with what :func:`opener` returns. Nothing
checks an index there, and two-dimensional arrays are indexed flat. The arrays must outlive the call.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from heterotask_core.planning.problem import I64
from heterotask_core.planning.stale import drop_stale_code

_to: Any = types.CPointer
FIELDS = {
    "bool": types.boolean,
    "int": types.int64,
    "I32": _to(types.int32),
    "I64": _to(types.int64),
    "U64": _to(types.uint64),
    "F64": _to(types.float64),
}
"""What a field's annotation becomes."""
DTYPES = {"I32": np.int32, "I64": np.int64, "U64": np.uint64, "F64": np.float64}

inner: Any = partial(nb.njit, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorator of functions that only compiled code calls: making them callable from Python took a third of the time."""


@inner
def _kept_here():  # type: ignore[no-untyped-def]
    """Never called: it knows where Numba keeps this package's code."""


# Before any other module that is compiled has been imported: all of them import this one.
drop_stale_code(Path(_kept_here.stats.cache_path), Path(__file__).parent)


@cache
def _kinds(record: Any) -> list[str]:
    """Return the annotations of the fields: names, as modules here postpone annotations."""
    return [str(getattr(kind, "__forward_arg__", kind)) for kind in record.__annotations__.values()]


def addresses(record: Any) -> I64:
    """Return the addresses of a named tuple's arrays, and its numbers as they are, in the order of its fields.

    Raises :class:`TypeError` for an array that is not what its annotation says, or not C-contiguous.
    """
    found: list[int] = []
    for name, kind, value in zip(record._fields, _kinds(type(record)), record, strict=True):  # type: ignore[arg-type]
        if not isinstance(value, np.ndarray):
            found.append(int(value))
        elif value.dtype != DTYPES.get(kind) or not value.flags.c_contiguous:
            raise TypeError(f"{type(record).__name__}.{name}: {value.dtype} array is not a contiguous {kind}")
        else:
            # Quicker than ``value.ctypes.data``, of which planning needs thousands.
            found.append(value.__array_interface__["data"][0])
    return np.array(found, np.int64)


def opener(record: type[NamedTuple]) -> Any:
    """Return a function for compiled code: :func:`addresses` → the named tuple, pointers in the place of arrays."""
    kinds = [FIELDS[kind] for kind in _kinds(record)]
    opened: Any = types.NamedTuple(kinds, record)  # type: ignore[no-untyped-call]

    @intrinsic
    def open_(context, packed):  # type: ignore[no-untyped-def]

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            values = []
            for i, kind in enumerate(kinds):
                word = builder.load(cgutils.gep_inbounds(builder, data, i))  # type: ignore[no-untyped-call]
                if kind is types.boolean:
                    word = builder.icmp_signed("!=", word, word.type(0))
                elif kind is not types.int64:
                    word = builder.inttoptr(word, context.get_value_type(kind))
                values.append(word)
            return context.make_tuple(builder, signature.return_type, values)

        return opened(packed), generate

    return open_
