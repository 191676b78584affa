"""Variants that every application registers in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from heterotask_core.kernel import Variant

DEVICE_PACKAGES = {"opencl": "pyopencl", "cuda": "cupy"}
"""Device kind → the package that drives it."""

Shapes = Mapping[str, tuple[int, ...]]
Supports = Callable[[Mapping[str, Any], Shapes], bool]
Scratch = Callable[[Mapping[str, Any], Shapes], int]


def host_variants(implementation: str, *, requires: tuple[str, ...], warm_up: bool) -> tuple[Variant, ...]:
    """Return a host function as variant of CPUs, and of the ranks of devices where a node has no CPU device.

    For input and output, which no device can do itself.
    """
    return (
        Variant("numpy", "cpu", implementation, requires=requires, warm_up=warm_up),
        *(
            Variant(
                kind,
                kind,
                implementation,
                requires=(*requires, package),
                warm_up=warm_up,
                on_host=True,
                blocking=True,
            )
            for kind, package in DEVICE_PACKAGES.items()
        ),
    )


def source_variants(
    implementation: str,
    source: str,
    *,
    supports: Supports | None = None,
    scratch: Scratch | None = None,
    exact: bool = True,
) -> tuple[Variant, ...]:
    """Return launches of one C source as variants ``opencl`` and ``cuda``."""
    return tuple(
        _source_variant(kind, implementation, source, kind=kind, supports=supports, scratch=scratch, exact=exact)
        for kind in DEVICE_PACKAGES
    )


def typed_source_variants(
    implementation: str, source: str, *, scratch: Scratch | None = None, exact: bool = True
) -> tuple[Variant, ...]:
    """Return launches of one C source over REAL as variants for float32 (``opencl``) and float64 (``opencl64``).

    The task's parameter ``dtype`` says which one it wants.
    """
    return tuple(
        _source_variant(
            kind + suffix,
            implementation,
            source,
            kind=kind,
            supports=supports,
            scratch=scratch,
            exact=exact,
            defines=(("REAL", real),),
        )
        for kind in DEVICE_PACKAGES
        for suffix, real, supports in (("", "float", _is_float32), ("64", "double", _is_float64))
    )


def _source_variant(
    name: str,
    implementation: str,
    source: str,
    *,
    kind: str,
    supports: Supports | None,
    scratch: Scratch | None,
    exact: bool,
    defines: tuple[tuple[str, str], ...] = (),
) -> Variant:
    return Variant(
        name,
        kind,
        implementation,
        source=source,
        defines=defines,
        requires=(DEVICE_PACKAGES[kind],),
        supports=supports,
        scratch_bytes=scratch,
        exact=exact,
    )


def _is_float32(params: Mapping[str, Any], shapes: Shapes) -> bool:
    return bool(params["dtype"] == "float32")


def _is_float64(params: Mapping[str, Any], shapes: Shapes) -> bool:
    return bool(params["dtype"] == "float64")
