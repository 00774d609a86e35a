"""Infinite mixtures against what they are held to: python benchmarks/infinite.py densities|clusters|seconds [name …]

`densities`: held-out log-likelihood of a row beside that of EM (`GaussianMixture(algorithm="em")`, own start) with as
many components. `clusters`: how many clusters are found of how many. `seconds`: 1,000,000 overlapping rows.
Real sets are read from the folder named by GLOBULAR_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from globular import GaussianMixture, InfiniteGaussianMixture
from harness.data import real_array

F64 = NDArray[np.float64]
HELD_OUT = 0.2


def real(file: str, n_rows: int, n_components: int | None = None, columns: slice | None = None, key: str = "X") -> F64:
    """Some rows of a real set, projected to principal components if these are fewer."""
    X = real_array(file, key)
    X = X[np.random.default_rng(0).permutation(len(X))[:n_rows]].astype(np.float64)
    X = X if columns is None else X[:, columns]
    return X if n_components is None else PCA(n_components, random_state=0).fit_transform(X)


def overlapping(n_rows: int, k: int, n_columns: int, apart: float, seed: int = 0) -> tuple[F64, NDArray[np.int64]]:
    """Gaussians of any shape whose means are drawn so that neighbours are some deviations apart, and their labels."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(k, n_columns)) * apart
    shapes = rng.normal(size=(k, n_columns, n_columns)) * 0.5 + np.eye(n_columns)
    truth = rng.integers(k, size=n_rows)
    return means[truth] + np.einsum("nij,nj->ni", shapes[truth], rng.normal(size=(n_rows, n_columns))), truth


DENSITIES: dict[str, Callable[[], F64]] = {
    "digits": lambda: real("mnist/mnist.npz", 15_000, 30),
    "cells": lambda: real("flowsom_ff/flowsom_ff.npz", 19_225),
    "stars": lambda: real("hipparcos/hipparcos.npz", 20_000),
    "words": lambda: real("glove50/glove50_200k.npz", 20_000, 20),
    "places": lambda: real("geonames500/geonames500.npz", 30_000, key="xyz"),
    "generated": lambda: overlapping(20_000, 30, 5, 3.0)[0],
    "photos": lambda: real("sift_photos/sift_photos.npz", 15_000, 16),
    "forest": lambda: real("covtype/covtype.npz", 20_000, columns=slice(0, 10)),
}
"""The last two were not looked at while thresholds were chosen."""


def densities(names: list[str], seeds: int) -> Iterator[str]:
    """A line for every set and seed."""
    yield "| set | rows | columns | T | infinite | EM | difference | seconds | of EM |\n" + "|---" * 9 + "|"
    for name in names or DENSITIES:
        X = DENSITIES[name]()
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(X))
            n = int(HELD_OUT * len(X))
            held_out, rows = X[order[:n]], X[order[n:]]
            model, seconds = timed(InfiniteGaussianMixture(random_state=seed, n_threads=1), rows)
            T = model.n_components_
            em, em_seconds = timed(GaussianMixture(T, algorithm="em", random_state=seed, n_threads=1), rows)
            ours, theirs = model.score(held_out), em.score(held_out)
            yield (
                f"| {name} | {len(rows)} | {X.shape[1]} | {T} | {ours:.3f} | {theirs:.3f} | {ours - theirs:+.3f} "
                f"| {seconds:.1f} | {em_seconds:.1f} |"
            )


def odd(noise: Callable[[np.random.Generator, tuple[int, int]], F64], seed: int) -> tuple[F64, NDArray[np.int64]]:
    """Ten clusters in four columns, far apart, 10,000 rows."""
    rng = np.random.default_rng(seed)
    means, truth = rng.normal(size=(10, 4)) * 8.0, rng.integers(10, size=10_000)
    return means[truth] + noise(rng, (10_000, 4)), truth


def grid(rows_each: int, seed: int) -> tuple[F64, NDArray[np.int64]]:
    """10 × 10 clusters four deviations apart."""
    rng = np.random.default_rng(seed)
    means = 4.0 * np.stack(np.meshgrid(np.arange(10.0), np.arange(10.0)), axis=-1).reshape(100, 2)
    truth = np.repeat(np.arange(100), rows_each)
    return means[truth] + rng.normal(size=(len(truth), 2)), truth


CLUSTERS: dict[str, tuple[int, Callable[[int], tuple[F64, NDArray[np.int64]]]]] = {
    "t(4)": (10, lambda seed: odd(lambda rng, shape: rng.standard_t(4, size=shape) / np.sqrt(2), seed)),
    "uniform": (10, lambda seed: odd(lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), size=shape), seed)),
    "gamma": (10, lambda seed: odd(lambda rng, shape: (rng.gamma(1.5, size=shape) - 1.5) / np.sqrt(1.5), seed)),
    "overlapping": (12, lambda seed: overlapping(6000, 12, 5, 1.5, seed)),
    "grid-200": (100, lambda seed: grid(200, seed)),
    "grid-300": (100, lambda seed: grid(300, seed)),
    "grid-1000": (100, lambda seed: grid(1000, seed)),
}


def clusters(names: list[str], seeds: int) -> Iterator[str]:
    """A line for every case and seed."""
    yield "| case | true | clusters | components | ARI | ARI of EM from the truth | seconds |\n" + "|---" * 7 + "|"
    for name in names or CLUSTERS:
        k, make = CLUSTERS[name]
        for seed in range(seeds):
            rows, truth = make(seed)
            model, seconds = timed(InfiniteGaussianMixture(random_state=seed, n_threads=1), rows)
            means = np.array([rows[truth == c].mean(axis=0) for c in range(k)])
            best = GaussianMixture(k, algorithm="em", means_init=means, n_threads=1).fit(rows)
            yield (
                f"| {name} | {k} | {model.n_clusters_} | {model.n_components_} "
                f"| {adjusted_rand_score(truth, model.labels_):.3f} | {adjusted_rand_score(truth, best.labels_):.3f} "
                f"| {seconds:.1f} |"
            )


def many_rows(names: list[str], seeds: int) -> Iterator[str]:
    """A million rows of 20 overlapping clusters in five columns, with one thread (CPU seconds) and two (wall)."""
    yield "| threads | clusters | components | seconds |\n|---|---|---|---|"
    X, _ = overlapping(1_000_000, 20, 5, 1.7)
    InfiniteGaussianMixture(random_state=0).fit(X[:100_000])  # compiles
    for n_threads in (1, 2):
        started = time.perf_counter()
        model, cpu = timed(InfiniteGaussianMixture(random_state=0, n_threads=n_threads), X)
        seconds = cpu if n_threads == 1 else time.perf_counter() - started
        yield f"| {n_threads} | {model.n_clusters_} | {model.n_components_} | {seconds:.1f} |"


def timed(model: InfiniteGaussianMixture | GaussianMixture, rows: F64) -> tuple[InfiniteGaussianMixture, float]:
    """A fit and its CPU seconds."""
    started = time.process_time()
    model.fit(rows)
    return model, time.process_time() - started


def main() -> None:
    """Parse the command line and measure."""
    what = {"densities": densities, "clusters": clusters, "seconds": many_rows}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    for line in what[options.what](options.names, options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
