"""Problems × adapters: seconds from nothing to centres, memory and exact error over all rows, beside each other.

    python benchmarks/full.py                # everything; hours
    python benchmarks/full.py --quick        # small generated problems, one setting per library; two minutes
    python benchmarks/full.py --problems glove50-2000 --adapters globular-balanced superkmeans-hierarchical
    python benchmarks/full.py --readme       # everything; then the results are kept and the README's table made of them

Writes results.csv after every run, and table.md and curve.png at the end. Each run has a fresh process. Libraries that
are missing are listed with the reason, and the rest runs.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np

import readme  # beside this file
from globular.errors import DataError, MissingExtraError
from globular.io import write_whole
from globular.threads import default_threads
from harness.adapters import ADAPTERS, Adapter
from harness.data import PROBLEMS, Problem
from harness.fits import Rows
from harness.machine import Machine, describe_machine
from harness.plots import plot_curve
from harness.quantization import quantization_error
from harness.results import Row, markdown_table, write_rows
from harness.session import Session

SEED = 0
QUICK = {
    "problems": [name for name in PROBLEMS if name.startswith("quick-")],
    "adapters": [
        "globular-fast", "globular-balanced", "globular-best", "globular-lloyd", "sklearn-lloyd", "sklearn-minibatch",
        "sklearnex-lloyd", "faiss-kmeans", "faiss-afkmc2", "superkmeans-flat", "superkmeans-hierarchical", "lance",
    ],
    "iterations": [10],
    "repeats": 1,
    "timeout": 45.0,  # room for a first compilation, which is not timed but has to happen
    "seconds": 100.0,
}  # fmt: skip
"""The defaults of other options with --quick."""
GRACE = 15.0
"""Seconds that a run may take beyond those of --seconds."""


def runs(problem: Problem, options: argparse.Namespace, machine: Machine, deadline: float) -> Iterator[Row]:
    """All runs on one problem, of which a folder has the rows."""
    X = problem.load()
    with tempfile.TemporaryDirectory(prefix="globular-bench-") as name:
        folder, start = Path(name), Path(name, "start.npy")
        Rows(X).write(folder)
        some = np.random.default_rng(SEED).choice(len(X), size=problem.n_clusters, replace=False)
        np.save(start, X[some])
        # Repeats outside, adapters inside: a disturbance of the machine hits everybody alike.
        for repeat, n_iter, adapter in product(
            range(options.repeats), options.iterations, map(ADAPTERS.get, options.adapters)
        ):
            given = start if options.same_start and adapter.accepts_start else None
            row = Row(
                **asdict(machine),
                problem=problem.name,
                n_samples=X.shape[0],
                n_features=X.shape[1],
                n_clusters=problem.n_clusters,
                adapter=adapter.name,
                settings=adapter.settings,
                distribution=adapter.distribution,
                version=adapter.version(),
                exact=adapter.exact,
                ours=adapter.ours,
                all_rows=adapter.all_rows,
                start="own" if given is None else "given",
                threads=options.threads,
                n_iter=n_iter,
                seed=SEED,
                repeat=repeat,
                data_mib=X.nbytes / (1 << 20),
            )
            left = deadline - time.monotonic()
            reason = refusal(adapter, row, left)
            if reason is None:
                yield run(row, adapter, folder, X, given, min(options.timeout, left + GRACE))
            elif repeat == 0 and n_iter == options.iterations[0]:  # said once is enough
                yield replace(row, status="left out", message=reason)


def refusal(adapter: Adapter, row: Row, left: float) -> str | None:
    """Why there will be no run, or None."""
    if not adapter.is_installed():
        return f"not installed; pip install {adapter.distribution}"
    return adapter.refusal(row.n_features, row.n_clusters) or ("no time is left" if left < 0.0 else None)


def run(row: Row, adapter: Adapter, folder: Path, X: np.ndarray, start: Path | None, timeout: float) -> Row:
    """The row with what came out; whatever goes wrong is a message."""
    with Session(adapter, folder, row.threads) as session:
        answer = session.fit(row.n_clusters, row.seed, row.n_iter, timeout, start)
    if answer.message:
        return replace(row, status="failed", message=answer.message)
    try:
        error = quantization_error(X, answer.centers, threads=row.threads)
    except ValueError as wrong:  # centres of a wrong shape or with NaN
        return replace(row, status="failed", message=str(wrong))
    message = "" if len(answer.centers) == row.n_clusters else f"gave {len(answer.centers)} centres"
    return replace(row, seconds=answer.seconds, error=error, peak_mib=answer.peak_mib, message=message)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = [name for name in PROBLEMS if name not in QUICK["problems"]]
    parser.add_argument("--quick", action="store_true", help="small problems, one setting per library, two minutes")
    parser.add_argument("--problems", nargs="+", default=everything, choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--adapters", nargs="+", default=list(ADAPTERS), choices=list(ADAPTERS), metavar="NAME")
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 10, 25], help="several give a curve")
    parser.add_argument("--threads", type=int, default=default_threads(), help="all cores by default")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds per run")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no run is started")
    parser.add_argument("--same-start", action="store_true", help="same random rows for all that take a start")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    parser.add_argument("--readme", action="store_true", help="keep the results and write the README's table anew")
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    deadline, machine, rows = time.monotonic() + options.seconds, describe_machine(), list[Row]()
    options.output.mkdir(parents=True, exist_ok=True)
    results, table, curve = (options.output / name for name in ("results.csv", "table.md", "curve.png"))
    for name in options.problems:
        try:
            for row in runs(PROBLEMS[name], options, machine, deadline):
                rows.append(row)
                outcome = f"{row.n_iter} iterations, {row.seconds:.3g} s, error {row.error:.6g} per row"
                print(f"{name}  {row.adapter}: {outcome if row.status == 'ok' else row.message}", flush=True)
                # After every run: whatever ends a long benchmark, what was measured is on disk.
                write_rows(results, rows)
        except DataError as error:
            print(f"{name}: {error}")
    if not rows:
        raise SystemExit("no data were found")
    text = markdown_table(rows)
    write_whole(table, lambda file: file.write(text.encode()))
    print(f"\n{text}\nWritten: {results}, {table}")
    if any(row.status == "ok" for row in rows):
        try:
            plot_curve(rows, curve)
            print(f"Written: {curve}")
        except MissingExtraError as error:
            print(f"{curve.name} not drawn: {error}")
    if options.readme:
        readme.write(readme.keep([results]))


if __name__ == "__main__":
    main()
