"""Where hidden truths are drawn from: ranges in a YAML file, each with the source that it was taken from.

    python benchmarks/calibration.py --prior my_prior.yaml

A value is a range ``{low, high, source}``; ``log: true`` draws its logarithm evenly. See ``priors/default.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibration.virtual import Truth
from heterotask_core.errors import CalibrationError
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import DISPATCH_BOUNDS_S, SCALE_BOUNDS, Overheads

DEFAULT_PRIOR = Path(__file__).parent / "priors" / "default.yaml"
Family = Literal["additive", "interference", "null"]
FAMILIES: tuple[Family, ...] = ("additive", "interference", "null")


class Range(BaseModel):
    """Values from ``low`` to ``high``, evenly or (``log``) evenly in their logarithm."""

    model_config = ConfigDict(extra="forbid")
    low: float = Field(ge=0, allow_inf_nan=False)
    high: float = Field(ge=0, allow_inf_nan=False)
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


def _within(low: float, high: float) -> Callable[[Range], Range]:
    def check(value: Range) -> Range:
        if value.low < low or value.high > high:
            raise ValueError(f"{value.low} to {value.high} is not within {low} to {high}")
        return value

    return check


Share = Annotated[Range, AfterValidator(_within(0.0, 1.0))]
Wait = Annotated[Range, AfterValidator(_within(*DISPATCH_BOUNDS_S))]
Slow = Annotated[Range, AfterValidator(_within(0.0, SCALE_BOUNDS[1] - 1.0))]
"""By what fraction something takes longer."""
Width = Annotated[Range, AfterValidator(_within(0.0, 2.0))]
"""Of a log-normal distribution."""
Task = Annotated[Range, AfterValidator(_within(1e-9, 1e3))]
Factor = Annotated[Range, AfterValidator(_within(1e-3, 1e6))]
Bandwidth = Annotated[Range, AfterValidator(_within(1.0, 1e15))]


class Known(BaseModel):
    """What profiling sees: the machine and the application's costs."""

    model_config = ConfigDict(extra="forbid")
    task_s: Task
    cpu_slowness: Factor
    kernel_spread: Width
    link_latency_s: Wait
    link_bandwidth_bytes_per_s: Bandwidth
    network_bandwidth_bytes_per_s: Bandwidth


class Additive(BaseModel):
    """What is added to every task and every transfer."""

    model_config = ConfigDict(extra="forbid")
    gpu_launch_s: Wait
    cpu_launch_s: Wait
    link_setup_s: Wait


class Interference(BaseModel):
    """What depends on what runs beside, and devices that are slower than their like."""

    model_config = ConfigDict(extra="forbid")
    cpu_slow_down: Slow
    gpu_slow_down: Slow
    link_sharing: Slow
    slow_devices: Share
    device_slow_down: Slow


class Noise(BaseModel):
    """Noise of a run, of the same size in every family."""

    model_config = ConfigDict(extra="forbid")
    op: Width
    run: Width
    straggler_share: Share
    straggler_factor: Factor


class Prior(BaseModel):
    """All ranges."""

    model_config = ConfigDict(extra="forbid")
    known: Known
    additive: Additive
    interference: Interference
    noise: Noise

    @staticmethod
    def read(path: Path) -> Prior:
        """Read a YAML file; raises :class:`CalibrationError` naming the keys that are wrong, three at most."""
        see = "see calibration/priors/default.yaml"
        try:
            return Prior.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            # Unknown keys before others, so that one is always named: what is missing is often what is misspelt.
            found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")[:3]
            wrong = [
                f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
                if e in found
            ]
            raise CalibrationError(f"{path}, {'; '.join(wrong)}; {see}") from None
        except OSError as error:
            raise CalibrationError(f"{path} cannot be read ({error.strerror}); {see}") from None
        except (ValueError, yaml.YAMLError) as error:
            raise CalibrationError(f"{path} is no prior ({' '.join(str(error).split())}); {see}") from None

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
