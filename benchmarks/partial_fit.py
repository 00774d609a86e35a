"""Streams of NestedMiniBatchKMeans beside MiniBatchKMeans: python benchmarks/partial_fit.py [part of a name …]

Every stream is read once by partial_fit of both, with default settings, in one thread. Printed is the mean squared
distance of all rows from their closest centre at the end (for drifting streams, of the rows that would come next) as a
ratio to scikit-learn's, one per seed, and the processor seconds of both. Kernels are compiled before. Real data are
looked for in the folder named by GLOBULAR_DATA; sets that are not found are said and left out. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import pairwise_distances_argmin_min
from threadpoolctl import threadpool_limits

from globular import NestedMiniBatchKMeans
from globular.datasets import many_blobs
from globular.errors import DataError
from harness.data import real_array

Rows = NDArray[np.float32]
JUDGED_BATCHES = 4
"""Batches of a drifting stream that come after it, and are not learned from."""


@dataclass(frozen=True)
class Stream:
    """What comes, in batches of how many rows, into how many clusters."""

    n_clusters: int
    batch_rows: int
    make: Callable[[int], Rows]
    """The rows in their order, for a seed."""
    drifts: bool = False


def apart(n: int, k: int, seed: int, *, D: int = 64, center_std: float = 4.0, unevenness: float = 0.0) -> Rows:
    data = many_blobs(n, k, D, center_std=center_std, unevenness=unevenness, random_state=100 + seed)
    return data.X


def by_cluster(n: int, k: int, seed: int) -> Rows:
    data = many_blobs(n, k, 32, random_state=100 + seed)
    return data.X[np.argsort(data.y, kind="stable")]


def drifting(n: int, k: int, batch_rows: int, seed: int) -> Rows:
    """Centres go 0.15 standard deviations a batch, each in a direction of its own."""
    random = np.random.default_rng(seed)
    centers, speeds = 4.0 * random.normal(size=(k, 32)), 0.15 * random.normal(size=(k, 32))
    y, when = random.integers(k, size=n), np.arange(n) // batch_rows
    return (centers[y] + when[:, None] * speeds[y] + random.normal(size=(n, 32))).astype(np.float32)


def one_group(n: int, D: int, seed: int) -> Rows:
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def real(file: str, n: int, seed: int) -> Rows:
    X = real_array(file)
    return X[np.random.default_rng(seed).permutation(len(X))[:n]].astype(np.float32)


GLOVE, SIFT, MNIST = "glove50/glove50_200k.npz", "sift_photos/sift_photos.npz", "mnist/mnist.npz"
STREAMS = {
    "blobs apart, k = 50, batches of 1,000": Stream(50, 1000, partial(apart, 100_000, 50)),
    "blobs apart, k = 50, batches of 5,000": Stream(50, 5000, partial(apart, 100_000, 50)),
    "blobs apart, k = 500, batches of 1,000": Stream(500, 1000, partial(apart, 100_000, 500)),
    "blobs apart, k = 500, batches of 5,000": Stream(500, 5000, partial(apart, 100_000, 500)),
    "blobs apart, k = 2,000, batches of 2,500": Stream(2000, 2500, partial(apart, 200_000, 2000)),
    "blobs apart, k = 2,000, batches of 5,000": Stream(2000, 5000, partial(apart, 200_000, 2000)),
    "uneven blobs, k = 500": Stream(500, 5000, partial(apart, 100_000, 500, unevenness=1.0)),
    "blobs that overlap, k = 500": Stream(500, 5000, partial(apart, 100_000, 500, center_std=0.5)),
    "1,000 blobs, k = 500": Stream(500, 5000, partial(apart, 100_000, 1000)),
    "250 blobs, k = 500": Stream(500, 5000, partial(apart, 100_000, 250)),
    "200 blobs in the plane, k = 200": Stream(200, 2000, partial(apart, 60_000, 200, D=2, center_std=30.0)),
    "one normal group in 4 columns, k = 50, batches of 1,000": Stream(50, 1000, partial(one_group, 40_000, 4)),
    "one normal group in 16 columns, k = 100, batches of 1,000": Stream(100, 1000, partial(one_group, 40_000, 16)),
    "first batch about k: blobs, k = 500, batches of 550": Stream(500, 550, partial(apart, 55_000, 500)),
    "first batch about k: GloVe, k = 500, batches of 550": Stream(500, 550, partial(real, GLOVE, 55_000)),
    "GloVe, k = 500, batches of 1,000": Stream(500, 1000, partial(real, GLOVE, 100_000)),
    "GloVe, k = 500, batches of 5,000": Stream(500, 5000, partial(real, GLOVE, 200_000)),
    "SIFT, k = 500, batches of 5,000": Stream(500, 5000, partial(real, SIFT, 150_000)),
    "SIFT, k = 2,000, batches of 5,000": Stream(2000, 5000, partial(real, SIFT, 150_000)),
    "MNIST, k = 100, batches of 2,000": Stream(100, 2000, partial(real, MNIST, 70_000)),
    "drifting, k = 100, batches of 2,000": Stream(100, 2000, partial(drifting, 88_000, 100, 2000), drifts=True),
    "drifting, k = 500, batches of 5,000": Stream(500, 5000, partial(drifting, 120_000, 500, 5000), drifts=True),
    "sorted by cluster, k = 100, batches of 2,000": Stream(100, 2000, partial(by_cluster, 60_000, 100)),
    "sorted by cluster, k = 500, batches of 5,000": Stream(500, 5000, partial(by_cluster, 100_000, 500)),
}


def read_once(model: Any, stream: Stream, X: Rows) -> tuple[float, float]:
    """Error and processor seconds of a model that is shown a stream."""
    n_read = len(X) - (JUDGED_BATCHES * stream.batch_rows if stream.drifts else 0)
    begin = time.process_time()
    for first in range(0, n_read, stream.batch_rows):
        model.partial_fit(X[first : first + stream.batch_rows])
    seconds = time.process_time() - begin
    judged = X[n_read:] if stream.drifts else X
    closest = [pairwise_distances_argmin_min(part, model.cluster_centers_)[1] for part in np.array_split(judged, 20)]
    return float(np.mean(np.concatenate(closest).astype(np.float64) ** 2)), seconds


def compare(name: str, stream: Stream, n_seeds: int) -> list[float]:
    """Print a row of the table."""
    ratios, seconds = [], []
    for seed in range(n_seeds):
        X, k = stream.make(seed), stream.n_clusters
        ours = read_once(NestedMiniBatchKMeans(k, random_state=seed, n_threads=1), stream, X)
        theirs = read_once(MiniBatchKMeans(k, random_state=seed), stream, X)
        ratios.append(ours[0] / theirs[0])
        seconds.append((ours[1], theirs[1]))
    means = np.mean(seconds, axis=0)
    print(f"| {name} | {', '.join(f'{ratio:.3f}' for ratio in ratios)} | {means[0]:.2f}, {means[1]:.2f} |", flush=True)
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""], help="parts of the names of streams")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    every: list[float] = []
    with threadpool_limits(1):
        for k, D in ((20, 2), (20, 64), (1000, 64)):  # kernels
            read_once(NestedMiniBatchKMeans(k, n_threads=1), Stream(k, 2000, apart), apart(4000, k, 0, D=D))
        print("| stream | error beside scikit-learn's | processor seconds, ours and theirs |\n|---|---|---|")
        for name, stream in STREAMS.items():
            if any(part in name for part in given.names):
                try:
                    every += compare(name, stream, given.seeds)
                except DataError as error:
                    print(f"{name}: {error}")
    print(f"mean {np.mean(every):.3f}, highest {max(every):.4f}")
