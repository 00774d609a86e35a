"""What does a fit cost when there is hardly anything to fit? python benchmarks/tiny.py [--seconds 1] [--threads 2]

Fits and predicts a few hundred or thousand rows again and again with `KMeans` and `GaussianMixture`, in turn with
scikit-learn's of the same names (one run from one start), and prints milliseconds: of every seed the fastest fit, the
mean over the seeds. Kernels are compiled before.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from sklearn import cluster, mixture
from sklearn.datasets import make_blobs
from threadpoolctl import threadpool_limits

from globular import GaussianMixture, KMeans

SIZES = ((150, 4, 3), (500, 2, 8), (2000, 10, 8), (5000, 20, 50))
"""Rows, columns and clusters."""
SEEDS = range(5)


def fastest(calls: list[Callable[[int], object]], seeds: Sequence[int], seconds: float) -> list[float]:
    """Milliseconds of each function: its fastest call with every seed, and the mean of those.

    Functions take turns until `seconds` are over; the first calls do not count.
    """
    best = np.full((len(calls), len(seeds)), np.inf)
    for call in calls:
        call(seeds[0])
    ends = perf_counter() + seconds
    while np.isinf(best).any() or perf_counter() < ends:
        for place in np.ndindex(len(seeds), len(calls)):
            seed, call = seeds[place[0]], calls[place[1]]
            started = perf_counter()
            call(seed)
            best[place[::-1]] = min(best[place[::-1]], perf_counter() - started)
    return (1e3 * best.mean(axis=1)).tolist()


def measure(n_rows: int, n_columns: int, n_clusters: int, seconds: float, threads: int) -> None:
    """The lines of the table for one size."""
    X, _ = make_blobs(n_rows, n_columns, centers=n_clusters, cluster_std=2.0, random_state=0)
    makers: dict[str, tuple[Callable[[int], KMeans | GaussianMixture], Callable[[int], object]]] = {
        "KMeans": (
            lambda seed: KMeans(n_clusters, random_state=seed, n_threads=threads),
            lambda seed: cluster.KMeans(n_clusters, n_init=1, random_state=seed),
        ),
        "GaussianMixture": (
            lambda seed: GaussianMixture(n_clusters, random_state=seed, n_threads=threads),
            lambda seed: mixture.GaussianMixture(n_clusters, random_state=seed),
        ),
    }
    for name, makes in makers.items():
        fits = [lambda seed, make=make: make(seed).fit(X) for make in makes]
        models = [make(0).fit(X) for make in makes]
        predictions = [lambda _, model=model: model.predict(X) for model in models]
        for what, calls, seeds in (("fit", fits, SEEDS), ("predict", predictions, SEEDS[:1])):
            ours, theirs = fastest(calls, seeds, seconds)
            size = f"{n_rows:,} × {n_columns}, k = {n_clusters}"
            print(f"| {size} | {name}.{what} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="for every line of the table")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"milliseconds, {options.threads} threads\n")
    print("| rows | | globular | scikit-learn | ratio |\n|---|---|---|---|---|")
    with threadpool_limits(options.threads):  # scikit-learn's; ours are an argument
        for size in SIZES:
            measure(*size, options.seconds, options.threads)


if __name__ == "__main__":
    main()
