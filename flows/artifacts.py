"""What a run page shows of a run: summary, Gantt chart, timings, history; of a calibration: outcome, curve, drift.

A chart is an SVG as base64 data URI inside a markdown artifact: Prefect's pages strip raw ``<svg>``, and an
image artifact takes only an address. Keys are the same for every run of an application, so that the artifact page
shows versions.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.charts import MAX_ROWS, curve_svg, data_uri, measured_medians, timing_rows
from flows.history import run_history
from heterotask_core.store import Store

MAX_ARTIFACT_BYTES = 1_000_000
"""Pages of Prefect become slow with larger ones."""


def artifact_key(app: str, what: str) -> str:
    """Return a key of lower case letters, digits and dashes, the same for every run of an application."""
    return re.sub(r"[^a-z0-9]+", "-", f"{app} {what}".lower()).strip("-")


def summary_markdown(run: str, facts: Mapping[str, Any], *, incumbent_ms: float | None = None) -> str:
    """Return the facts of a run (as in its ``summary.json``) as markdown tables.

    ``incumbent_ms``: makespan of the plan that was in use before, if this is another.
    """
    origin, measured_s = facts.get("origin", "measured"), median(facts["makespan_s"])
    rows = [
        ("planner", facts["planner"]),
        ("predicted makespan", _ms(facts["predicted_makespan_s"])),
        (f"{origin} makespan (median)", _ms(measured_s)),
        ("application completion", _ms(facts["completion_s"])),
        ("lower bound", _ms(facts["lower_bound_s"])),
        ("repeats", len(facts["makespan_s"])),
    ]
    if incumbent_ms:
        rows.append(("shorter than the plan before", f"{100 * (1 - 1e3 * measured_s / incumbent_ms):+.1f} %"))
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
    page = f"{text}![Gantt chart]({data_uri(svg)})\n"
    if len(page) > MAX_ARTIFACT_BYTES:
        return f"{text}The chart ({_mib(len(svg))}) is too large here: open `runs/{run}/gantt.svg` in the store.\n"
    return page


def files_markdown(folder: Path) -> str:
    """Return links to the files of a run on the host that holds the store.

    Browsers do not open ``file:`` links of a page from elsewhere, so the paths are there to be copied too.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    lines = [f"- [{path.name}]({path.absolute().as_uri()}): `{path.absolute()}`\n" for path in files]
    return "\n## Files\n\n" + "".join(lines)


def publish_run(app: str, store: Store, run: str, facts: Mapping[str, Any], trace: pl.DataFrame) -> None:
    """Create the artifacts ``APP-summary``, ``-gantt``, ``-timings``, ``-history`` and ``-files`` of the task run.

    ``run`` names a record of ``store``; ``trace`` has the schema ``tables.TRACE``.
    """
    folder, text = store.folder("runs", run), f"Run {run}"
    rows = run_history(store, app_name(store, run))
    page = summary_markdown(run, facts, incumbent_ms=_plan_before(rows)) + files_markdown(folder)
    create_markdown_artifact(page, key=artifact_key(app, "summary"), description=text)
    chart = gantt_markdown(run, (folder / "gantt.svg").read_bytes())
    create_markdown_artifact(chart, key=artifact_key(app, "gantt"), description=text)
    timings = timing_rows(trace)
    worst = f"{text}: the {len(timings)} of {trace['op'].n_unique()} ops that deviate most from the plan"
    create_table_artifact(timings, key=artifact_key(app, "timings"), description=worst)
    told = f"Makespans of {app}, the latest {MAX_ROWS} runs at most; in_use marks the plan that ran last"
    create_table_artifact(rows[-MAX_ROWS:][::-1], key=artifact_key(app, "history"), description=told)
    create_link_artifact(folder.absolute().as_uri(), key=artifact_key(app, "files"), link_text=text, description=text)


def app_name(store: Store, run: str) -> str:
    """Return the application's own name, which a run's manifest holds; ``package.module:attribute`` is another."""
    return str(store.manifest("runs", run)["facts"]["application"])


def _plan_before(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the makespan (ms, median of its runs) of the plan used before that of the last row, if another was."""
    last = rows[-1]
    others = [r for r in rows if r["workflow"] == last["workflow"] and r["measured_ms"] and r["plan"] != last["plan"]]
    same = [r["measured_ms"] for r in others if r["plan"] == others[-1]["plan"]]
    return median(same) if same else None


def publish_calibration(app: str, record: Path, facts: Mapping[str, Any]) -> None:
    """Create the artifact ``APP-calibration``: outcome, and the curve of what was measured.

    ``record``: folder of the calibration in the store.
    """
    rows = [
        ("outcome", facts["status"]),
        ("programs reached", facts["distinct_programs"]),
        ("evaluations", facts["evaluations"]),
        ("predicted makespan", _ms(facts["predicted_s"])),
        ("measured makespan", _ms(facts["measured_s"])),
    ]
    page = f"## Calibration of {app}\n\n{facts['text']}\n\n" + _table(("what", "value"), rows)
    measured = [value for _, value in measured_medians(record / "journal" / "journal.jsonl")]
    if measured:
        svg = curve_svg(measured, title=f"Calibration of {app}: makespans").encode()
        page += f"\n![Calibration curve]({data_uri(svg)})\n"
    create_markdown_artifact(page, key=artifact_key(app, "calibration"), description=facts["status"])


def publish_drift(app: str, text: str) -> None:
    """Create the artifact ``APP-drift``."""
    create_markdown_artifact(f"## Drift of {app}\n\n{text}\n", key=artifact_key(app, "drift"), description=text)


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> str:
    lines = [head, ("---", "---:"), *rows]
    return "".join(f"| {a} | {b} |\n" for a, b in lines)


def _ms(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.3f} ms"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB"
