"""Few clusters: is one fit as quick as one of scikit-learn's, and as good as the best of ten?

    python benchmarks/few.py                                     # everything; many hours
    python benchmarks/few.py --sets covtype shuttle --k 8 64     # a part of it
    python benchmarks/few.py --errors-from earlier.json          # scikit-learn's errors are known already

Data sets × numbers of clusters × programs: our three qualities and NestedMiniBatchKMeans, ten seeds of scikit-learn's
KMeans(n_init=1), and the peers that are installed, with 25 iterations over all rows where they let one choose. Every
program has a process of its own for each data set, all with the same number of threads; runs take turns. The error is
computed here from the centres, in float64 over all rows, for everybody alike. Of scikit-learn the median of the seconds
counts, and of the errors the lowest and the mean; of the others the fastest of three runs from one seed.

Results go to a JSON file after every run; runs that it has are not repeated, so that a measurement can be continued.
Real data are looked for in the folder named by GLOBULAR_DATA; sets that are not found are said and left out.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from globular.errors import DataError
from harness.adapters import ADAPTERS, Adapter
from harness.data import SETS
from harness.fits import Rows
from harness.machine import describe_machine
from harness.quantization import quantization_error
from harness.results import RunFile, read_runs
from harness.session import Session

OURS = "globular-balanced"
THEIRS = "sklearn-defaults"
NUMBERS = (2, 8, 16, 64, 100, 256, 400)
OWN = ("globular-fast", OURS, "globular-best", "globular-nested")
PEERS = (THEIRS, "faiss-kmeans", "superkmeans-flat", "sklearnex-defaults", "lance")
N_ITER = 25
REPEATS = 3
WIDTH = 140  # of the table, also in a file
PATIENCE = 3600.0
"""Seconds after which a run is ended, whatever was expected of it."""
ROUNDING = 1e-6
"""Errors that differ by less than this share are the same."""
AS_GOOD = 1e-3
"""How far above the best of scikit-learn's runs still counts as reaching it."""

Problem = tuple[str, int]
"""Data set and number of clusters."""


@dataclass(frozen=True)
class FewRun:
    """One fit; `error` is the mean squared distance, and a `message` says why there is none."""

    data_set: str
    n_samples: int
    n_features: int
    n_clusters: int
    adapter: str
    version: str
    commit: str
    date: str
    threads: int
    seed: int
    repeat: int
    seconds: float | None = None
    error: float | None = None
    message: str = ""

    @property
    def problem(self) -> Problem:
        """What was clustered into how many."""
        return self.data_set, self.n_clusters

    @property
    def key(self) -> tuple[str, int, str, int, int, int]:
        """What makes it another run."""
        return self.data_set, self.n_clusters, self.adapter, self.threads, self.seed, self.repeat


@dataclass(frozen=True)
class Plan:
    """What to run, and how."""

    sets: tuple[str, ...]
    numbers: tuple[int, ...]
    adapters: tuple[Adapter, ...]
    n_seeds: int
    threads: int
    max_seconds: float

    def turns(self) -> Iterable[tuple[Adapter, int, int]]:
        """(adapter, seed, repeat) of one problem, in turns: everybody's first run, everybody's second one, …"""
        for turn in range(max(REPEATS, self.n_seeds)):
            for adapter in self.adapters:
                if turn < (self.n_seeds if adapter.name == THEIRS else REPEATS):
                    yield adapter, *((turn, 0) if adapter.name == THEIRS else (0, turn))


def expected_seconds(runs: Iterable[FewRun], problem: Problem, adapter: str) -> float:
    """What a run will take, from those with the nearest number of clusters: in proportion if that is a lower one."""
    known = [run for run in runs if run.adapter == adapter and run.data_set == problem[0] and not run.message]
    if not known:
        return 0.0
    nearest = min(known, key=lambda run: abs(math.log(run.n_clusters / problem[1]))).n_clusters
    seconds = min(run.seconds for run in known if run.n_clusters == nearest)
    return seconds * max(1.0, problem[1] / nearest)


def measure(plan: Plan, file: RunFile) -> None:
    """All runs that the file does not have yet."""
    for name in plan.sets:
        try:
            rows = SETS[name]()
        except DataError as error:
            print(f"{name}: {error}", flush=True)
            continue
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="globular-bench-")))
            rows.write(folder)
            sessions = {a.name: stack.enter_context(Session(a, folder, plan.threads)) for a in plan.adapters}
            for n_clusters in plan.numbers:
                _measure_problem((name, n_clusters), rows, plan, file, sessions)


def _measure_problem(problem: Problem, rows: Rows, plan: Plan, file: RunFile, sessions: dict[str, Session]) -> None:
    errors: dict[bytes, float] = {}  # a program that repeats itself to the bit is judged once
    said = set[str]()
    for adapter, seed, repeat in plan.turns():
        blank = _blank_run(problem, rows, adapter, plan.threads, seed, repeat)
        label = f"{problem[0]}, k = {problem[1]}, {adapter.name}"
        expected = expected_seconds(file.runs.values(), problem, adapter.name)
        reason = adapter.refusal(
            rows.X.shape[1], problem[1], weighted=rows.weights is not None, sparse=rows.is_sparse
        )  # fmt: skip
        if reason is None and not adapter.ours and expected > plan.max_seconds:
            reason = f"would take about {expected:.0f} s"
        if reason is not None:
            if adapter.name not in said:
                print(f"{label}: left out, {reason}", flush=True)
            said.add(adapter.name)
            continue
        if file.has(blank):
            continue
        answer = sessions[adapter.name].fit(problem[1], seed, N_ITER, PATIENCE)
        run = replace(blank, message=answer.message)
        if answer.centers is not None:
            bits = answer.centers.tobytes()
            if bits not in errors:
                errors[bits] = quantization_error(rows.X, answer.centers, weights=rows.weights, threads=plan.threads)
            run = replace(run, seconds=answer.seconds, error=errors[bits])
        file.add(run)
        outcome = run.message or f"{run.seconds:.3g} s, error {run.error:.6g}"
        print(f"{label}, seed {seed}: {outcome}", flush=True)


def _blank_run(problem: Problem, rows: Rows, adapter: Adapter, threads: int, seed: int, repeat: int) -> FewRun:
    machine = describe_machine()
    n_samples, n_features = rows.X.shape
    return FewRun(
        problem[0], n_samples, n_features, problem[1], adapter.name, adapter.version(),
        machine.commit if adapter.ours else "", machine.date, threads, seed, repeat,
    )  # fmt: skip


def known_errors(runs: Iterable[FewRun]) -> dict[Problem, list[float]]:
    """Errors of scikit-learn's runs by problem."""
    found: dict[Problem, list[float]] = {}
    for run in runs:
        if run.adapter == THEIRS and not run.message:
            found.setdefault(run.problem, []).append(run.error)
    return found


@dataclass(frozen=True)
class Verdict:
    """One problem: our default against scikit-learn's runs, and who is both faster and better than our default."""

    problem: Problem
    seconds: float
    error: float
    their_seconds: float
    their_best: float
    their_mean: float
    beaten_by: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times our seconds one of their runs takes."""
        return self.their_seconds / self.seconds

    @property
    def above_best(self) -> float:
        """Share by which our error lies above the lowest of theirs."""
        return _excess(self.error, self.their_best)

    @property
    def above_mean(self) -> float:
        """Share by which our error lies above the mean of theirs."""
        return _excess(self.error, self.their_mean)

    @property
    def losses(self) -> tuple[str, ...]:
        """What this problem should not show."""
        found = [f"{name} is faster and better" for name in self.beaten_by]
        if self.ratio < 1.0:
            found.append(f"slower than one run ({self.ratio:.2f}×)")
        if self.above_mean > ROUNDING:
            found.append(f"above their mean ({self.above_mean:+.2%})")
        elif self.above_best > AS_GOOD:
            found.append(f"above their best ({self.above_best:+.2%})")
        return tuple(found)


def _excess(error: float, reference: float) -> float:
    if reference == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / reference - 1.0


def verdicts(runs: Iterable[FewRun], errors: Mapping[Problem, list[float]] | None = None) -> list[Verdict]:
    """Of every problem that has our default and scikit-learn's seconds; `errors` take the place of scikit-learn's own.

    Each adapter counts with the fastest of its runs and that run's error, scikit-learn with the median and the mean.
    """
    good = [run for run in runs if not run.message]
    errors = known_errors(good) if errors is None else errors
    found = []
    for problem in dict.fromkeys(run.problem for run in good):
        by_adapter: dict[str, list[FewRun]] = {}
        for run in good:
            if run.problem == problem:
                by_adapter.setdefault(run.adapter, []).append(run)
        if not {OURS, THEIRS} <= by_adapter.keys() or not errors.get(problem):
            continue
        fastest = {name: min(some, key=lambda run: run.seconds) for name, some in by_adapter.items()}
        ours, mean = fastest.pop(OURS), fmean(errors[problem])
        their_seconds = median(run.seconds for run in by_adapter[THEIRS])
        figures = {name: (run.seconds, run.error) for name, run in fastest.items()} | {THEIRS: (their_seconds, mean)}
        beaten_by = tuple(
            name
            for name, (seconds, error) in figures.items()
            if seconds < ours.seconds and error < (1.0 - ROUNDING) * ours.error
        )
        best = min(errors[problem])
        found.append(Verdict(problem, ours.seconds, ours.error, their_seconds, best, mean, beaten_by))
    return found


def summary(found: list[Verdict]) -> list[str]:
    """What all problems come to, in lines of text."""
    if not found:
        return ["no problem has runs of both our default and scikit-learn"]
    n = len(found)
    ratio = math.exp(fmean(math.log(each.ratio) for each in found))
    as_good = sum(each.above_best <= AS_GOOD for each in found)
    lines = [
        f"{n} problems",
        f"scikit-learn's seconds ÷ ours, geometric mean: {ratio:.2f}",
        f"within {AS_GOOD:+.1%} of the best of its runs: {as_good} of {n} ({as_good / n:.0%})",
        f"above the mean of its runs: {sum(each.above_mean > ROUNDING for each in found)}",
        f"slower than one of its runs: {sum(each.ratio < 1.0 for each in found)}",
        f"another program is both faster and better: {sum(bool(each.beaten_by) for each in found)}",
    ]
    losses = [f"  {each.problem[0]} k = {each.problem[1]}: {'; '.join(each.losses)}" for each in found if each.losses]
    return [*lines, "losses:" if losses else "no losses", *losses]


def results_table(found: Iterable[Verdict], title: str) -> Table:
    """A line per problem."""
    table = Table(title=title, title_style="bold", box=None)
    table.add_column("data set")
    for name in ("k", "s ours", "s scikit-learn", "ratio", "error against best", "against mean"):
        table.add_column(name, justify="right")
    table.add_column("faster and better")
    for each in found:
        figures = (f"{each.seconds:.3g}", f"{each.their_seconds:.3g}", f"{each.ratio:.2f}")
        errors = (f"{each.above_best:+.2%}", f"{each.above_mean:+.2%}")
        style = "bold" if each.losses else ""
        table.add_row(each.problem[0], str(each.problem[1]), *figures, *errors, ", ".join(each.beaten_by), style=style)
    return table


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure what is missing, print what all runs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), metavar="NAME")
    parser.add_argument("--k", nargs="+", type=int, default=list(NUMBERS), metavar="K")
    parser.add_argument(
        "--peers", nargs="*", default=list(PEERS), choices=list(ADAPTERS), metavar="NAME", help="beside ours"
    )
    parser.add_argument("--runs", type=int, default=10, help="seeds of scikit-learn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--errors-from", type=Path, metavar="FILE", help="take scikit-learn's errors from these runs")
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="leave longer runs of peers out")
    parser.add_argument("--output", type=Path, default=Path("bench-results/few.json"))
    options = parser.parse_args(arguments)
    errors = None if options.errors_from is None else known_errors(read_runs(options.errors_from, FewRun)[1])
    adapters = [ADAPTERS[name] for name in dict.fromkeys([*OWN, *options.peers])]
    for adapter in adapters:
        if not adapter.is_installed():
            print(f"{adapter.name}: not installed; pip install {adapter.distribution}", flush=True)
    plan = Plan(
        tuple(options.sets),
        tuple(options.k),
        tuple(adapter for adapter in adapters if adapter.is_installed()),
        options.runs if errors is None else min(options.runs, REPEATS),  # their seconds are still needed
        options.threads,
        options.max_seconds,
    )
    file = RunFile(options.output, FewRun)
    measure(plan, file)
    runs = [run for run in file.runs.values() if run.threads == plan.threads]
    chosen = [run for run in runs if run.data_set in plan.sets and run.n_clusters in plan.numbers]
    found = verdicts(chosen, errors)
    commits = sorted({run.commit[:7] for run in chosen if run.commit})
    console = Console(width=max(WIDTH, Console().width))
    console.print(results_table(found, f"{file.machine}; {plan.threads} threads; globular {', '.join(commits)}"))
    for line in summary(found):
        print(line, flush=True)


if __name__ == "__main__":
    main()
