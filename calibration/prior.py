"""Where hidden truths are drawn from: ranges in a YAML file, each with the source that it was taken from.

    python benchmarks/calibration.py --prior my_prior.yaml

A value is a range ``{low, high, source}``; ``log: true`` draws its logarithm evenly. See ``priors/default.yaml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibration.virtual import Truth
from heterotask_core.errors import CalibrationError
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import Overheads

DEFAULT_PRIOR = Path(__file__).parent / "priors" / "default.yaml"
Family = Literal["additive", "interference", "null"]
FAMILIES: tuple[Family, ...] = ("additive", "interference", "null")


class Range(BaseModel):
    """Values from ``low`` to ``high``, evenly or (``log``) evenly in their logarithm."""

    model_config = ConfigDict(extra="forbid")
    low: float = Field(ge=0)
    high: float = Field(ge=0)
    log: bool = False
    source: str = Field(min_length=8)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high or (self.log and self.low <= 0):
            raise ValueError(f"low {self.low} and high {self.high} are no range" + (" above 0" if self.log else ""))
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a value."""
        if self.log:
            return math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return float(rng.uniform(self.low, self.high))


class Known(BaseModel):
    """What profiling sees: the machine and the application's costs."""

    model_config = ConfigDict(extra="forbid")
    task_s: Range
    cpu_slowness: Range
    kernel_spread: Range
    link_latency_s: Range
    link_bandwidth_bytes_per_s: Range
    network_bandwidth_bytes_per_s: Range


class Additive(BaseModel):
    """What is added to every task and every transfer."""

    model_config = ConfigDict(extra="forbid")
    gpu_launch_s: Range
    cpu_launch_s: Range
    link_setup_s: Range


class Interference(BaseModel):
    """What depends on what runs beside, and devices that are slower than their like."""

    model_config = ConfigDict(extra="forbid")
    cpu_slow_down: Range
    gpu_slow_down: Range
    link_sharing: Range
    slow_devices: Range
    device_slow_down: Range


class Noise(BaseModel):
    """Noise of a run, of the same size in every family."""

    model_config = ConfigDict(extra="forbid")
    op: Range
    run: Range
    straggler_share: Range
    straggler_factor: Range


class Prior(BaseModel):
    """All ranges."""

    model_config = ConfigDict(extra="forbid")
    known: Known
    additive: Additive
    interference: Interference
    noise: Noise

    @staticmethod
    def read(path: Path) -> Prior:
        """Read a YAML file; raises :class:`CalibrationError` naming the key that is wrong."""
        try:
            return Prior.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors()[0]
            raise CalibrationError(f"{path}, {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (OSError, yaml.YAMLError) as error:
            raise CalibrationError(f"{path} is no prior ({error}); see calibration/priors/default.yaml") from None

    def draw_machine(self, rng: np.random.Generator) -> Machine:
        """Draw what profiling sees."""
        known = self.known
        return Machine(
            task_s=known.task_s.draw(rng),
            cpu_slowness=known.cpu_slowness.draw(rng),
            kernel_spread=known.kernel_spread.draw(rng),
            link_latency_s=known.link_latency_s.draw(rng),
            link_bandwidth_bytes_per_s=known.link_bandwidth_bytes_per_s.draw(rng),
            network_bandwidth_bytes_per_s=known.network_bandwidth_bytes_per_s.draw(rng),
        )

    def draw_truth(self, family: Family, platform: Platform, rng: np.random.Generator) -> Truth:
        """Draw what is hidden on ``platform``; of ``null`` only the noise."""
        nothing = Truth(
            op_noise=self.noise.op.draw(rng),
            run_noise=self.noise.run.draw(rng),
            straggler_share=self.noise.straggler_share.draw(rng),
            straggler_factor=self.noise.straggler_factor.draw(rng),
        )
        if family == "null":
            return nothing
        if family == "additive":
            setup_s = {str(kind): self.additive.link_setup_s.draw(rng) for kind in _link_kinds(platform)}
            dispatch_s = {
                kind: (self.additive.cpu_launch_s if kind == "cpu" else self.additive.gpu_launch_s).draw(rng)
                for kind in sorted({d.variant_kind for d in platform.devices})
            }
            return replace(nothing, overheads=Overheads(dispatch_s=dispatch_s, link_setup_s=setup_s))
        hidden = self.interference
        share = hidden.slow_devices.draw(rng)
        scale = {d.name: 1.0 + hidden.device_slow_down.draw(rng) for d in platform.devices if rng.random() < share}
        slow = {
            kind: (hidden.cpu_slow_down if kind == "cpu" else hidden.gpu_slow_down).draw(rng)
            for kind in sorted({d.variant_kind for d in platform.devices})
        }
        return replace(
            nothing,
            overheads=Overheads(device_scale=scale),
            interference=slow,
            shared_links=_switches(platform),
            link_sharing=hidden.link_sharing.draw(rng),
        )


@dataclass(frozen=True)
class Machine:
    """What profiling sees of a drawn machine; seconds, bytes a second, and a CPU's time over a GPU's."""

    task_s: float
    cpu_slowness: float
    kernel_spread: float
    link_latency_s: float
    link_bandwidth_bytes_per_s: float
    network_bandwidth_bytes_per_s: float


def _link_kinds(platform: Platform) -> list[str]:
    return sorted({str(x.kind) for x in platform.links})


def _switches(platform: Platform) -> dict[tuple[str, str], str]:
    """Return link ends → switch: every two neighbouring devices of a node share one, a direction each."""
    found: dict[tuple[str, str], str] = {}
    order: dict[str, list[str]] = {}
    for memory in platform.memories:
        order.setdefault(memory.node, []).append(memory.name)
    for x in platform.links:
        if x.kind in ("host_to_device", "device_to_host"):
            device = x.target if x.kind == "host_to_device" else x.source
            node = next(m.node for m in platform.memories if m.name == device)
            found[x.source, x.target] = f"{node} switch {(order[node].index(device) - 1) // 2} {x.kind}"
    return found
