"""What the figures share: data of a given separation, a k-means start, and both algorithms from it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from globular import ChunkyGaussianMixture, GaussianMixture, KMeans, datasets
from globular.algorithms.em import EMOptions, start_from_means
from globular.backends.cpu import CpuShard
from globular.model.gaussian import GaussianParameters

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """A random mixture as in the paper, N rows to learn from and others to test on."""

    N: int = 10_000
    d: int = 2
    k: int = 10
    c: float = 3.0
    n_test: int = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows drawn from a generating mixture."""

    rows: Rows
    test: Rows
    generator: GaussianParameters


def draw(problem: Problem, seed: int) -> Sample:
    """One data set."""
    data = datasets.separated_mixture(
        problem.N + problem.n_test, problem.k, problem.d, separation=problem.c, random_state=seed
    )
    assert data.weights is not None and data.centers is not None and data.covariances is not None
    generator = GaussianParameters(data.weights, data.centers, data.covariances, "full")
    return Sample(np.asarray(data.X[: problem.N]), np.asarray(data.X[problem.N :]), generator)


def kmeans_start(rows: Rows, k: int, seed: int) -> GaussianParameters:
    """A mixture from a k-means clustering, for both algorithms alike."""
    centers = KMeans(k, algorithm="lloyd", random_state=seed).fit(rows).cluster_centers_
    return start_from_means(CpuShard(rows), np.asarray(centers, dtype=np.float64), "full", EMOptions())


def loss(mixture: GaussianParameters, rows: Rows) -> float:
    """Mean negative log-likelihood."""
    return -CpuShard(rows).soft_pass(mixture).log_likelihood / len(rows)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both algorithms on one data set, from one start."""

    em_operations: int
    """Densities of a row under a component."""
    chunky_operations: int
    """Densities of a cell, or of one it might be opened into, under a component."""
    em_seconds: float
    """Processor time."""
    chunky_seconds: float
    """The same, the tree included."""
    em_iterations: int
    chunky_iterations: int
    n_cells: int
    em_loss: float
    """Mean negative log-likelihood of a test row."""
    chunky_loss: float
    generator_loss: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def compare(problem: Problem, seed: int) -> Comparison:
    """One data set, both algorithms with their usual settings."""
    sample = draw(problem, seed)
    start = kmeans_start(sample.rows, problem.k, seed)
    given = {"weights_init": start.weights, "means_init": start.means, "precisions_init": start.precisions}
    began = time.process_time()
    em = GaussianMixture(problem.k, algorithm="em", max_iter=1000, n_threads=1, **given).fit(sample.rows)
    between = time.process_time()
    chunky = ChunkyGaussianMixture(problem.k, random_state=seed, n_threads=1, **given).fit(sample.rows)
    ended = time.process_time()
    return Comparison(
        em.n_distances_,
        chunky.n_distances_,
        between - began,
        ended - between,
        em.n_iter_,
        chunky.n_iter_,
        chunky.n_cells_,
        -em.score(sample.test),
        -chunky.score(sample.test),
        loss(sample.generator, sample.test),
    )
