"""Artifacts: keys that Prefect takes, summaries a person reads, charts that stay small enough."""

import base64
import json
import math
from xml.etree import ElementTree

import polars as pl
import pytest
from made_chart import chart_page

from flows.artifacts import MAX_ARTIFACT_BYTES, _plan_before, artifact_key, gantt_markdown, summary_markdown
from flows.charts import MAX_ROWS, curve_svg, measured_medians, timing_rows
from flows.progress import progress_update
from heterotask_core.tables import TRACE

FACTS = {
    "planner": "peft",
    "predicted_makespan_s": 0.001,
    "makespan_s": [0.002, 0.004, 0.003],
    "completion_s": 0.5,
    "lower_bound_s": 0.0005,
    "utilisation": {"n0.cpu0": 0.25},
    "link_bytes": {"n0 → n1": 1048576},
    "arena_planned_bytes": {"n0": 2097152},
    "arena_peak_bytes": {"n0": 1048576},
}


def test_keys_are_lower_case_letters_digits_and_dashes():
    assert artifact_key("my_package.apps:Tiny", "summary") == "my-package-apps-tiny-summary"


def test_the_summary_is_one_table():
    assert summary_markdown("r1", FACTS).splitlines() == [
        "## Run `r1`",
        "",
        "| what | value |",
        "| --- | ---: |",
        "| planner | peft |",
        "| predicted makespan | 1.000 ms |",
        "| measured makespan (median) | 3.000 ms |",
        "| application completion | 500.000 ms |",
        "| lower bound | 0.500 ms |",
        "| repeats | 3 |",
        "| utilisation of n0.cpu0 | 25.0 % |",
        "| moved n0 → n1 | 1.00 MiB |",
        "| memory n0, planned | 2.00 MiB |",
        "| memory n0, peak | 1.00 MiB |",
    ]


def test_a_new_plan_is_compared_with_the_one_before():
    def row(plan, measured_ms, workflow="w"):
        return {"workflow": workflow, "plan": plan, "measured_ms": measured_ms}

    older = [row("a", 9.0), row("b", 4.0), row("b", 6.0), row("b", 5.0), row("x", 1.0, "other"), row("c", None)]
    assert _plan_before([*older, row("c", 3.0)]) == 5.0
    assert _plan_before([row("c", 2.0), row("c", 3.0)]) is None
    assert "| shorter than the plan before | +40.0 % |" in summary_markdown("r1", FACTS, incumbent_ms=5.0).splitlines()


def test_a_chart_is_a_data_uri():
    page = gantt_markdown("r1", b"<svg/>")
    encoded = page.partition("base64,")[2].rstrip(")\n")
    assert base64.b64decode(encoded) == b"<svg/>"


def test_a_chart_that_is_too_large_is_named_instead():
    page = gantt_markdown("r1", b"x" * MAX_ARTIFACT_BYTES)
    assert "`runs/r1/gantt.svg`" in page
    assert len(page) < 300


def _trace(rows):
    """A trace of kernels (op, repeat, planned seconds, taken seconds)."""
    blank = dict.fromkeys(TRACE)
    return pl.DataFrame(
        [
            blank
            | {"op": op, "repeat": repeat, "kind": "kernel", "task": f"t{op}", "kernel": "k", "device": "n0.cpu0"}
            | {"planned_start_s": 0.0, "planned_finish_s": planned_s, "start_s": 1.0, "finish_s": 1.0 + taken_s}
            for op, repeat, planned_s, taken_s in rows
        ],
        schema=TRACE,
    )


def test_timings_are_the_worst_first_as_medians_of_the_repeats():
    rows = timing_rows(_trace([(0, 0, 0.001, 0.002), (0, 1, 0.001, 0.004), (0, 2, 0.001, 0.003), (1, 0, 0.002, 0.008)]))
    assert [(r["what"], r["planned_ms"], r["measured_ms"], r["beyond_ms"], r["ratio"]) for r in rows] == [
        ("t1", 2.0, 8.0, 6.0, 4.0),
        ("t0", 1.0, 3.0, 2.0, 3.0),
    ]


def test_timings_that_a_page_cannot_show_are_left_empty():
    rows = timing_rows(_trace([(0, 0, 0.0, 0.001), (1, 0, 0.001, math.inf), (2, 0, 0.001, math.nan)]))
    assert {r["what"]: (r["measured_ms"], r["ratio"]) for r in rows} == {
        "t0": (1.0, None),
        "t1": (None, None),
        "t2": (None, None),
    }
    assert "Infinity" not in json.dumps(rows)


def test_timings_are_bounded_and_keep_the_worst():
    rows = timing_rows(_trace([(i, 0, 0.001, 0.001 * (i + 1)) for i in range(2 * MAX_ROWS)]))
    assert [r["what"] for r in rows] == [f"t{i}" for i in range(2 * MAX_ROWS - 1, MAX_ROWS - 1, -1)]


def test_a_calibration_curve_shows_every_measurement_and_the_best_so_far(tmp_path):
    journal = tmp_path / "journal.jsonl"
    steps = [
        {"format": "x"},
        {"step": "plan", "key": "a", "program": "p", "predicted_s": 1.0},
        {"step": "run", "key": "p", "makespans_s": [0.3, 0.1, 0.2]},
        {"step": "run", "key": "q", "failure": "no"},
        {"step": "run", "key": "r", "makespans_s": [0.4]},
    ]
    journal.write_text("".join(json.dumps(s) + "\n" for s in steps))
    assert measured_medians(journal) == [("p", 0.2), ("r", 0.4)]
    assert measured_medians(tmp_path / "none.jsonl") == []
    svg = ElementTree.fromstring(curve_svg([0.2, 0.4, 0.1], title="a < b"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}circle")) == 3
    heights = [float(p.split(",")[1]) for p in svg.find(f"{space}polyline").get("points").split()]
    assert heights[0] == heights[1] < heights[2]


def test_one_measurement_has_a_curve_too():
    ElementTree.fromstring(curve_svg([0.2], title="one"))


@pytest.mark.parametrize(
    ("done", "total", "data", "begins"),
    [
        (0, 10, 0.0, "0 of 10 ops"),
        (2500, 10000, 25.0, "2,500 of 10,000 ops, expected end "),
        (10, 10, 100.0, "10 of 10 ops"),
        (0, 0, 100.0, "0 of 0 ops"),
    ],
)
def test_progress_says_how_far_and_until_when(done, total, data, begins):
    update = progress_update(done, total, 3.0, what="ops")
    assert update.data == data
    assert update.description.startswith(begins)
    assert ("expected end" in update.description) == (0 < done < total)


@pytest.mark.parametrize("n_ops", [100, 100_000])
def test_a_chart_of_any_size_fits_into_a_page(n_ops):
    page = chart_page(n_ops)
    svg = ElementTree.fromstring(base64.b64decode(page.partition("base64,")[2].rstrip(")\n")))
    assert any(f"{n_ops:,} tasks" in (node.text or "") for node in svg.iter())
    # A row a device, whatever is in it.
    assert {f"n0.cpu{i}" for i in range(16)} <= {node.text for node in svg.iter()}
    assert len(page) < MAX_ARTIFACT_BYTES
