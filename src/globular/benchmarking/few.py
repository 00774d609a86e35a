"""Results of `benchmarks/few.py`: the file of all runs, and what they say about each problem and about all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

from globular.errors import DataError
from globular.io.files import write_whole

OURS = "globular-balanced"
THEIRS = "sklearn-defaults"
_ROUNDING = 1e-6
"""Errors that differ by less than this share are the same."""
_AS_GOOD = 1e-3
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
    seconds: float = math.nan
    error: float = math.nan
    message: str = ""

    @property
    def problem(self) -> Problem:
        """What was clustered into how many."""
        return self.data_set, self.n_clusters

    @property
    def key(self) -> tuple[str, int, str, int, int, int]:
        """What makes it another run."""
        return self.data_set, self.n_clusters, self.adapter, self.threads, self.seed, self.repeat


@dataclass
class RunFile:
    """The runs of a JSON file, which is written anew, whole, with every run that is added."""

    path: Path
    machine: str
    runs: dict[tuple[str, int, str, int, int, int], FewRun] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, machine: str) -> Self:
        """Go on with a file, or begin one; times of another machine are refused."""
        if not path.exists():
            return cls(path, machine)
        there, runs = read_runs(path)
        if there != machine:
            raise DataError(f"{path} has runs of another machine ({there}); choose another file")
        return cls(path, machine, {run.key: run for run in runs})

    def has(self, run: FewRun) -> bool:
        """Whether this run was done; one that failed may be tried again."""
        known = self.runs.get(run.key)
        return known is not None and not known.message

    def add(self, run: FewRun) -> None:
        """Keep a run."""
        self.runs[run.key] = run
        values = [{name: _plain(value) for name, value in asdict(each).items()} for each in self.runs.values()]
        text = json.dumps({"machine": self.machine, "runs": values}, indent=0, ensure_ascii=False)
        write_whole(self.path, lambda file: file.write(text.encode()))


def _plain(value: Any) -> Any:
    """JSON knows no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def read_runs(path: Path) -> tuple[str, list[FewRun]]:
    """The machine and the runs of a file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found["machine"], [_read_run(run) for run in found["runs"]]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} has no runs of benchmarks/few.py in it: {error}") from error


def _read_run(values: dict[str, Any]) -> FewRun:
    typed: dict[str, Any] = {name: math.nan if value is None else value for name, value in values.items()}
    return FewRun(**typed)


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
        if self.above_mean > _ROUNDING:
            found.append(f"above their mean ({self.above_mean:+.2%})")
        elif self.above_best > _AS_GOOD:
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
            if seconds < ours.seconds and error < (1.0 - _ROUNDING) * ours.error
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
    as_good = sum(each.above_best <= _AS_GOOD for each in found)
    lines = [
        f"{n} problems",
        f"scikit-learn's seconds ÷ ours, geometric mean: {ratio:.2f}",
        f"within {_AS_GOOD:+.1%} of the best of its runs: {as_good} of {n} ({as_good / n:.0%})",
        f"above the mean of its runs: {sum(each.above_mean > _ROUNDING for each in found)}",
        f"slower than one of its runs: {sum(each.ratio < 1.0 for each in found)}",
        f"another program is both faster and better: {sum(bool(each.beaten_by) for each in found)}",
    ]
    losses = [f"  {each.problem[0]} k = {each.problem[1]}: {'; '.join(each.losses)}" for each in found if each.losses]
    return [*lines, "losses:" if losses else "no losses", *losses]
