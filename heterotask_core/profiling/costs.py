"""What tasks and transfers cost: profiled times by key, and the overheads that profiling alone cannot see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heterotask_core.errors import CalibrationError, ProfileError
from heterotask_core.platform.model import Device, Link

if TYPE_CHECKING:
    from heterotask_core.profiling.measure import Profile

SCALE_BOUNDS = (0.01, 100.0)
DISPATCH_BOUNDS_S = (0.0, 1.0)


@dataclass(frozen=True)
class Overheads:
    """Corrections of profiled costs, estimated by the calibration; the default changes nothing.

    Mappings are sparse: a missing device kind, kernel or link kind has 0 seconds or factor 1.
    Raises :class:`CalibrationError` for a value that is not finite or out of bounds.
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
    contention: float = 0.0
    """Relative slow-down of CPU tasks while all devices work, 0 to 10."""

    def __post_init__(self) -> None:
        for name, bounds in (
            ("dispatch_s", DISPATCH_BOUNDS_S),
            ("compute_scale", SCALE_BOUNDS),
            ("kernel_scale", SCALE_BOUNDS),
            ("link_setup_s", DISPATCH_BOUNDS_S),
            ("link_scale", SCALE_BOUNDS),
        ):
            for key, value in getattr(self, name).items():
                _check(f"{name}[{key!r}]", value, bounds)
        _check("contention", self.contention, (0.0, 10.0))

    def task_s(self, kernel: str, device_kind: str, profiled_s: float) -> float:
        """Return the cost in seconds of a task whose profiled time is ``profiled_s``."""
        scale = self.compute_scale.get(device_kind, 1.0) * self.kernel_scale.get(f"{kernel}|{device_kind}", 1.0)
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

    @staticmethod
    def from_profile(profile: Profile) -> CostModel:
        """Take the medians and fitted links of a profile."""
        timings = {
            (r["class_key"], r["variant"], r["device_kind"], r["device_model"], r["cores"]): r["median_s"]
            for r in profile.timings.filter(~profile.timings["busy"]).iter_rows(named=True)
        }
        links = {
            (r["source"], r["target"]): (r["latency_s"], r["bandwidth_bytes_per_s"])
            for r in profile.links.iter_rows(named=True)
        }
        return CostModel(timings, links, profile.fingerprint)

    def task_s(self, class_key: str, variant: str, device: Device, *, what: str) -> float:
        """Return the profiled time in seconds; raises :class:`ProfileError` naming ``what`` if there is none."""
        key = (class_key, variant, device.variant_kind, device.model, timing_cores(device))
        try:
            return self.timings[key]
        except KeyError:
            raise ProfileError(
                f"{what}: the profile has no timing of variant {variant!r} on {device.name} ({device.model}); "
                "run `heterotask profile` with the same application and devices"
            ) from None

    def link(self, link: Link) -> tuple[float, float]:
        """Return (latency in seconds, bandwidth in bytes a second); of an unmeasured link what the platform says."""
        return self.links.get((link.source, link.target), (link.latency_s, link.bandwidth_bytes_per_s))


def timing_cores(device: Device) -> int:
    """Return the number of cores that timings on ``device`` are keyed by: 0 unless it computes on them."""
    return len(device.core_ids) if device.variant_kind == "cpu" else 0


def _check(name: str, value: float, bounds: tuple[float, float]) -> None:
    if not math.isfinite(value) or not bounds[0] <= value <= bounds[1]:
        raise CalibrationError(f"overhead {name} is {value}; it must be between {bounds[0]} and {bounds[1]}")
