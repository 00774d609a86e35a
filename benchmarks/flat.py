"""Does an iteration cost more with more clusters? python benchmarks/flat.py [--rows 1000000] [--clusters 1000 10000 …]

Fits variational k-means-S (C′ = 1, G = 5 + 1) to as many rows each time, drawn from BIRCH grids of as many Gaussians as
there are clusters, and prints the seconds per iteration: the mean over many iterations of a fit, after some in which
the rows settle. Estimates of neighbourhoods, full sums and sorting of rows are in it as often as they happen.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from globular import VariationalKMeans
from globular.datasets import birch_grid

SETTLING, TIMED = 10, 30
"""Iterations before the clock starts, and while it runs."""


def seconds_per_iteration(n_rows: int, n_clusters: int, n_threads: int | None) -> float:
    """Of one fit."""
    side = math.isqrt(n_clusters - 1) + 1
    X = birch_grid(side, -(-n_rows // side**2), random_state=0).X[:n_rows]
    model = VariationalKMeans(
        n_clusters, n_candidates=1, n_neighbors=5, n_random=1, init="random", max_iter=SETTLING + TIMED, tol=0.0,
        random_state=0, n_threads=n_threads,
    ).fit(X)  # fmt: skip
    seconds = np.array([record.seconds for record in model.history_])
    if len(seconds) < SETTLING + TIMED:
        raise ValueError(f"the fit of {n_clusters} clusters ended after {len(seconds)} iterations; take more clusters")
    return float(seconds[-1] - seconds[SETTLING - 1]) / TIMED


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    first = None
    print(f"{options.rows:,} rows in the plane, {options.threads} threads\n clusters   ms / iteration   × the first")
    for n_clusters in options.clusters:
        seconds = seconds_per_iteration(options.rows, n_clusters, options.threads)
        first = first or seconds
        print(f"{n_clusters:9,}   {1e3 * seconds:14.1f}   {seconds / first:11.2f}", flush=True)


if __name__ == "__main__":
    main()
