"""Makespans of the planners on a folder of instances: against PEFT, StarPU's schedulers, lower bounds, the optimum.

    python benchmarks/planner.py FOLDER --time-budget 5 --seeds 3 --out build/planner

prints a line an instance and planner (medians over the seeds), the geometric means a class of instances, the lower
bounds, planning time against size, and whether the figures are reached; with ``--out`` it stores them: ``runs.parquet``
(a row a run), ``planner.csv`` (medians), ``bounds.csv`` and ``planner.txt`` (what is printed). FOLDER may be left out
where the environment variable HETEROTASK_INSTANCES names it. One process, one plan at a time.

``--classes random,pipeline`` takes only classes that begin so. Classes of ``nb>=30`` have ``--long-budget`` seconds.
Planners that are deterministic are run once. The portfolio does not use CP-SAT unless ``--cpsat`` is given. Pipelines
are also planned on their CPUs and on their GPUs alone (``portfolio on cpus``, ``portfolio on gpus``). Files whose tasks
do not stand in program order (workflow traces) are sorted first. ``--checker PROGRAM`` has every plan judged by
``python PROGRAM INSTANCE PLAN``. ``--whatif`` prints instead what limits each instance: by how much free transfers,
infinite memory, twice the devices and links without latency would shorten the portfolio's plan.

``--tiles 30,40`` plans, instead of the files, Cholesky factorisations of so many tiles a side on each platform for
which the folder has a smaller one, with its costs. No file says what StarPU makes of them: in its place stand the
makespans of ``dmda``, ``dmdar``, ``dmdas`` as simulated here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from arguments import (
    Parser,
    among,
    file_to_read,
    folder_to_read,
    folder_to_write,
    listed,
    number,
    run_program,
    whole,
)
from planner_tiles import cholesky, is_cholesky

from heterotask_core.errors import InfeasiblePlanError, InstanceError, MissingExtraError
from heterotask_core.planning.base import Budget, Planner
from heterotask_core.planning.bounds import bounds
from heterotask_core.planning.instance import instance_to_problem
from heterotask_core.planning.instance_export import sort_tasks
from heterotask_core.planning.json_file import load_json
from heterotask_core.planning.plan_file import write_plan
from heterotask_core.planning.policies.planner import simulate_policy
from heterotask_core.planning.portfolio import PORTFOLIO, PortfolioPlanner
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.planning.restricted import restrict
from heterotask_core.planning.whatif import CHANGES, gains

RUNS = {
    "instance": pl.String, "kind": pl.String, "tasks": pl.Int64, "devices": pl.Int64, "planner": pl.String,
    "seed": pl.Int64, "makespan_s": pl.Float64, "bound_s": pl.Float64, "evaluations": pl.Int64,
    "planning_s": pl.Float64, "moved_bytes": pl.Float64, "fault": pl.String,
}  # fmt: skip
"""A row a run; ``fault`` says why there is no makespan, or what the checker found."""

RATIOS = ("peft", "list", "starpu", "dmdas", "area", "bound", "optimum", "unlimited")
"""Columns ``/ NAME``: makespan over PEFT's, over the best list schedule, over the best of StarPU's ``nocost``
schedulers, over its ``dmdas``, over the larger of critical path and area bound, over the best lower bound, over the
proven optimum, and over the same planner's makespan without the memory limit."""
LISTS = ("peft", "heft", "cpop", "lookahead", "peft-link", "peft-area", "peft-data", "heft-oct", "restricted")
"""List schedulers."""
SEEDED = ("portfolio", "cpsat")
"""Planners that look at budget and seed, by the beginning of their names."""
SIMULATED = ("dmda", "dmdar", "dmdas")
"""Policies that stand for StarPU where a file does not say what it makes of an instance."""
BOUNDS = ("critical path", "area", "mixed", "phases", "combined")
BOUND_S = 10.0
"""Seconds for the combined bound of an instance."""
FIGURES = (
    ("random", "peft", 0.80, 0.95),
    ("small", "optimum", 1.02, None),
    ("starpu nb<=10", "starpu", 0.75, None),
    ("starpu nb=20", "starpu", 0.93, 1.00),
    ("starpu nb>=30", "starpu", 0.97, 1.02),
    ("wf", "area", 1.02, None),
    ("pipeline", "list", 1.00, None),
    ("starpu mem25", "unlimited", 1.30, 1.30),
)
"""What the portfolio is to reach: class, ratio, largest geometric mean, largest of all."""


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


def told(problem: Problem, *keys: str) -> dict[str, Any]:
    """Return the object at these keys of a file's ``meta``, which may hold anything; empty without one."""
    found: Any = problem.meta
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def makespans_s(problem: Problem, how: str) -> dict[str, float]:
    """Return StarPU's makespans in seconds by scheduler as the file says them; ``how``: ``nocost``, ``default`` …"""
    return {name: s for name, s in told(problem, "starpu_makespan_s", how).items() if _is_time(s)}


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def references(problem: Problem) -> dict[str, float]:
    """Return what the file itself says: StarPU's best without overheads, its ``dmdas``, the proven optimum."""
    found: dict[str, float] = {}
    nocost = makespans_s(problem, "nocost")
    if nocost:
        found["starpu"] = min(nocost.values())
    dmdas = nocost.get("dmdas", makespans_s(problem, "default").get("dmdas"))
    if dmdas is not None:
        found["dmdas"] = dmdas
    for key in ("cpsat", "optimal"):
        solved = told(problem, key)
        if solved.get("status") == "OPTIMAL" and _is_time(solved.get("makespan")):
            found["optimum"] = solved["makespan"]
    return found


def read_sorted(path: Path) -> tuple[Problem, dict[str, Any] | None]:
    """Return the problem of a file, and the sorted document where its tasks are not in program order."""
    document = load_json(path)
    try:
        return instance_to_problem(document), None
    except InstanceError as fault:
        if "stand in program order" not in str(fault):
            raise InstanceError(f"{path}: {fault}") from None
    ordered = sort_tasks(document)
    return _problem(path, ordered), ordered


def _problem(path: Path, document: Any) -> Problem:
    try:
        return instance_to_problem(document)
    except InstanceError as fault:
        raise InstanceError(f"{path}: {fault}") from None


def files(folder: Path, match: str, wanted: Sequence[str] = ()) -> list[Path]:
    """Return the folder's files that are named like these, of these classes; :class:`InstanceError` without any."""
    try:
        named = sorted(path for path in folder.glob(match) if path.is_file())
    except (ValueError, NotImplementedError):
        raise InstanceError(f"{match!r} is no pattern of file names; write one such as 'random-*.json*'") from None
    if not named:
        raise InstanceError(f"{folder} has no file {match}; name another folder, or other files")
    kinds = {path: kind_of(path.name.removesuffix(".gz").removesuffix(".json")) for path in named}
    for begin in wanted:
        if not any(kind.startswith(begin) for kind in kinds.values()):
            there = ", ".join(sorted(set(kinds.values())))
            raise InstanceError(f"{folder} has no class that begins with {begin!r}; there are {there}")
    return [path for path, kind in kinds.items() if not wanted or kind.startswith(tuple(wanted))]


class Entry(NamedTuple):
    """An instance of the benchmark."""

    path: Path | None
    """The file as the checker reads it, None where ``document`` has to be written to one first."""
    document: Any
    problem: Problem
    known: dict[str, float]
    """:func:`references`"""


def entries(paths: Sequence[Path]) -> Iterator[Entry]:
    """Yield the instances of files; what cannot be read is told and left out, :class:`InstanceError` if all are."""
    left_out = 0
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".json")
        try:
            problem, ordered = read_sorted(path)
        except InstanceError as error:
            print(f"left out: {error}", file=sys.stderr)
            left_out += 1
            continue
        yield Entry(path if ordered is None else None, ordered, replace(problem, name=name), references(problem))
    if left_out == len(paths):
        raise InstanceError("no file holds an instance; name others with --match")


def larger(paths: Sequence[Path], tiles: Iterable[int]) -> Iterator[Entry]:
    """Yield factorisations of so many tiles for every platform of the files, compared with simulated policies.

    What cannot be read is told and left out; :class:`InstanceError` where no file has a factorisation.
    """
    done = set()
    for path in paths:
        try:
            document = load_json(path)
            name = _problem(path, document).name
        except InstanceError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        family = name.partition("-nb")[0]
        # One without a limit to its memory: a larger matrix would not fit into it.
        if family in done or "-mem" in name or not is_cholesky(document):
            continue
        done.add(family)
        for n in tiles:
            larger_one = cholesky(document, n, name=f"{family}-nb{n}")
            problem = instance_to_problem(larger_one)
            known = {name: simulate_policy(problem, name).makespan_s for name in SIMULATED}
            best = {"starpu": min(known.values()), "dmdas": known["dmdas"]}
            yield Entry(None, larger_one, problem, best)
    if not done:
        raise InstanceError(
            "no file holds a Cholesky factorisation without memory limit, from which --tiles makes others"
        )


def entrants(
    names: Iterable[str], problem: Problem, kind: str, *, cpsat: bool
) -> Iterator[tuple[str, Planner, Problem]]:
    """Yield (name, planner, what it plans): the planners of that name, and the portfolio on CPUs and on GPUs alone."""
    portfolio = PORTFOLIO if cpsat else PortfolioPlanner(exact=False)
    for name in names:
        if name == "cpsat" and not cpsat:
            continue
        yield name, portfolio if name == "portfolio" else planner(name), problem
    if kind == "pipeline" and "portfolio" in names:
        gpu = np.array([k in ("cuda", "gpu", "opencl") for k in problem.device_kinds])
        yield "portfolio on cpus", portfolio, restrict(problem, ~gpu)
        yield "portfolio on gpus", portfolio, restrict(problem, gpu)


def run(path: Path, problem: Problem, name: str, by: Planner, budget: Budget, checker: Path | None) -> dict[str, Any]:
    """Plan once and return the row of the run; ``path``: the file that the checker reads."""
    row: dict[str, Any] = dict.fromkeys(RUNS)
    row.update(instance=problem.name, kind=kind_of(problem.name), tasks=problem.n_tasks, devices=problem.n_devices)
    row.update(planner=name, seed=budget.seed, fault="")
    began = time.perf_counter()
    try:
        schedule = by.plan(problem, budget=budget)
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
            said = (judged.stdout + judged.stderr).strip().splitlines()
            row["fault"] = said[0] if said else f"the checker ended with exit code {judged.returncode}"
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
    # What is planned on some devices only has another bound.
    whole = table.filter(~pl.col("planner").str.contains(" on "))
    bound = {r["instance"]: r["bound"] for r in whole.group_by("instance").agg(bound=pl.max("bound_s")).to_dicts()}
    rows = []
    for row in table.to_dicts():
        name, by = row["instance"], row["planner"]
        against: dict[str, float | None] = {**known[name]}
        against["peft"] = makespan.get((name, "peft"))
        listed = [makespan[name, x] for x in LISTS if makespan.get((name, x)) is not None]
        against["list"] = min(listed, default=None)
        against["bound"] = max(bound.get(name) or 0.0, against.get("bound") or 0.0) or None
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
    yield f"{'class':18} {'planner':18} {'n':>3}" + "".join(f"{'/' + k:>17}" for k in RATIOS) + "  planning_s  faults"
    for r in kinds.sort("kind", maintain_order=True).iter_rows(named=True):
        yield (
            f"{r['kind']:18} {r['planner']:18} {r['instances']:3}"
            + "".join(
                _figure(r[f"/ {k}"], "8.3f")
                + (f" {'(' + format(r[f'max / {k}'], '.3f') + ')':>8}" if r[f"/ {k}"] else " " * 9)
                for k in RATIOS
            )
            + f" {_figure(r['planning_s'], '11.3f')} {r['faults']:7}"
        )


def reached(kinds: pl.DataFrame) -> Iterable[str]:
    """Yield the portfolio's class means against the figures that it is to reach."""
    yield "figures"
    found = {(r["kind"], r["planner"]): r for r in kinds.to_dicts()}
    for kind, ratio, mean, worst in FIGURES:
        row = found.get((kind, "portfolio"))
        if row is None or row[f"/ {ratio}"] is None:
            continue
        is_mean, is_worst = row[f"/ {ratio}"], row[f"max / {ratio}"]
        holds = is_mean <= mean and (worst is None or is_worst <= worst)
        limit = f"{mean:.2f}" + ("" if worst is None else f", none above {worst:.2f}")
        yield f"{kind:18} / {ratio:10} {is_mean:.3f} (worst {is_worst:.3f}) of {limit}: {'yes' if holds else 'no'}"


def by_size(table: pl.DataFrame) -> Iterable[str]:
    """Yield planning time against size, a line an instance, for the planners that take no budget."""
    names = [n for n in table["planner"].unique(maintain_order=True) if not n.startswith(SEEDED)]
    yield "planning time in ms by size"
    yield f"{'tasks':>6} {'devices':>7} {'instance':48}" + "".join(f"{n:>12}" for n in names)
    took = {(r["instance"], r["planner"]): r["planning_s"] for r in table.iter_rows(named=True)}
    for r in (
        table.group_by("instance").agg(pl.first("tasks", "devices")).sort("tasks", "devices", "instance").to_dicts()
    ):
        times = [took.get((r["instance"], n)) for n in names]
        yield f"{r['tasks']:6} {r['devices']:7} {r['instance']:48}" + "".join(
            _figure(None if t is None else 1e3 * t, "12.1f") for t in times
        )


def bound_lines(found: pl.DataFrame) -> Iterable[str]:
    """Yield the lower bounds, a line an instance."""
    names = [c for c in found.columns if c != "instance"]
    yield "lower bounds in seconds"
    yield f"{'instance':48}" + "".join(f"{n:>15}" for n in names)
    for r in found.iter_rows(named=True):
        yield f"{r['instance']:48}" + "".join(_figure(r[n], "15.6g") for n in names)


def limits(problem: Problem, budget: Budget) -> str:
    """Return the line that says by what share each change of the problem would shorten the portfolio's plan."""
    by = PortfolioPlanner(exact=False)
    try:
        schedule = by.plan(problem, budget=budget)
    except InfeasiblePlanError as error:
        return f"{problem.name:48} {error}"
    gained = {g.what: g.gain for g in gains(problem, schedule, by, budget)}
    shares = "".join(_figure(100 * gained[what] if what in gained else None, "20.1f") for what in CHANGES)
    return f"{problem.name:48} {schedule.makespan_s:12.6g} {schedule.lower_bound_s:12.6g}{shares}"


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


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("HETEROTASK_INSTANCES") or None
    parser.add_argument("folder", type=folder_to_read, nargs="?", default=default)
    parser.add_argument("--planners", type=listed(among(PLANNERS)), help="comma-separated names (default: all)")
    parser.add_argument("--time-budget", type=number(), help="seconds a plan")
    parser.add_argument("--long-budget", type=number(), help="seconds a plan of nb>=30 (default 6 × --time-budget)")
    parser.add_argument("--evaluations", type=whole(0), help="search budget a plan (default 200 without --time-budget)")
    parser.add_argument("--seeds", type=whole(), default=3)
    parser.add_argument("--match", default="*.json*", help="which files of the folder")
    parser.add_argument(
        "--classes",
        type=listed(str),
        default=[],
        help="comma-separated beginnings of classes, e.g. random,starpu nb=20",
    )
    parser.add_argument(
        "--tiles", type=listed(whole()), help="comma-separated sizes of factorisations, instead of the files"
    )
    parser.add_argument("--cpsat", action="store_true", help="use CP-SAT, alone and in the portfolio")
    parser.add_argument("--whatif", action="store_true", help="print what limits each instance, and nothing else")
    parser.add_argument("--out", type=folder_to_write, help="folder for the tables")
    parser.add_argument("--checker", type=file_to_read, help="program that judges a plan")
    options = parser.parse_args()
    if options.folder is None:
        parser.error("name a folder of instances, or set HETEROTASK_INSTANCES")
    if options.planners == ["cpsat"] and not options.cpsat:
        parser.error("--planners cpsat leaves nothing without --cpsat")
    if options.evaluations is None and options.time_budget is None:
        options.evaluations = 200
    return options


def main() -> None:
    """Run the benchmark."""
    options = arguments()
    paths = files(options.folder, options.match, options.classes)
    names = options.planners or PLANNERS
    warm_up(names)
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, float]] = {}
    bound_rows: list[dict[str, Any]] = []
    if options.whatif:
        head = "".join(f"{what + ' %':>20}" for what in CHANGES)
        print(f"{'instance':48} {'makespan_s':>12} {'bound_s':>12}{head}")
    for entry in larger(paths, options.tiles) if options.tiles else entries(paths):
        problem, name = entry.problem, entry.problem.name
        kind = kind_of(name)
        time_s = options.time_budget
        if time_s is not None and "nb>=30" in kind:
            time_s = options.long_budget or 6 * time_s
        if options.whatif:
            print(limits(problem, Budget(options.evaluations, time_s)), flush=True)
            continue
        known[name] = dict(entry.known)
        with tempfile.TemporaryDirectory() as written:
            file = entry.path
            if file is None:
                file = Path(written) / f"{name}.json"
                file.write_text(json.dumps(entry.document))
            for by, entrant, planned in entrants(names, problem, kind, cpsat=options.cpsat):
                seeds = range(options.seeds) if by.startswith(SEEDED) else range(1)
                budgets = [Budget(options.evaluations, time_s, seed) for seed in seeds]
                done = [run(file, planned, by, entrant, budget, options.checker) for budget in budgets]
                rows += done
                spans = [r["makespan_s"] for r in done if r["makespan_s"] is not None]
                shown = f"{statistics.median(spans):.6g} s" if spans else done[0]["fault"]
                print(f"{name} {by}: {shown}", file=sys.stderr, flush=True)
        parts = bounds(problem, combined_s_limit=BOUND_S)
        bound_rows.append({"instance": name, **dict.fromkeys(BOUNDS), **parts})
        known[name]["bound"] = max(parts.values(), default=0.0)
        known[name]["area"] = max(parts.get("critical path", 0.0), parts.get("area", 0.0))
    if options.whatif:
        return
    runs = pl.DataFrame(rows, schema=RUNS)
    table = medians(runs, known)
    kinds = by_kind(table)
    found = pl.DataFrame(bound_rows, schema={"instance": pl.String, **dict.fromkeys(BOUNDS, pl.Float64)})
    parts_ = (lines(table, kinds), bound_lines(found), by_size(table), reached(kinds))
    text = "\n\n".join("\n".join(part) for part in parts_)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        runs.write_parquet(options.out / "runs.parquet")
        table.write_csv(options.out / "planner.csv")
        found.write_csv(options.out / "bounds.csv")
        (options.out / "planner.txt").write_text(text + "\n")


if __name__ == "__main__":
    run_program(main)
