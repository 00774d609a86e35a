"""Results: the rows of a CSV file and their Markdown table, and a JSON file that grows by a run at a time.

Errors are given against the yardstick E*: the lowest error of the runs that are exact Lloyd iterations over
all rows, or of all runs where no run is exact.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from globular.errors import DataError
from globular.io import write_whole

from .machine import Machine, describe_machine


@dataclass(frozen=True)
class Row(Machine):
    """One run, or the reason why there was none; the field names are the columns of the CSV file."""

    problem: str
    n_samples: int
    n_features: int
    n_clusters: int
    adapter: str
    settings: str
    distribution: str
    version: str
    exact: bool
    ours: bool
    all_rows: bool
    start: str
    threads: int
    n_iter: int
    seed: int
    repeat: int
    status: str = "ok"
    seconds: float = math.nan
    error: float = math.nan
    peak_mib: float = math.nan
    data_mib: float = math.nan
    message: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the file whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def read_rows(path: Path) -> list[Row]:
    """Read what `write_rows` wrote."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise DataError(f"{path} is not a results file of this version; run the benchmark again")
            return [_typed(record) for record in reader]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _typed(record: dict[str, str]) -> Row:
    """Strings of one line turned into the types of the fields."""
    converters: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": "True".__eq__}
    return Row(**{field.name: converters[str(field.type)](record[field.name]) for field in fields(Row)})


def best_runs(rows: Iterable[Row]) -> list[Row]:
    """The fastest of the repeats of each setting; a setting without a good run keeps its first row."""
    chosen: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key = (row.problem, row.adapter, row.n_iter)
        known = chosen.get(key)
        if known is None or _rank(row) < _rank(known):
            chosen[key] = row
    return list(chosen.values())


def yardstick(rows: Iterable[Row]) -> float:
    """E* of one problem; NaN without a good run."""
    good = [row for row in rows if row.status == "ok"]
    exact = [row.error for row in good if row.exact]
    return min(exact or [row.error for row in good], default=math.nan)


def excess_percent(row: Row, reference: float) -> float:
    """How far the error lies above E*, in percent; a perfect fit of both is 0."""
    if reference == 0.0:
        return 0.0 if row.error == 0.0 else math.inf
    return 100.0 * (row.error / reference - 1.0)


def markdown_table(rows: Sequence[Row]) -> str:
    """One section per problem, fastest first, what did not run at the end with its reason."""
    best = best_runs(rows)
    sections = []
    for problem in dict.fromkeys(row.problem for row in best):
        sections.append(_section(problem, [row for row in best if row.problem == problem]))
    return "\n".join([_headline(rows), *sections]) if rows else "No runs.\n"


def _rank(row: Row) -> tuple[bool, float]:
    return (row.status != "ok", row.seconds if row.status == "ok" else math.inf)


def _headline(rows: Sequence[Row]) -> str:
    first = rows[0]
    commit = f", commit {first.commit[:10]}" if first.commit else ""
    return (
        f"{first.machine}; {first.threads} threads; Python {first.python}; "
        f"globular {first.globular_version}{commit}; {first.date}\n"
    )


def _section(problem: str, rows: list[Row]) -> str:
    reference = yardstick(rows)
    good = sorted((row for row in rows if row.status == "ok"), key=lambda row: row.seconds)
    shape = next(((row.n_samples, row.n_features, row.n_clusters) for row in rows if row.n_samples), None)
    size = "" if shape is None else f" ({shape[0]:,} × {shape[1]}, {shape[2]:,} clusters)"
    lines = [f"### {problem}{size}", ""]
    if good:
        lines += [
            f"E* = {reference:.6g} per row",
            "",
            "| adapter | version | settings | iterations | seconds | error vs E* | within 1 % | peak MiB |",
            "|---|---|---|---:|---:|---:|:---:|---:|",
            *(_line(row, reference) for row in good),
            "",
            *_verdict(good, reference),
        ]
    lines += [f"- {row.adapter}: {row.message or row.status}" for row in rows if row.status != "ok"]
    return "\n".join(lines) + "\n"


def _line(row: Row, reference: float) -> str:
    excess = excess_percent(row, reference)
    name = f"**{row.adapter}**" if row.ours else row.adapter
    remarks = [row.settings, row.message, "" if row.all_rows else "not all rows"]
    settings = "; ".join(remark for remark in remarks if remark)
    peak = "–" if math.isnan(row.peak_mib) else f"{row.peak_mib:,.0f}"
    mark = "yes" if excess <= 1.0 else ""
    return (
        f"| {name} | {row.version} | {settings} | {row.n_iter} | {row.seconds:.3g} "
        f"| {excess:+.2f} % | {mark} | {peak} |"
    )


def _verdict(good: list[Row], reference: float) -> list[str]:
    """Seconds to come within 1 % of E*: ours against the fastest peer."""
    within = [row for row in good if excess_percent(row, reference) <= 1.0]
    ours = next((row for row in within if row.ours), None)
    peer = next((row for row in within if not row.ours), None)
    if ours is None or peer is None:
        return []
    ratio = peer.seconds / ours.seconds
    return [
        f"Within 1 % of E*: {ours.adapter} {ours.seconds:.3g} s, fastest peer {peer.adapter} "
        f"{peer.seconds:.3g} s ({ratio:.2f}×).",
        "",
    ]


class RunFile:
    """Runs in a JSON file, which is written anew, whole, with every run that is added; `kind` is their dataclass.

    A run has a `key`, which makes it another one, and a `message` if it failed.
    """

    def __init__(self, path: Path, kind: Callable[..., Any]) -> None:
        self.path, self._here = path, describe_machine().machine
        self.machine, runs = read_runs(path, kind) if path.exists() else (self._here, [])
        self.runs = {run.key: run for run in runs}

    def has(self, run: Any) -> bool:
        """Whether this run was done; one that failed may be tried again."""
        return run.key in self.runs and not self.runs[run.key].message

    def add(self, run: Any) -> None:
        """Keep a run; those of another machine stay without company."""
        if self.machine != self._here:
            raise DataError(f"{self.path} has runs of another machine ({self.machine}); choose another file")
        self.runs[run.key] = run
        found = {"machine": self.machine, "runs": [asdict(each) for each in self.runs.values()]}
        text = json.dumps(found, indent=0, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, lambda file: file.write(text.encode()))


def read_runs(path: Path, kind: Callable[..., Any]) -> tuple[str, list[Any]]:
    """The machine and the runs of a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["machine"], [kind(**run) for run in found["runs"]]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} has no runs in it that this script knows: {error}") from error
