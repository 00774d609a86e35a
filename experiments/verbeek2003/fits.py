"""What the figures share: data of a given separation, a k-means start, and both algorithms from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from globular import KMeans, datasets
from globular.algorithms.mixtures.chunky import CELLS_PER_COMPONENT, LEAF_SIZE, ChunkyModel, ChunkyOptions, chunky
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, em, start_from_means
from globular.algorithms.steps import Step
from globular.estimators.chunky_mixture import most_cells
from globular.model.covariances import OUTER
from globular.model.gaussian import GaussianParameters
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from globular.seam.tree_passes import Plant

Rows = NDArray[np.float64]
Result = TypeVar("Result")
MOST_ROWS = 160_000
"""Of a sweep over N."""


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
    """One data set; with more rows it is the same one and more, so that sweeps over N change N alone."""
    n_drawn = max(problem.N, MOST_ROWS) + problem.n_test
    data = datasets.separated_mixture(n_drawn, problem.k, problem.d, separation=problem.c, random_state=seed)
    assert data.weights is not None and data.centers is not None and data.covariances is not None
    generator = GaussianParameters(data.weights, data.centers, data.covariances, "full")
    return Sample(np.asarray(data.X[: problem.N]), np.asarray(data.X[-problem.n_test :]), generator)


def kmeans_start(rows: Rows, k: int, seed: int) -> GaussianParameters:
    """A mixture from a k-means clustering, for both algorithms alike."""
    centers = KMeans(k, algorithm="lloyd", random_state=seed).fit(rows).cluster_centers_
    return start_from_means(CpuShard(rows), np.asarray(centers, dtype=np.float64), "full", EMOptions())


def loss(mixture: GaussianParameters, rows: Rows) -> float:
    """Mean negative log-likelihood."""
    return -CpuShard(rows).run(Expect(mixture)).log_likelihood / len(rows)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both algorithms on one data set, from one start."""

    em_operations: int
    """Densities of a row under a component."""
    chunky_operations: int
    """Densities of a cell, or of one it might be opened into, under a component."""
    em_seconds: float
    """Processor time of all steps."""
    chunky_seconds: float
    """The same, without the tree …"""
    tree_seconds: float
    """… which takes this in addition."""
    em_iterations: int
    chunky_iterations: int
    n_cells: int
    em_loss: float
    """Mean negative log-likelihood of a test row."""
    chunky_loss: float
    generator_loss: float

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 6) for name, value in asdict(self).items()}


def compare(problem: Problem, seed: int, *, tol: float = 1e-3) -> Comparison:
    """One data set, both algorithms as `GaussianMixture` and `ChunkyGaussianMixture` run them by themselves."""
    sample = draw(problem, seed)
    start = kmeans_start(sample.rows, problem.k, seed)
    shard = CpuShard(sample.rows)
    exact, em_seconds = _timed(lambda: list(em(shard, start, EMOptions(max_iter=1000, tol=tol))))
    largest = problem.N / (CELLS_PER_COMPONENT * problem.k)
    _, tree_seconds = _timed(lambda: CpuShard(sample.rows).run(Plant(OUTER, LEAF_SIZE)))
    options = ChunkyOptions(tol=tol, max_cells=most_cells(problem.N, problem.k), polish="needed")
    limits = covariance_limits(shard, EMOptions())

    def refine() -> list[Step[ChunkyModel]]:
        shard.run(Plant(OUTER, LEAF_SIZE, largest=largest))  # it stands: this lays the first cells
        return list(chunky(shard, start, options, np.random.default_rng(seed), limits=limits))

    refine()
    cells, seconds = _timed(refine)
    return Comparison(
        sum(step.n_distances for step in exact),
        sum(step.n_distances for step in cells),
        em_seconds,
        seconds,
        tree_seconds,
        len(exact),
        len(cells),
        cells[-1].model.n_cells,
        loss(exact[-1].model, sample.test),
        loss(cells[-1].model.mixture, sample.test),
        loss(sample.generator, sample.test),
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What it gives, and the processor time of the fastest of three runs."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return result, min(seconds)
