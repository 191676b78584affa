"""Overheads from traces: what an executed program took, compared with what its plan took from the profile.

The planned duration of an op is its profiled time under the overheads it was planned with; taking those out
again gives the profiled time, so the trace needs no second table to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from heterotask_core.errors import CalibrationError
from heterotask_core.profiling.costs import DISPATCH_BOUNDS_S, SCALE_BOUNDS, Overheads
from heterotask_core.tables import TRACE, check_table

F64 = npt.NDArray[np.float64]
Name = TypeVar("Name")

PRIOR_LOG_SD = 0.3
"""Spread of the log in-situ ratio that is expected before looking: a kernel is rarely off by more than 2×."""
FLOOR_LOG_SE = 0.005
"""No ratio is believed to better than half a percent, however many repeats agree."""
MIN_SIZES, MIN_SPAN = 3, 4.0
"""Set-up and bandwidth are told apart only from this many sizes spanning this factor."""
MAX_CONDITION = 50.0
MIN_LIKE = 3
"""Devices of a kind that a device is compared with, itself included: of two, none is the odd one."""
MIN_DEVICE = 0.03
"""Devices of a kind are taken as equal up to this log ratio."""


@dataclass(frozen=True)
class Estimate:
    """Estimated overheads, and the names of those that the trace could not tell from their prior."""

    overheads: Overheads
    unidentified: tuple[str, ...]
    samples: int


def estimate_overheads(
    traces: Sequence[tuple[pl.DataFrame, Overheads]],
    *,
    device_kinds: Mapping[str, str],
    link_kinds: Mapping[tuple[str, str], str],
) -> Estimate:
    """Estimate the overheads from executed traces, each with the overheads that its program was planned with.

    ``device_kinds`` maps device names to the device kinds of the costs, ``link_kinds`` maps (source, target)
    memories to link kinds. Per kernel × device kind: the median log ratio of measured to profiled duration,
    shrunk to 0 by its own uncertainty. Per device: its ratio to those of its kind where it plainly differs. Per device
    kind: the median of ``start_s - ready_s``. Per link kind: scale, and set-up where the sizes allow.

    Raises :class:`CalibrationError` when no trace holds a kernel, and
    :class:`~heterotask_core.errors.StoreError` for a table that is no trace.
    """
    kernels: dict[str, dict[str, list[F64]]] = {}
    gaps: dict[str, list[F64]] = {}
    moves: dict[str, list[tuple[F64, F64, F64]]] = {}
    for table, planned_with in traces:
        check_table(table, TRACE, what="trace to calibrate from")
        _collect_kernels(table, planned_with, device_kinds, kernels, gaps)
        _collect_moves(table, planned_with, link_kinds, moves)
    if not kernels:
        raise CalibrationError("the traces hold no kernel run; execute the program before calibrating")

    unidentified: list[str] = []
    by_kernel = {
        key: {device: np.concatenate(parts) for device, parts in devices.items()} for key, devices in kernels.items()
    }
    device_scale = _device_scale(by_kernel)
    kernel_scale = {}
    for key, devices in sorted(by_kernel.items()):
        logs = [values - math.log(device_scale.get(device, 1.0)) for device, values in devices.items()]
        kernel_scale[key] = _clip(_shrunk_ratio(np.concatenate(logs)), SCALE_BOUNDS)
    dispatch_s = {}
    for kind, parts in sorted(gaps.items()):
        gap = np.concatenate(parts)
        centre, error = _median_and_error(gap)
        if centre > 2 * error and centre > 0:
            dispatch_s[kind] = _clip(centre, DISPATCH_BOUNDS_S)
        else:
            unidentified.append(f"dispatch_s[{kind}]")
    link_scale, link_setup_s = {}, {}
    for kind, triples in sorted(moves.items()):
        size, profiled, measured = (np.concatenate([t[i] for t in triples]) for i in range(3))
        fit = _fit_link(size, profiled, measured)
        if fit is None:
            unidentified.append(f"link_setup_s[{kind}]")
            fit = (0.0, _shrunk_ratio(np.log(measured / profiled)))
        link_setup_s[kind] = _clip(fit[0], DISPATCH_BOUNDS_S)
        link_scale[kind] = _clip(fit[1], SCALE_BOUNDS)
    overheads = Overheads(
        dispatch_s=dispatch_s,
        kernel_scale=kernel_scale,
        link_setup_s=link_setup_s,
        link_scale=link_scale,
        device_scale=device_scale,
    )
    samples = sum(len(values) for devices in by_kernel.values() for values in devices.values())
    return Estimate(overheads, tuple(unidentified), samples)


def _device_scale(by_kernel: Mapping[str, Mapping[str, F64]]) -> dict[str, float]:
    """Return the factors of devices that differ from their like by more than ``MIN_DEVICE`` and chance.

    ``by_kernel``: kernel and device kind → device → log ratios. Each device is compared with the median over the
    devices of its kind, kernel by kernel; equal devices, as almost all are, must stay equal, or a plan would prefer
    one for no reason.
    """
    found: dict[str, list[F64]] = {}
    for devices in by_kernel.values():
        if len(devices) >= MIN_LIKE:
            centre = float(np.median([np.median(values) for values in devices.values()]))
            for device, values in devices.items():
                found.setdefault(device, []).append(values - centre)
    scale = {}
    for device, parts in sorted(found.items()):
        centre, error = _median_and_error(np.concatenate(parts))
        if len(np.concatenate(parts)) > 3 and abs(centre) > max(MIN_DEVICE, 4 * error):
            scale[device] = _clip(math.exp(centre), SCALE_BOUNDS)
    return scale


def _collect_kernels(
    table: pl.DataFrame,
    planned_with: Overheads,
    device_kinds: Mapping[str, str],
    kernels: dict[str, dict[str, list[F64]]],
    gaps: dict[str, list[F64]],
) -> None:
    runs = table.filter(pl.col("kind") == "kernel")
    for (kernel, device), group in runs.group_by(["kernel", "device"], maintain_order=True):
        kind = _known(device_kinds, str(device), "device")
        constant = planned_with.task_s(str(kernel), kind, 0.0)
        scale = planned_with.task_s(str(kernel), kind, 1.0, device=str(device)) - constant
        profiled = ((group["planned_finish_s"] - group["planned_start_s"]).to_numpy() - constant) / scale
        measured = (group["finish_s"] - group["start_s"]).to_numpy()
        usable = (profiled > 0) & (measured > 0)
        if usable.any():
            logs = np.log(measured[usable] / profiled[usable])
            kernels.setdefault(f"{kernel}|{kind}", {}).setdefault(str(device), []).append(logs)
        gaps.setdefault(kind, []).append((group["start_s"] - group["ready_s"]).to_numpy())


def _collect_moves(
    table: pl.DataFrame,
    planned_with: Overheads,
    link_kinds: Mapping[tuple[str, str], str],
    moves: dict[str, list[tuple[F64, F64, F64]]],
) -> None:
    # A copy inside one memory is no link.
    copies = table.filter((pl.col("kind") != "kernel") & (pl.col("source") != pl.col("target")))
    for (source, target), group in copies.group_by(["source", "target"], maintain_order=True):
        kind = _known(link_kinds, (str(source), str(target)), "link")
        planned = (group["planned_finish_s"] - group["planned_start_s"]).to_numpy()
        setup, scale = planned_with.link_setup_s.get(kind, 0.0), planned_with.link_scale.get(kind, 1.0)
        profiled, measured = (planned - setup) / scale, (group["finish_s"] - group["start_s"]).to_numpy()
        usable = (profiled > 0) & (measured > 0)
        if usable.any():
            size = group["size_bytes"].to_numpy().astype(np.float64)
            moves.setdefault(kind, []).append((size[usable], profiled[usable], measured[usable]))


def _known(names: Mapping[Name, str], name: Name, what: str) -> str:
    try:
        return names[name]
    except KeyError:
        raise CalibrationError(
            f"the trace names {what} {name!r}, which this platform does not have; execute the program here first"
        ) from None


def _median_and_error(values: F64) -> tuple[float, float]:
    centre = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - centre)))
    # 1.2533 = sqrt(pi / 2): a median's standard error against a mean's, for normal noise.
    return centre, 1.2533 * spread / math.sqrt(len(values))


def _shrunk_ratio(logs: F64) -> float:
    centre, error = _median_and_error(logs)
    # One sample has no spread of its own: believe it as one draw of the prior.
    error = max(error, FLOOR_LOG_SE) if len(logs) > 1 else PRIOR_LOG_SD
    return math.exp(centre * PRIOR_LOG_SD**2 / (PRIOR_LOG_SD**2 + error**2))


def _fit_link(size: F64, profiled: F64, measured: F64) -> tuple[float, float] | None:
    """Return (set-up in seconds, scale) of measured = set-up + scale · profiled, or None if ill-conditioned."""
    sizes = np.unique(size)
    if len(sizes) < MIN_SIZES or sizes[-1] < MIN_SPAN * sizes[0]:
        return None
    x = np.array([np.median(profiled[size == s]) for s in sizes])
    y = np.array([np.median(measured[size == s]) for s in sizes])
    # Noise is proportional to the duration, hence relative residuals.
    design = np.column_stack([x.min() / y, x / y])
    if np.linalg.cond(design / np.linalg.norm(design, axis=0)) > MAX_CONDITION:
        return None
    (setup, scale), *_ = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)
    if setup < 0 or scale <= 0:
        return None
    return float(setup * x.min()), float(scale)


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return float(min(max(value, bounds[0]), bounds[1]))
