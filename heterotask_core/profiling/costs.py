"""What tasks and transfers cost: profiled times by key, and the overheads that profiling alone cannot see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heterotask_core.errors import CalibrationError, ProfileError
from heterotask_core.platform.model import Device, Link

if TYPE_CHECKING:
    from heterotask_core.profiling.measure import Profile

SCALE_BOUNDS = (0.01, 100.0)
DISPATCH_BOUNDS_S = (0.0, 1.0)
SIDE_BY_SIDE = 0.5
"""Two lanes of which less than this share of the shorter one was hidden behind the longer one are one engine."""


@dataclass(frozen=True)
class Overheads:
    """Corrections of profiled costs, estimated by the calibration; the default changes nothing.

    Mappings are sparse: a missing device kind, kernel or link kind has 0 seconds or factor 1.
    Raises :class:`CalibrationError` for what is no mapping, and for a value that is no number or out of bounds.
    """

    dispatch_s: Mapping[str, float] = field(default_factory=dict)
    """By device kind: added to every task."""
    compute_scale: Mapping[str, float] = field(default_factory=dict)
    """By device kind: multiplies every task."""
    kernel_scale: Mapping[str, float] = field(default_factory=dict)
    """By ``kernel|device kind``: multiplies the tasks of one kernel."""
    link_setup_s: Mapping[str, float] = field(default_factory=dict)
    """By link kind: added to the latency."""
    link_scale: Mapping[str, float] = field(default_factory=dict)
    """By link kind: multiplies the whole transfer."""
    device_scale: Mapping[str, float] = field(default_factory=dict)
    """By device name: multiplies every task, of a device that is slower or faster than its like."""
    contention: float = 0.0
    """Relative slow-down of CPU tasks while all devices work, 0 to 10."""

    def __post_init__(self) -> None:
        for name, bounds in (
            ("dispatch_s", DISPATCH_BOUNDS_S),
            ("compute_scale", SCALE_BOUNDS),
            ("kernel_scale", SCALE_BOUNDS),
            ("link_setup_s", DISPATCH_BOUNDS_S),
            ("link_scale", SCALE_BOUNDS),
            ("device_scale", SCALE_BOUNDS),
        ):
            values = getattr(self, name)
            if not isinstance(values, Mapping):
                raise CalibrationError(f"overheads {name} are {values!r}; they must be a mapping of names to numbers")
            for key, value in values.items():
                _check(f"{name}[{key!r}]", value, bounds)
        _check("contention", self.contention, (0.0, 10.0))

    def task_s(self, kernel: str, device_kind: str, profiled_s: float, *, device: str = "") -> float:
        """Return the cost in seconds of a task whose profiled time is ``profiled_s``, on ``device`` if it is named."""
        scale = (
            self.device_scale.get(device, 1.0)
            * self.compute_scale.get(device_kind, 1.0)
            * self.kernel_scale.get(f"{kernel}|{device_kind}", 1.0)
        )
        if device_kind == "cpu":
            scale *= 1.0 + self.contention
        return profiled_s * scale + self.dispatch_s.get(device_kind, 0.0)

    def link(self, kind: str, latency_s: float, bandwidth_bytes_per_s: float) -> tuple[float, float]:
        """Return the corrected (latency in seconds, bandwidth in bytes a second) of a link of ``kind``."""
        scale = self.link_scale.get(kind, 1.0)
        return latency_s * scale + self.link_setup_s.get(kind, 0.0), bandwidth_bytes_per_s / scale


@dataclass(frozen=True)
class CostModel:
    """Profiled medians in seconds by (class key, variant, device kind, device model, cores), and links by ends."""

    timings: Mapping[tuple[str, str, str, str, int], float]
    links: Mapping[tuple[str, str], tuple[float, float]]
    """(source, target) memory → (latency in seconds, bandwidth in bytes a second)."""
    fingerprint: str = ""
    slow_down: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(class key, variant, device name) → factor while all other devices of the host compute; missing: 1."""
    engines: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Link ends → what its transfers were measured to wait for: a device (its kernels), or a name of two links."""

    @staticmethod
    def from_profile(profile: Profile) -> CostModel:
        """Take the medians, fitted links, slow-downs and shared engines of a profile."""
        rows = list(profile.timings.iter_rows(named=True))
        timings = {
            (r["class_key"], r["variant"], r["device_kind"], r["device_model"], r["cores"]): r["median_s"] for r in rows
        }
        links = {
            (r["source"], r["target"]): (r["latency_s"], r["bandwidth_bytes_per_s"])
            for r in profile.links.iter_rows(named=True)
        }
        pairs = profile.pairs.filter(profile.pairs["overlap"] < SIDE_BY_SIDE).select("first", "second").rows()
        return CostModel(
            timings, links, profile.fingerprint, _slow_downs(rows, profile.busy.to_dicts()), _engines(pairs)
        )

    def task_s(self, class_key: str, variant: str, device: Device, *, what: str, neighbours: float = 0.0) -> float:
        """Return the profiled time in seconds while a share ``neighbours`` of the other devices compute (0 to 1).

        Raises :class:`ProfileError` naming ``what`` if there is no timing.
        """
        key = (class_key, variant, device.variant_kind, device.model, timing_cores(device))
        try:
            alone_s = self.timings[key]
        except KeyError:
            raise ProfileError(
                f"{what}: the profile has no timing of variant {variant!r} on {device.name} ({device.model}); "
                "run `heterotask profile` with the same application and devices"
            ) from None
        return alone_s * (1.0 + neighbours * (self.slow_down.get((class_key, variant, device.name), 1.0) - 1.0))

    def link(self, link: Link) -> tuple[float, float]:
        """Return (latency in seconds, bandwidth in bytes a second); of an unmeasured link what the platform says."""
        return self.links.get((link.source, link.target), (link.latency_s, link.bandwidth_bytes_per_s))


def _slow_downs(
    timings: Sequence[Mapping[str, Any]], busy: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str, str], float]:
    """Return (class key, variant, device) → factor for every profiled class.

    What was measured for one class and variant of a kernel stands for its others: of the same variant if there is
    one, of those on the nearest footprint, and of those for the class that is nearest in bytes.
    """
    found: dict[tuple[str, str, str], float] = {}
    for row in timings:
        kind = (row["kernel"], row["device_kind"], row["device_model"], row["cores"])
        size = row["input_bytes"] + row["output_bytes"]
        by_device: dict[str, list[tuple[tuple[bool, float, float], float]]] = {}
        for b in busy:
            if (b["kernel"], b["device_kind"], b["device_model"], b["cores"]) == kind:
                distance = abs(math.log((b["bytes"] + 1) / (size + 1)))
                apart = abs(math.log((b["footprint_bytes"] + 1) / (row["footprint_bytes"] + 1)))
                nearness = (b["variant"] != row["variant"], apart, distance)
                by_device.setdefault(b["device"], []).append((nearness, b["scale"]))
        for device, choices in by_device.items():
            found[row["class_key"], row["variant"], device] = min(choices)[1]
    return found


def _engines(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return what each link's transfers wait for, from the pairs of lanes that do not run side by side."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for first, second in pairs:
        link = _ends(second)
        if "→" not in first:
            found[link] = (*found.get(link, ()), first)
            continue
        shared = " ↔ ".join(sorted((first, second)))
        for ends in (_ends(first), link):
            found[ends] = (*found.get(ends, ()), shared)
    return found


def _ends(text: str) -> tuple[str, str]:
    source, _, target = text.partition("→")
    return source, target


def timing_cores(device: Device) -> int:
    """Return the number of cores that timings on ``device`` are keyed by: 0 unless it computes on them."""
    return len(device.core_ids) if device.variant_kind == "cpu" else 0


def _check(name: str, value: object, bounds: tuple[float, float]) -> None:
    # Values come from files too; NaN is between no bounds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise CalibrationError(f"overhead {name} is {value!r}; it must be between {bounds[0]} and {bounds[1]}")
