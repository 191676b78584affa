"""Makespans of the planners on a folder of instances: against PEFT, StarPU's schedulers, the lower bound, the optimum.

    python benchmarks/planner.py FOLDER --time-budget 5 --seeds 3 --out build/planner

prints a line an instance and planner (medians over the seeds) and the geometric means a class of instances, and with
``--out`` stores them: ``runs.parquet`` (a row a run), ``planner.csv`` (medians) and ``planner.txt`` (what is printed).
FOLDER may be left out where the environment variable HETEROTASK_INSTANCES names it. ``--checker PROGRAM`` has every
plan judged by ``python PROGRAM INSTANCE PLAN``.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import InfeasiblePlanError, InstanceError, MissingExtraError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.instance import instance_to_problem, read_instance
from heterotask_core.planning.plan_file import write_plan
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import PLANNERS, planner

RUNS = {
    "instance": pl.String, "kind": pl.String, "tasks": pl.Int64, "devices": pl.Int64, "planner": pl.String,
    "seed": pl.Int64, "makespan_s": pl.Float64, "bound_s": pl.Float64, "evaluations": pl.Int64,
    "planning_s": pl.Float64, "moved_bytes": pl.Float64, "fault": pl.String,
}  # fmt: skip
"""A row a run; ``fault`` says why there is no makespan, or what the checker found."""

RATIOS = ("peft", "starpu", "dmdas", "bound", "optimum", "unlimited")
"""Columns ``/ NAME``: makespan over PEFT's, over the best of StarPU's ``nocost`` schedulers, over its ``dmdas``, over
the lower bound, over the proven optimum, and over the same planner's makespan without the memory limit."""


def kind_of(name: str) -> str:
    """Return the class of an instance, by its name."""
    family = name.split("-")[0]
    limit = re.search(r"-(mem\d+)$", name)
    size = re.search(r"-nb(\d+)", name)
    if limit:
        return f"{family} {limit[1]}"
    if size:
        nb = int(size[1])
        return f"{family} nb<=10" if nb <= 10 else f"{family} nb>=30" if nb >= 30 else f"{family} nb={nb}"
    return "paper" if name.endswith("-paper") else family


def references(problem: Problem) -> dict[str, float]:
    """Return what the file itself says: StarPU's best without overheads, its ``dmdas``, the proven optimum."""
    found: dict[str, float] = {}
    starpu = problem.meta.get("starpu_makespan_s", {})
    nocost = starpu.get("nocost", {})
    if nocost:
        found["starpu"] = min(nocost.values())
    dmdas = nocost.get("dmdas", starpu.get("default", {}).get("dmdas"))
    if dmdas is not None:
        found["dmdas"] = dmdas
    for key in ("cpsat", "optimal"):
        solved = problem.meta.get(key, {})
        if solved.get("status") == "OPTIMAL":
            found["optimum"] = solved["makespan"]
    return found


def run(path: Path, problem: Problem, name: str, budget: Budget, checker: Path | None) -> dict[str, Any]:
    """Plan once and return the row of the run."""
    row: dict[str, Any] = dict.fromkeys(RUNS)
    instance = path.name.removesuffix(".gz").removesuffix(".json")
    row.update(instance=instance, kind=kind_of(instance), tasks=problem.n_tasks, devices=problem.n_devices)
    row.update(planner=name, seed=budget.seed, fault="")
    began = time.perf_counter()
    try:
        schedule = planner(name).plan(problem, budget=budget)
    except (InfeasiblePlanError, MissingExtraError) as error:
        return row | {"planning_s": time.perf_counter() - began, "fault": str(error)}
    row.update(
        planning_s=time.perf_counter() - began,
        makespan_s=schedule.makespan_s,
        bound_s=schedule.lower_bound_s,
        evaluations=schedule.evaluations,
        moved_bytes=schedule.moved_bytes(problem),
    )
    if checker is not None:
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            write_plan(plan, problem, schedule)
            judged = subprocess.run([sys.executable, checker, path, plan], capture_output=True, text=True)
        if judged.returncode:
            row["fault"] = (judged.stdout + judged.stderr).strip().splitlines()[0]
    return row


def medians(runs: pl.DataFrame, known: dict[str, dict[str, float]]) -> pl.DataFrame:
    """Return medians over the seeds an instance and planner, with the ratios; ``known``: :func:`references` by name."""
    table = runs.group_by("instance", "planner", maintain_order=True).agg(
        pl.first("kind", "tasks", "devices"),
        pl.median("makespan_s", "planning_s", "moved_bytes"),
        pl.max("bound_s"),
        pl.col("evaluations").median().cast(pl.Int64),
        pl.col("fault").filter(pl.col("fault") != "").first().fill_null(""),
    )
    makespan = {(r["instance"], r["planner"]): r["makespan_s"] for r in table.iter_rows(named=True)}
    bound = {r["instance"]: r["bound"] for r in table.group_by("instance").agg(bound=pl.max("bound_s")).to_dicts()}
    rows = []
    for row in table.to_dicts():
        name, by = row["instance"], row["planner"]
        against: dict[str, float | None] = {**known[name]}
        against["peft"] = makespan.get((name, "peft"))
        against["bound"] = bound[name] or None
        base = re.sub(r"-mem\d+$", "", name)
        if base != name:
            against["unlimited"] = makespan.get((base, by))
        for key in RATIOS:
            reference = against.get(key)
            row[f"/ {key}"] = row["makespan_s"] / reference if row["makespan_s"] and reference else None
        rows.append(row)
    schema = {f"/ {key}": pl.Float64 for key in RATIOS}
    return pl.DataFrame(rows, schema={**table.schema, **schema})


def by_kind(table: pl.DataFrame) -> pl.DataFrame:
    """Return geometric means and the worst of every ratio a class and planner."""
    return table.group_by("kind", "planner", maintain_order=True).agg(
        pl.len().alias("instances"),
        *(pl.col(f"/ {key}").log().mean().exp() for key in RATIOS),
        *(pl.col(f"/ {key}").max().alias(f"max / {key}") for key in RATIOS),
        pl.median("planning_s"),
        pl.sum("moved_bytes"),
        (pl.col("fault") != "").sum().alias("faults"),
    )


def lines(table: pl.DataFrame, kinds: pl.DataFrame) -> Iterable[str]:
    """Yield the text report."""
    head = f"{'instance':48} {'planner':18} {'makespan_s':>12}" + "".join(f"{'/' + k:>10}" for k in RATIOS)
    yield f"{head} {'evals':>8} {'planning_s':>10} {'moved_MB':>10}  fault"
    for r in table.sort("kind", "instance", maintain_order=True).iter_rows(named=True):
        yield (
            f"{r['instance']:48} {r['planner']:18} {_figure(r['makespan_s'], '12.6g')}"
            + "".join(_figure(r[f"/ {k}"], "10.3f") for k in RATIOS)
            + f" {_figure(r['evaluations'], '8d')} {_figure(r['planning_s'], '10.3f')}"
            + f" {_figure(None if r['moved_bytes'] is None else r['moved_bytes'] / 1e6, '10.4g')}  {r['fault']}"
        )
    yield ""
    yield "geometric means (worst)"
    yield f"{'class':18} {'planner':18} {'n':>3}" + "".join(f"{'/' + k:>16}" for k in RATIOS) + "  planning_s  faults"
    for r in kinds.sort("kind", maintain_order=True).iter_rows(named=True):
        yield (
            f"{r['kind']:18} {r['planner']:18} {r['instances']:3}"
            + "".join(
                _figure(r[f"/ {k}"], "8.3f")
                + (f" {'(' + format(r[f'max / {k}'], '.3f') + ')':>7}" if r[f"/ {k}"] else " " * 8)
                for k in RATIOS
            )
            + f" {_figure(r['planning_s'], '11.3f')} {r['faults']:7}"
        )


def _figure(value: float | None, form: str) -> str:
    return f"{'-':>{int(re.match(r'[0-9]+', form)[0])}}" if value is None else format(value, form)  # type: ignore[index]


def warm_up(names: Iterable[str]) -> None:
    """Compile what the planners share, so that it is in no planning time."""
    document = {
        "format": "heterotask-instance/1",
        "name": "warm-up",
        "memories": [{"name": "a", "node": "n"}, {"name": "b", "node": "n", "capacity_bytes": 99}],
        "devices": [{"name": m, "kind": "cpu", "memory": m} for m in "ab"],
        "links": [{"from": x, "to": y, "bandwidth_bytes_per_s": 1.0} for x, y in ("ab", "ba")],
        "kernels": {"k": {"seconds": {"cpu": 1.0}}},
        "data": [{"name": f"d{i}", "size_bytes": 9} for i in range(6)],
        "tasks": [
            {"name": f"t{i}", "kernel": "k", "reads": [f"d{i - 2}"] if i > 1 else [], "writes": [f"d{i}"]}
            for i in range(6)
        ],
    }
    for contention in (True, False):
        problem = instance_to_problem(document | {"contention": contention})
        for name in names:
            try:
                planner(name).plan(problem, budget=Budget(evaluations=20))
            except MissingExtraError:
                continue


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("HETEROTASK_INSTANCES"))
    parser.add_argument("--planners", default=",".join(PLANNERS), help="comma-separated names")
    parser.add_argument("--time-budget", type=float, help="seconds a plan")
    parser.add_argument("--evaluations", type=int, help="search budget a plan (default 200 without --time-budget)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--match", default="*.json*", help="which files of the folder")
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--checker", type=Path, help="program that judges a plan")
    options = parser.parse_args()
    if options.folder is None:
        parser.error("name a folder of instances, or set HETEROTASK_INSTANCES")
    if options.evaluations is None and options.time_budget is None:
        options.evaluations = 200
    names = [n for n in options.planners.split(",") if n]
    warm_up(names)
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, float]] = {}
    for path in sorted(Path(options.folder).glob(options.match)):
        try:
            problem = read_instance(path)
        except InstanceError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for name in names:
            budgets = [Budget(options.evaluations, options.time_budget, seed) for seed in range(options.seeds)]
            done = [run(path, problem, name, budget, options.checker) for budget in budgets]
            known[done[0]["instance"]] = references(problem)
            rows += done
            spans = [r["makespan_s"] for r in done if r["makespan_s"] is not None]
            shown = f"{statistics.median(spans):.6g} s" if spans else done[0]["fault"]
            print(f"{path.name} {name}: {shown}", file=sys.stderr, flush=True)
    runs = pl.DataFrame(rows, schema=RUNS)
    table = medians(runs, known)
    text = "\n".join(lines(table, by_kind(table)))
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        runs.write_parquet(options.out / "runs.parquet")
        table.write_csv(options.out / "planner.csv")
        (options.out / "planner.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
