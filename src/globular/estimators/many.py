"""Thousands of small k-means problems in one call, each of them solved whole by one thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from globular.algorithms.kmeans.few_rows import search_few_rows
from globular.algorithms.kmeans.line import optimum_on_line
from globular.algorithms.kmeans.pipeline import QUALITIES, PipelineOptions
from globular.algorithms.steps import result_of
from globular.data.blocks import working_dtype
from globular.estimators.checks import RandomState, generator, whole_number
from globular.estimators.inputs import Weights
from globular.estimators.validation import REAL_DTYPES, check_weights, naming
from globular.model.statistics import F64, Floats
from globular.passes.registry import shard_over
from globular.seam.center_passes import SeedFew
from globular.seam.passes import Assign, Labels
from globular.threads import map_all, resolve_threads

DRAWS_PER_SEED = 4
"""Rows of which the best becomes a seed; more = better seeds, which swaps mend anyway."""
LARGEST = 1e145
"""Larger values are refused: sums of their squares leave the range of float64."""


@dataclass(frozen=True, eq=False)
class ManyKMeans:
    """The clusters of many problems: arrays where all have one shape and number of clusters, else lists."""

    cluster_centers: Floats | list[Floats]
    """(n_problems, n_clusters, n_features), or an array for each problem; ascending where there is one column."""
    labels: Labels | list[Labels]
    """(n_problems, n_samples) int32, or an array for each problem: the closest centre of every row."""
    inertia: F64
    """(n_problems,), the sums of (weighted) squared distances of the rows to their centres."""


def fit_many(
    Xs: Any,
    n_clusters: Any,
    *,
    sample_weights: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
) -> ManyKMeans:
    """K-means on many small sets of rows at once, such as palettes for the layers of a network.

    Every problem is solved by one thread from beginning to end: seeds, iterations and swaps as in :class:`KMeans` with
    few rows, or the optimum where there is one column. Its random numbers come from `random_state` and its own place
    in `Xs`, so the other problems and the number of threads change nothing about it. Runs on the CPU.

    Parameters
    ----------
    Xs : array of shape (n_problems, n_samples, n_features), or a sequence of 2-D arrays
        The rows of every problem, in memory and dense.
    n_clusters : int or sequence of n_problems ints
        Clusters of every problem.
    sample_weights : array of shape (n_problems, n_samples) or sequence of 1-D arrays or None, optional
        Weights of the rows of every problem; None in a sequence is a problem without weights.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random.
    n_threads : int or None, default=None
        Threads; None is GLOBULAR_NUM_THREADS, OMP_NUM_THREADS or all cores.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import fit_many
    >>> layers = np.random.default_rng(0).normal(size=(1000, 64, 1))
    >>> found = fit_many(layers, 16)
    >>> found.cluster_centers.shape, found.labels.shape, found.inertia.shape
    ((1000, 16, 1), (1000, 64), (1000,))
    """
    if np.ndim(n_clusters) > 1 or (isinstance(Xs, np.ndarray) and Xs.ndim != 3) or len(Xs) == 0:
        raise ValueError(
            f"Xs must be an array (n_problems, n_samples, n_features) or a list of 2-D arrays, got {type(Xs).__name__}"
        )
    with naming("Xs"):
        if isinstance(Xs, np.ndarray):
            problems = list(check_array(Xs, dtype=REAL_DTYPES, allow_nd=True, input_name="Xs"))
        else:
            problems = [check_array(X, dtype=REAL_DTYPES, input_name=f"Xs[{i}]") for i, X in enumerate(Xs)]
    n = len(problems)
    numbers = list(n_clusters) if np.ndim(n_clusters) else [n_clusters] * n
    given = [None] * n if sample_weights is None else sample_weights
    if not len(numbers) == len(given) == n:
        raise ValueError(
            f"Xs holds {n} problems, n_clusters {len(numbers)} numbers and sample_weights {len(given)} entries; "
            "give one for each problem"
        )
    seed = int(generator(random_state).integers(2**63))

    def solve(i: int) -> tuple[Floats, Labels, float]:
        rows, k = problems[i], whole_number("n_clusters", numbers[i])
        if k > len(rows):
            raise ValueError(f"n_clusters={k} is more than the {len(rows)} rows of Xs[{i}]; ask for fewer")
        with naming(f"sample_weights[{i}]"):
            weights = Weights.of(check_weights(given[i], len(rows)), k)
        if rows.dtype == np.float64 and np.abs(rows).max() > LARGEST:
            raise ValueError(f"Xs[{i}] has values beyond {LARGEST:g}, whose squares overflow; scale it down")
        return _solve(rows, weights, k, np.random.default_rng((seed, i)))

    found = map_all(solve, range(n), resolve_threads(n_threads))
    centers, labels = [each[0] for each in found], [each[1] for each in found]
    inertia = np.array([each[2] for each in found])
    if len({(rows.shape, rows.dtype, k) for rows, k in zip(problems, numbers, strict=True)}) == 1:
        return ManyKMeans(np.stack(centers), np.stack(labels), inertia)
    return ManyKMeans(centers, labels, inertia)


def _solve(rows: NDArray[Any], weights: Weights, k: int, rng: np.random.Generator) -> tuple[Floats, Labels, float]:
    """Centres, labels and inertia of one problem."""
    shard = shard_over(rows if weights.rows is None else rows[weights.rows], weights.values)
    best = optimum_on_line(shard, k)
    if best is None:
        seeds = shard.run(SeedFew(rng.random((k, DRAWS_PER_SEED)))).indices
        start = shard.take(np.resize(seeds, k))  # some twice, if there are fewer distinct rows
        options = PipelineOptions(k, "exact")
        best = result_of(search_few_rows(shard, start, options.stepping, QUALITIES[options.quality].trials, rng))
    centers = best.model.astype(working_dtype(rows.dtype))
    inertia = shard.run(Assign(centers.astype(np.float64), want="labels")).objective * weights.unit
    if weights.rows is not None:  # rows of weight 0 have labels, too
        shard = shard_over(rows)
        shard.run(Assign(centers.astype(np.float64), want="labels"))
    return centers, np.asarray(shard.labels), inertia
