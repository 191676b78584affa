"""What a run page shows of a run: a summary table and the Gantt chart.

A chart is an SVG as base64 data URI inside a markdown artifact: Prefect's pages strip raw ``<svg>``, and an
image artifact takes only an address.
"""

import base64
import re
from collections.abc import Mapping
from statistics import median
from typing import Any

from prefect.artifacts import create_markdown_artifact

MAX_ARTIFACT_BYTES = 1_000_000
"""Pages of Prefect become slow with larger ones."""


def artifact_key(app: str, what: str) -> str:
    """Return a key of lower case letters, digits and dashes, the same for every run of an application."""
    return re.sub(r"[^a-z0-9]+", "-", f"{app} {what}".lower()).strip("-")


def summary_markdown(run: str, facts: Mapping[str, Any]) -> str:
    """Return the facts of a run (as in its ``summary.json``) as markdown tables."""
    rows = [
        ("planner", facts["planner"]),
        ("predicted makespan", _ms(facts["predicted_makespan_s"])),
        ("measured makespan (median)", _ms(median(facts["makespan_s"]))),
        ("application completion", _ms(facts["completion_s"])),
        ("lower bound", _ms(facts["lower_bound_s"])),
        ("repeats", len(facts["makespan_s"])),
    ]
    rows += [(f"utilisation of {device}", f"{100 * share:.1f} %") for device, share in facts["utilisation"].items()]
    rows += [(f"moved {link}", _mib(size)) for link, size in facts["link_bytes"].items()]
    for node, planned in facts["arena_planned_bytes"].items():
        rows.append((f"memory {node}, planned", _mib(planned)))
    for node, peak in facts["arena_peak_bytes"].items():
        rows.append((f"memory {node}, peak", _mib(peak)))
    return f"## Run `{run}`\n\n" + _table(("what", "value"), rows)


def gantt_markdown(run: str, svg: bytes) -> str:
    """Return a page with the chart; names the file in the store instead when the chart is too large."""
    text = f"## Gantt chart of run `{run}`\n\n"
    page = f"{text}![Gantt chart](data:image/svg+xml;base64,{base64.b64encode(svg).decode()})\n"
    if len(page) > MAX_ARTIFACT_BYTES:
        return f"{text}The chart ({_mib(len(svg))}) is too large here: open `runs/{run}/gantt.svg` in the store.\n"
    return page


def publish_run(app: str, run: str, facts: Mapping[str, Any], svg: bytes) -> None:
    """Create the artifacts ``APP-summary`` and ``APP-gantt`` of the current task run."""
    create_markdown_artifact(summary_markdown(run, facts), key=artifact_key(app, "summary"), description=f"Run {run}")
    create_markdown_artifact(gantt_markdown(run, svg), key=artifact_key(app, "gantt"), description=f"Run {run}")


def publish_calibration(app: str, facts: Mapping[str, Any]) -> None:
    """Create the artifact ``APP-calibration`` of the current task run."""
    rows = [
        ("outcome", facts["status"]),
        ("programs reached", facts["distinct_programs"]),
        ("evaluations", facts["evaluations"]),
        ("predicted makespan", _ms(facts["predicted_s"])),
        ("measured makespan", _ms(facts["measured_s"])),
    ]
    page = f"## Calibration of {app}\n\n{facts['text']}\n\n" + _table(("what", "value"), rows)
    create_markdown_artifact(page, key=artifact_key(app, "calibration"), description=facts["status"])


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> str:
    lines = [head, ("---", "---:"), *rows]
    return "".join(f"| {a} | {b} |\n" for a, b in lines)


def _ms(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.3f} ms"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB"
