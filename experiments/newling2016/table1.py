"""Table 1: seconds to process N rows by mbatch, ours against scikit-learn's MiniBatchKMeans.

    python -m experiments.newling2016.table1 [--quick] [--problems NAME …] [--runs N] [--rows N] [-o DIR]

Both take the same starting centres and random batches of 5,000 rows until as many rows have been visited as there are,
with the same number of threads, in turns; the best of the runs counts. Neither computes labels at the end, stops early
or moves centres. The paper's numbers are of one thread each: 12.4 s against 20.6 s on INFMNIST (dense), 15.2 s against
63.6 s on RCV1 (sparse).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

from experiments.common import Band, markdown_table, parser, provenance, read_results, update_report, write_results
from experiments.newling2016 import HEADING, REPORT
from experiments.newling2016.problems import PAPERS, PROBLEMS
from experiments.verdicts import Claim, Setup, claims_table, in_band, tally
from globular import NestedMiniBatchKMeans
from globular.threads import resolve_threads

PUBLISHED = {"infmnist": (12.4, 20.6), "newsgroups": (15.2, 63.6)}
"""The paper's seconds, its own and scikit-learn's, of the data that these stand in for; it has no others."""
K, B = 50, 5_000
AT_LEAST = 0.9
"""Share of the published ratio that ours has to have."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Best of the runs: seconds on the wall, and of all threads together, for one visit of N rows."""

    wall: float
    processor: float


def ours(X: Any, start: Any, b: int, epochs: int, threads: int) -> Callable[[], NestedMiniBatchKMeans]:
    """mbatch by its name."""
    model = NestedMiniBatchKMeans(
        len(start), algorithm="mbatch", init=start, n_init=1, batch_size=b, max_iter=epochs, max_no_improvement=None,
        search="exact", compute_labels=False, random_state=0, n_threads=threads,
    )  # fmt: skip
    return lambda: model.fit(X)


def problem(name: str, k: int, b: int, n_rows: int | None) -> tuple[Any, Any, int]:
    """Rows, starting centres, and visits of all rows: twenty batches at least."""
    X = PROBLEMS[name].load(n_rows).train
    rows = X[np.sort(np.random.default_rng(0).choice(X.shape[0], k, replace=False))]
    start = np.ascontiguousarray(rows.toarray() if hasattr(rows, "toarray") else rows)
    return X, start, max(1, round(20 * b / X.shape[0]))


def fingerprint() -> float:
    """The energy that our fit of the sparse set ends at: seconds alone do not tell what was computed."""
    X, start, epochs = problem("newsgroups", K, B, None)
    return ours(X, start, B, epochs, 1)().inertia_


def theirs(X: Any, start: Any, b: int, epochs: int) -> Callable[[], Any]:
    """The same by scikit-learn."""
    model = MiniBatchKMeans(
        len(start), init=start, n_init=1, batch_size=b, max_iter=epochs, max_no_improvement=None, tol=0.0,
        reassignment_ratio=0.0, compute_labels=False, random_state=0,
    )  # fmt: skip
    return lambda: model.fit(X)


def timed(run: Callable[[], Any]) -> Timing:
    """One run."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return Timing(time.perf_counter() - wall, time.process_time() - processor)


def measure(name: str, k: int, b: int, n_runs: int, n_rows: int | None, threads: int) -> dict[str, Any]:
    """Both libraries in turns on one data set."""
    X, start, epochs = problem(name, k, b, n_rows)
    runs = {"ours": ours(X, start, b, epochs, threads), "sklearn": theirs(X, start, b, epochs)}
    best: dict[str, Timing] = {}
    with threadpool_limits(limits=threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that batches are smaller than it likes, and the like
        for _ in range(n_runs + 1):  # the first round warms up
            for library, run in runs.items():
                found = timed(run)
                known = best.get(library, Timing(np.inf, np.inf))
                best[library] = Timing(min(known.wall, found.wall), min(known.processor, found.processor))
    return {
        "n_rows": X.shape[0], "k": k, "b": b, "runs": n_runs, "threads": threads, "provenance": provenance(),
        "energy": runs["ours"]().inertia_,
        **{key: {"wall": t.wall / epochs, "processor": t.processor / epochs} for key, t in best.items()},
    }  # fmt: skip


def section(kept: Mapping[str, Any]) -> str:
    """The table."""
    rows, asked = [], []
    for name, entry in kept.items():
        own, other = entry["ours"], entry["sklearn"]
        ratio = other["wall"] / own["wall"]
        paper = PUBLISHED.get(name)
        rows.append(
            [
                PROBLEMS[name].title, f"{entry['n_rows']:,}", f"{entry['threads']}", f"{own['wall']:.3g} s",
                f"{other['wall']:.3g} s", f"{ratio:.1f}×", f"{other['processor'] / own['processor']:.1f}×",
                f"{paper[0]:g} s, {paper[1]:g} s: {paper[1] / paper[0]:.1f}×" if paper else "–", str(entry["runs"]),
            ]
        )  # fmt: skip
        if paper:
            printed = paper[1] / paper[0]
            band = Band(low=AT_LEAST * printed)
            what = f"{PROBLEMS[name].title}: scikit-learn's seconds over ours"
            asked.append(
                in_band(what, f"{printed:.1f}×", ratio, band, "{:.1f}×", "other data: the ratio alone compares")
            )
    asked += [
        Claim("sofia on INFMNIST and RCV1", "seconds", remark="the program of Sculley (2010) is not to be had here")
    ]
    missing = [PROBLEMS[name].title for name in PUBLISHED if name not in kept]
    head = (
        "data", "rows", "threads", "ours", "scikit-learn", "ratio", "of processor time", "paper: own, scikit-learn",
        "runs",
    )  # fmt: skip
    first = next(iter(kept.values()))
    setup = Setup(
        command="newling2016.table1", data="stand-ins", start="the same random rows for both",
        stopping=f"as many rows visited as there are, in random batches of {first['b']:,}, k = {first['k']}",
        runs="best of the runs, in turns", deviations="threads by the table; the paper's are of one thread each",
    )  # fmt: skip
    return "\n\n".join(
        [
            "## Table 1: mbatch against scikit-learn",
            "Seconds to process N rows.",
            setup.text(entry["provenance"] for entry in kept.values()),
            markdown_table(head, rows).rstrip(),
            *([f"Not run: {', '.join(missing)}."] if missing else []),
            claims_table(asked),
            tally(asked),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = parser("Table 1 of Newling & Fleuret 2016", REPORT)
    options.add_argument("--problems", nargs="+", choices=tuple(PROBLEMS), default=None, help="data sets")
    options.add_argument("--rows", type=int, default=None, metavar="N", help="training rows, instead of all")
    options.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
    chosen = options.parse_args(arguments)
    name = "table1-quick" if chosen.quick else "table1"
    folder: Path = chosen.output
    kept = read_results(folder / f"{name}.json")
    k, b, n_runs = (20, 300, chosen.runs or 1) if chosen.quick else (K, B, chosen.runs or 5)
    for problem in [] if chosen.report_only else chosen.problems or (["blobs"] if chosen.quick else PAPERS):
        kept[problem] = measure(problem, k, b, n_runs, chosen.rows, resolve_threads(None))
        write_results(folder / f"{name}.json", kept)
    update_report(folder / "report.md", HEADING, name, section(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
