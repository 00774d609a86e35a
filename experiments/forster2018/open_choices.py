"""What the paper leaves open, tried: why some numbers of Table 2 and Fig. 3 are outside their bands.

    python -m experiments.forster2018.open_choices [--quick] [--only TEXT] [--runs N] [--jobs N] [--keep-only]
                                                   [--report-only] [-o DIR]

Five questions, with the same algorithms as the tables but for the second: how long the chains of AFK-MC² are (KDD,
var-k-means-S G = 2), what the authors' own program does (`program.py`; there, and on BIRCH 5 × 5), when mixtures have
converged (BIRCH 20 × 20 to 64 × 64, var-GMM-S 5 + 1), how long the warm-up is (BIRCH 20 × 20, the same), and how much
five runs say at C = 25 (BIRCH 5 × 5, the same).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Cell, add_options, measured
from experiments.common import (
    exact_error,
    lloyd_run,
    markdown_table,
    parser,
    percent,
    provenance,
    read_results,
    update_report,
    write_results,
)
from experiments.forster2018 import HEADING, REPORT
from experiments.forster2018.fits import CHAIN_LENGTH, SETUP, Variant, birch_warmup, run
from experiments.forster2018.program import run_program
from experiments.forster2018.table2_rows import BIRCH_2025, BIRCH_4096, KDD, Problem, birch
from globular import seeding


@dataclass(frozen=True, slots=True)
class Question:
    """A choice, the values that were tried, and the row of a table that asks."""

    name: str
    title: str
    choice: str
    values: tuple[float, ...]
    """What `choice` is set to."""
    problem: Problem
    variant: Variant
    n_runs: int
    paper: float | None
    """The published error against k-means, if there is one."""
    program: bool = False
    """Whether the authors' own program is asked."""

    def at(self, value: float) -> tuple[Variant, int]:
        """The algorithm with the choice made, and the length of the chains."""
        if self.choice == "neighbours":
            return replace(self.variant, G=int(value)), CHAIN_LENGTH
        if self.choice in ("warm-up", "initial E-steps"):
            return replace(self.variant, n_warmup=int(value)), CHAIN_LENGTH
        if self.choice == "tolerance":
            return replace(self.variant, tol=value), CHAIN_LENGTH
        return self.variant, int(value)


def _variant(problem: Problem, name: str) -> Variant:
    return next(entry.variant for entry in problem.entries if entry.name == name)


_GRID_25 = Problem("birch-25", "BIRCH 5 × 5", 25, birch(5), ())
_GRID_400 = Problem("birch-400", "BIRCH 20 × 20", 400, birch(20), ())
QUESTIONS = (
    Question("chains", "KDD, var-k-means-S G = 2", "chain length", (1, 20, 200, 2000), KDD,
             _variant(KDD, "var-k-means-S G=2"), 10, 101.8),
    Question("program", "KDD, var-k-means-S G = 2 as the authors' program has it", "initial E-steps", (0, 1, 5), KDD,
             _variant(KDD, "var-k-means-S G=2"), 5, 101.8, program=True),
    Question("stopping 45", "BIRCH 45 × 45, var-GMM-S 5 + 1", "tolerance", (1e-4, 0), BIRCH_2025,
             _variant(BIRCH_2025, "var-GMM-S G=5 + 1"), 5, -9.1),
    Question("stopping 64", "BIRCH 64 × 64, var-GMM-S 5 + 1", "tolerance", (1e-4, 0), BIRCH_4096,
             _variant(BIRCH_4096, "var-GMM-S G=5 + 1"), 5, -11.7),
    Question("stopping 20", "BIRCH 20 × 20, var-GMM-S 5 + 1", "tolerance", (1e-4, 0), _GRID_400,
             Variant("GMM", 5, 1, birch_warmup(5, 400)), 5, None),
    Question("warm-up", "BIRCH 20 × 20, var-GMM-S 5 + 1", "warm-up", (1, 2, 4, 8, 16), _GRID_400,
             Variant("GMM", 5, 1, tol=1e-4), 3, None),
    Question("five runs", "BIRCH 5 × 5, var-GMM-S 5 + 1", "chain length", (CHAIN_LENGTH,), _GRID_25,
             Variant("GMM", 5, 1, birch_warmup(5, 25)), 100, None),
    Question("program 5", "BIRCH 5 × 5, var-k-means-S as the authors' program has it", "neighbours", (2, 3, 5),
             _GRID_25, Variant("k-means", 2), 20, None, program=True),
    Question("program 5, mixtures", "BIRCH 5 × 5, var-GMM-S as the authors' program has it", "neighbours", (2, 3, 5),
             _GRID_25, Variant("GMM", 2), 20, None, program=True),
)  # fmt: skip
_TINY = Problem("birch-36", "BIRCH 6 × 6", 36, birch(6, 30), (), max_iter=20)
QUICK = (
    Question("chains", "small", "chain length", (1, 20), _TINY, Variant("k-means", 2), 2, 101.8),
    Question("program", "small", "initial E-steps", (0, 1), _TINY, Variant("k-means", 2), 2, 101.8, program=True),
    Question("five runs", "small", "chain length", (20,), _TINY, Variant("GMM", 5, 1, 1), 10, None),
)


def measure_run(question: Question, value: float, number: int, lloyd: float | None = None) -> dict[str, Any]:
    """The error of one run, and that of k-means from the same seeds, which may be known."""
    X, problem = question.problem.load(), question.problem
    variant, chain_length = question.at(value)
    variant = replace(variant, max_iter=problem.max_iter)
    seeds = seeding.afk_mc2(X, problem.n_clusters, chain_length=chain_length, random_state=number)
    if question.program:
        centers, n_iter = run_program(X, seeds, variant, seed=number)
    else:
        found = run(X, seeds, variant, seed=number)
        centers, n_iter = found.centers, found.n_iter
    return {
        "error": exact_error(X, centers),
        "lloyd": lloyd_run(X, seeds, problem.max_iter).error if lloyd is None else lloyd,
        "n_iter": n_iter,
        "when": provenance(),
    }


def known_lloyd(kept: Mapping[str, Any], asked: Question, chain_length: int, number: int) -> float | None:
    """The error of k-means from the same seeds, if another question has had them; None: not measured yet."""
    for question in QUESTIONS:
        for value in question.values:
            known = kept.get(question.name, {}).get(f"{value:g}", {}).get(str(number))
            if known and question.problem.name == asked.problem.name and question.at(value)[1] == chain_length:
                return float(known["lloyd"])
    return None


def keep_measuring(
    questions: Sequence[Question], folder: Path, name: str, *, runs: int | None = None, n_jobs: int = 1
) -> None:
    """Add the runs that are not there."""
    kept = read_results(folder / f"{name}.json")
    cells = [
        Cell(
            (question.name, f"{value:g}", str(number)),
            measure_run,
            (question, value, number, known_lloyd(kept, question, question.at(value)[1], number)),
        )
        for question in questions
        for number in range(runs or question.n_runs)
        for value in question.values
        if str(number) not in kept.get(question.name, {}).get(f"{value:g}", {})
    ]
    for cell, found in measured(cells, n_jobs, lambda line: print(line, flush=True)):
        first, value, number = cell.name
        kept.setdefault(first, {}).setdefault(value, {})[number] = found
        print(*cell.name, f"{100 * (found['error'] / found['lloyd'] - 1):+.1f} %", flush=True)
        write_results(folder / f"{name}.json", kept)


def relative(runs: Mapping[str, Mapping[str, float]]) -> tuple[float, np.ndarray]:
    """Mean error against that of k-means, and the same of every run, in percent."""
    errors, base = np.array([[run["error"], run["lloyd"]] for run in runs.values()]).T
    return 100.0 * float(errors.mean() / base.mean() - 1.0), 100.0 * (errors / base - 1.0)


def table(question: Question, kept: Mapping[str, Any]) -> str:
    """One line for each value."""
    rows = []
    for value in question.values:
        runs = kept.get(f"{value:g}", {})
        if not runs:
            rows.append([f"{value:g}", *["not run"] * 3, "0"])
            continue
        mean, each = relative(runs)
        error = f"{each.std(ddof=1) / np.sqrt(len(each)):.1f}" if len(each) > 1 else "–"
        rows.append(
            [f"{value:g}", percent(mean), error, f"{percent(each.min())} to {percent(each.max())}", str(len(each))]
        )
    head = (question.choice, "against k-means", "standard error", "runs from … to", "runs")
    paper = "" if question.paper is None else f" The paper: {percent(question.paper)}."
    return f"**{question.title}.**{paper}\n\n{markdown_table(head, rows).rstrip()}"


def groups_of_five(kept: Mapping[str, Any]) -> str:
    """How often five runs of an algorithm end below five of k-means, from many."""
    runs = [run for value in kept.values() for run in value.values()]
    n = len(runs) // 5
    errors = np.array([[run["error"], run["lloyd"]] for run in runs[: 5 * n]]).reshape(n, 5, 2).mean(axis=1)
    below = int((errors[:, 0] <= errors[:, 1]).sum())
    return f"Of {n} groups of five runs {below} end with a mean error below that of k-means from the same seeds."


def section(questions: Sequence[Question], kept: Mapping[str, Any]) -> str:
    """All questions that were asked."""
    parts = [
        "## What the paper leaves open",
        "Errors against k-means from the same seeds, as in Table 2. The tables and figures above have chains of 200, "
        "and the lengths of the warm-up that `birch_warmup` gives. The authors have published a program (var-GMMs) "
        "that is not quite what the paper prints: rows that draw the same K(n) share their first G(n), Eq. 8 takes "
        "squared distances, clusters without rows go to the origin, σ² is 1 at first, and it stops after a number of "
        "iterations. `program.py` is written after it, and its runs have the same seeds as the others.",
        replace(
            SETUP, command="forster2018.open_choices", data="KDD-Cup 2004 and BIRCH grids",
            stopping="as in Table 2, but for the tolerance where that is the question", runs="in the tables",
        ).text(one["when"] for found in kept.values() for runs in found.values() for one in runs.values()),
    ]  # fmt: skip
    for question in questions:
        found = kept.get(question.name, {})
        parts.append(table(question, found))
        if question.name == "five runs" and found:
            parts.append(groups_of_five(found))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep, report."""
    options = parser("open choices of Forster & Lücke 2018", REPORT)
    options.add_argument("--only", default="", metavar="TEXT", help="questions whose name contains TEXT")
    add_options(options)
    chosen = options.parse_args(arguments)
    questions = QUICK if chosen.quick else QUESTIONS
    name = "open-choices-quick" if chosen.quick else "open-choices"
    folder: Path = chosen.output
    if not chosen.report_only:
        asked = [question for question in questions if chosen.only in question.name]
        keep_measuring(asked, folder, name, runs=chosen.runs, n_jobs=chosen.jobs)
    if not chosen.keep_only:
        update_report(folder / "report.md", HEADING, name, section(questions, read_results(folder / f"{name}.json")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
