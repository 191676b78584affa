"""Kernels and their variants: what a task computes, and the implementations of it.

A :class:`Kernel` declares its roles once (which data it reads, writes, updates); every
:class:`Variant` implements it for one kind of device. Implementations are named by import path and
imported only where they run, so a CPU rank never imports CuPy.

How an implementation is called
-------------------------------
*Host variants* (``device_kind="cpu"``): ``function(**arrays, **params)``. Every role is a NumPy array of
the data item's shape and dtype, a view of the arena. Inputs must not be written, outputs hold
arbitrary bytes on entry and must be filled completely; an updated role is read and written in place.
A list of items bound to one role arrives as a list of arrays. A variant with ``scratch_bytes`` gets
``scratch`` (uint8 array), one with ``max_cores != 1`` gets ``cores`` (int).

*Source variants* (``device_kind`` "opencl" or "cuda", ``source`` given): ``function(**arrays, **params)``
returns a list of :class:`Launch`; arrays are :class:`ArrayArg` placeholders (shape, dtype), never touched.
The device backend compiles ``source`` once and enqueues the launches in order, asynchronously.

*Array variants* (``device_kind="cuda"``, no ``source``): ``function(**arrays, **params)`` with CuPy arrays,
called with the rank's compute stream current; it must not synchronise unless ``blocking``.

*Variants on the host of a device* (``device_kind`` "opencl" or "cuda", ``on_host=True``): called like a host
variant, by the device's rank, with NumPy copies of the device's arrays; what it reads is downloaded before and
what it writes is uploaded after, inside the same op. For I/O where a node has no CPU device. ``blocking``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from heterotask_core.errors import KernelError
from heterotask_core.sources import module_file, source_digest

DEVICE_KINDS = ("cpu", "opencl", "cuda")

PRELUDE = Path(__file__).parent / "runtime" / "devices" / "prelude.h"
"""Prepended to every C source."""

Access = Literal["read", "write", "update"]


@dataclass(frozen=True, slots=True)
class ArrayArg:
    """An array argument of a source variant: what the binding knows before it runs."""

    role: str
    index: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One enqueue of an entry point of a variant's C source.

    ``global_size`` counts work items (rounded up to ``local_size`` by the backend, so entry points
    check their bounds). ``args`` are :class:`ArrayArg` placeholders, ``None`` for the scratch buffer,
    or NumPy scalars, in the order of the entry point's parameters.
    """

    entry: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OutputPath:
    """A parameter that names a result file; the worker resolves it against the run's folder."""

    name: str


@dataclass(frozen=True)
class Variant:
    """One implementation of a kernel for one kind of device."""

    name: str
    device_kind: str
    implementation: str
    """Import path ``package.module:function``."""
    source: str | None = None
    """C source for OpenCL and CUDA as ``package:file`` relative to that package's folder."""
    defines: tuple[tuple[str, str], ...] = ()
    """Macros defined before the C source: one source for several element types."""
    min_cores: int = 1
    max_cores: int | None = 1
    requires: tuple[str, ...] = ()
    """Importable packages without which the variant does not exist on a node."""
    supports: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], bool] | None = None
    scratch_bytes: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], int] | None = None
    blocking: bool = False
    """Computes or synchronises inside the call: meanwhile its device's rank issues no copies, and plans say so."""
    on_host: bool = False
    """An OpenCL or CUDA variant that the rank's own core computes on copies of the device's arrays; ``blocking``."""
    warm_up: bool = False
    """Host and ``on_host`` variants: called once on zeros before the start, to import, compile and read input files."""
    exact: bool = True
    """Bit-identical to the reference variant."""

    def load(self) -> Callable[..., Any]:
        """Import and return the implementation; raises :class:`KernelError` when it is not there."""
        module_name, _, attribute = self.implementation.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise KernelError(
                f"variant {self.name!r}: cannot import {self.implementation!r}: {error}; check the import path"
            ) from error
        return function  # type: ignore[no-any-return]

    def source_path(self) -> Path:
        """Return the file of the C source; raises :class:`KernelError` when there is none."""
        if self.source is None:
            raise KernelError(f"variant {self.name!r} has no C source")
        package, _, name = self.source.partition(":")
        return module_file(package).parent / name

    def available(self) -> bool:
        """Return whether every required package can be imported here (without importing it)."""
        return all(_importable(name) for name in self.requires)

    def fingerprint(self) -> str:
        """Return a hash of name, device kind, and the bytes of the implementing files.

        These are the implementation's module, those of its helpers (:mod:`heterotask_core.sources`), of the
        predicates' modules, and the C source with the prelude.
        """
        digest = hashlib.sha256(f"{self.name}|{self.device_kind}|{self.implementation}|{self.defines}".encode())
        modules = {self.implementation.partition(":")[0]}
        modules |= {f.__module__ for f in (self.supports, self.scratch_bytes) if f is not None}
        for module in sorted(modules):
            digest.update(source_digest(module).encode())
        if self.source is not None:
            digest.update(PRELUDE.read_bytes())
            digest.update(self.source_path().read_bytes())
        return digest.hexdigest()[:16]


@functools.cache
def _importable(package: str) -> bool:
    """Whether ``package`` is there; asked once a process, as a plan asks for every task class and device."""
    return importlib.util.find_spec(package) is not None


@dataclass(frozen=True)
class Kernel:
    """What a task computes: roles by access mode, and the variants that implement it.

    ``module`` is the module in whose namespace the kernel stands (pass ``__name__``): ranks import it
    and look the kernel up by name. ``reference`` names the exact variant that others are checked
    against (default: the first).
    """

    name: str
    module: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = field(default=())
    free_params: tuple[str, ...] = ()
    """Parameters that do not change the cost, such as the position of a tile."""
    sink: bool = False
    """Has effects outside its outputs (writes a file): never dropped, not repeated when profiled."""

    def __post_init__(self) -> None:
        roles = [*self.reads, *self.writes, *self.updates]
        if len(set(roles)) != len(roles):
            raise KernelError(f"kernel {self.name!r}: a role stands in two lists: {roles}")
        names = [v.name for v in self.variants]
        if len(set(names)) != len(names):
            raise KernelError(f"kernel {self.name!r}: two variants have one name: {names}")
        for v in self.variants:
            if v.device_kind not in DEVICE_KINDS:
                raise KernelError(
                    f"kernel {self.name!r}, variant {v.name!r}: device kind {v.device_kind!r} is none of {DEVICE_KINDS}"
                )
            if v.on_host and (v.device_kind == "cpu" or v.source or v.scratch_bytes or not v.blocking):
                raise KernelError(
                    f"kernel {self.name!r}, variant {v.name!r}: on_host is for blocking OpenCL and CUDA variants "
                    "without C source and scratch"
                )

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles: reads, writes, updates."""
        return (*self.reads, *self.writes, *self.updates)

    @property
    def reference(self) -> Variant:
        """The first CPU variant, which every exact variant equals bit for bit."""
        for v in self.variants:
            if v.device_kind == "cpu":
                return v
        raise KernelError(f"kernel {self.name!r} has no CPU variant to serve as reference")

    def access(self, role: str) -> Access:
        """Return how the kernel uses a role."""
        return "read" if role in self.reads else "write" if role in self.writes else "update"

    def variant(self, name: str) -> Variant:
        """Return the variant called ``name``; raises :class:`KernelError` with the known names."""
        for v in self.variants:
            if v.name == name:
                return v
        raise KernelError(f"kernel {self.name!r} has no variant {name!r}; it has {[v.name for v in self.variants]}")

    def fingerprint(self) -> str:
        """Return a hash over roles and variants."""
        text = "|".join([self.name, *self.roles, *(v.fingerprint() for v in self.variants)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_kernel(module: str, name: str) -> Kernel:
    """Import ``module`` and return its kernel called ``name``; raises :class:`KernelError`."""
    try:
        namespace = vars(importlib.import_module(module))
    except ImportError as error:
        raise KernelError(f"cannot import {module!r}, the module of kernel {name!r}: {error}") from error
    for value in namespace.values():
        if isinstance(value, Kernel) and value.name == name:
            return value
    raise KernelError(f"module {module!r} has no kernel {name!r}; the program was made from another version of it")


def usable_variants(
    kernel: Kernel,
    *,
    params: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    device_kind: str,
    cores: int,
    exact: bool,
    installed: bool = True,
) -> Sequence[Variant]:
    """Return the variants of ``kernel`` that can run on a device of ``device_kind`` whose rank has ``cores`` cores.

    A rank has one at least, also where the platform names none for it. With ``installed`` false the packages that they
    need may be missing: emulated devices never call them.
    """
    return [
        v
        for v in kernel.variants
        if v.device_kind == device_kind
        and (v.exact or not exact)
        and v.min_cores <= max(1, cores)
        and (v.available() or not installed)
        and (v.supports is None or v.supports(params, shapes))
    ]
