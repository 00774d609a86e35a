"""Starting centres for clustering, as functions.

Every function takes rows in any form the estimators take (array, CSR matrix, memory map, source or path) and returns
centres in X's own precision. Results depend on `random_state` only, never on the number of threads. As long as X has
enough distinct rows (of positive weight) the centres are distinct.

>>> import numpy as np
>>> from globular import seeding
>>> X = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
>>> centers = seeding.kmeans_plus_plus(X, 50, random_state=0)
>>> centers.shape, centers.dtype
((50, 4), dtype('float32'))

Which one? Quality after seeding and time for C centres on N rows:

===================  ==========================  ============================================================
`random`             O(N)                        rows as they come; poor on uneven data
`kmeans_plus_plus`   O(N C D), matrix products   spreads the centres; `n_local_trials="greedy"` for small C
`afk_mc2`            O(N D + m C² D)             nearly k-means++; cheaper when C · chain_length < N
`kmeans_parallel`    O(N C D), few passes        nearly k-means++; for data that is expensive to read
`hierarchical`       O(N √C D)                   thousands of centres and more; also labels and neighbours
===================  ==========================  ============================================================
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from globular.algorithms import seeding as methods
from globular.algorithms.seeding import HierarchicalSeeds
from globular.algorithms.steps import result_of
from globular.estimators.checks import Metric, RandomState, check_metric, generator, positive_number, whole_number
from globular.estimators.inputs import Input, open_input

__all__ = ["HierarchicalSeeds", "afk_mc2", "hierarchical", "kmeans_parallel", "kmeans_plus_plus", "random"]

Floats = NDArray[np.floating[Any]]


def random(
    X: Any,
    n_clusters: int,
    *,
    sample_weight: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
    metric: Metric = "euclidean",
) -> Floats:
    """Distinct rows of X, drawn one after the other in proportion to their weights.

    Parameters
    ----------
    X : array-like, CSR matrix, source or path of shape (n_rows, n_columns)
    n_clusters : int
        How many centres, at most the number of rows.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows; a row of weight zero is never drawn.
    random_state : int, RandomState, Generator or None
    n_threads : int, optional
        All cores by default.
    metric : {"euclidean", "cosine"}
        With the cosine, rows count as scaled to unit length, and so are the centres.

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)

    Examples
    --------
    >>> import numpy as np
    >>> from globular import seeding
    >>> seeding.random(np.arange(12.0).reshape(6, 2), 3, random_state=0).shape
    (3, 2)
    """
    data = _open(X, n_clusters, sample_weight, n_threads, metric)
    return _cast(result_of(methods.random(data.shard, n_clusters, generator(random_state))), data)


def kmeans_plus_plus(
    X: Any,
    n_clusters: int,
    *,
    n_local_trials: int | Literal["greedy"] | None = None,
    sample_weight: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
    metric: Metric = "euclidean",
) -> Floats:
    """k-means++: each next centre is a row drawn in proportion to its squared distance to the centres so far.

    Parameters
    ----------
    X, n_clusters, sample_weight, random_state, n_threads, metric
        As in `random`, and so is what is returned.
    n_local_trials : int or "greedy", optional
        Rows tried for each centre, of which the one that lowers the error most is kept. None and 1 mean plain
        k-means++ in the distribution of its paper. "greedy" means 2 + log(n_clusters), scikit-learn's choice: better
        centres, but one pass over the rows for each of them.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import seeding
    >>> X = np.repeat([[0.0], [10.0], [20.0]], 5, axis=0)
    >>> sorted(seeding.kmeans_plus_plus(X, 3, random_state=0).ravel().tolist())
    [0.0, 10.0, 20.0]
    """
    data = _open(X, n_clusters, sample_weight, n_threads, metric)
    if n_local_trials is None:
        n_trials = 1
    elif n_local_trials == "greedy":
        n_trials = 2 + int(np.log(n_clusters))
    else:
        n_trials = whole_number("n_local_trials", n_local_trials, 'None, "greedy" or a whole number of at least 1')
    return _cast(result_of(methods.plus_plus(data.shard, n_clusters, generator(random_state), n_trials)), data)


def afk_mc2(
    X: Any,
    n_clusters: int,
    *,
    chain_length: int = 200,
    sample_weight: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
    metric: Metric = "euclidean",
) -> Floats:
    """AFK-MC²: approximate k-means++ by Markov chains, with a single pass over the rows.

    Parameters
    ----------
    X, n_clusters, sample_weight, random_state, n_threads, metric
        As in `random`, and so is what is returned.
    chain_length : int
        Rows proposed for each centre. Longer chains come closer to k-means++.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import seeding
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> seeding.afk_mc2(X, 20, chain_length=50, random_state=0).shape
    (20, 3)
    """
    data = _open(X, n_clusters, sample_weight, n_threads, metric)
    length = whole_number("chain_length", chain_length)
    return _cast(result_of(methods.afk_mc2(data.shard, n_clusters, generator(random_state), length)), data)


def kmeans_parallel(
    X: Any,
    n_clusters: int,
    *,
    n_rounds: int = 5,
    oversampling: float = 2.0,
    sample_weight: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
    metric: Metric = "euclidean",
) -> Floats:
    """k-means‖: a few rounds that draw many candidates each, then k-means++ on the weighted candidates.

    Parameters
    ----------
    X, n_clusters, sample_weight, random_state, n_threads, metric
        As in `random`, and so is what is returned.
    n_rounds : int
        Passes over the rows.
    oversampling : float
        Candidates drawn in every round, as a multiple of `n_clusters`.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import seeding
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> seeding.kmeans_parallel(X, 20, random_state=0).shape
    (20, 3)
    """
    data = _open(X, n_clusters, sample_weight, n_threads, metric)
    rounds = whole_number("n_rounds", n_rounds)
    factor = positive_number("oversampling", oversampling)
    seeds = result_of(methods.parallel(data.shard, n_clusters, generator(random_state), rounds, factor))
    return _cast(seeds, data)


def hierarchical(
    X: Any,
    n_clusters: int,
    *,
    n_neighbors: int = 16,
    sample_weight: Any = None,
    random_state: RandomState = None,
    n_threads: int | None = None,
    metric: Metric = "euclidean",
) -> HierarchicalSeeds:
    """Centres from a tree of cells: the seeding for thousands of clusters and more.

    Unlike the other methods it gives means of rows, and with them a label for every row (the closest centre within
    the row's own cell, usually but not always the closest of all) and a neighbourhood for every centre.

    Parameters
    ----------
    X, n_clusters, sample_weight, random_state, n_threads, metric
        As in `random`.
    n_neighbors : int
        Length of a centre's list of neighbours, itself included; at most `n_clusters` are given.

    Returns
    -------
    HierarchicalSeeds
        With `centers` (n_clusters, n_columns), `labels` (n_rows,) and `neighbors` (n_clusters, n_neighbors).

    Examples
    --------
    >>> import numpy as np
    >>> from globular import seeding
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> seeds = seeding.hierarchical(X, 100, n_neighbors=8, random_state=0)
    >>> seeds.centers.shape, seeds.labels.shape, seeds.neighbors.shape
    ((100, 3), (2000,), (100, 8))
    """
    data = _open(X, n_clusters, sample_weight, n_threads, metric)
    wanted = whole_number("n_neighbors", n_neighbors)
    steps = methods.hierarchical(
        data.shard, n_clusters, generator(random_state), wanted, unit_centers=metric == "cosine"
    )
    seeds = result_of(steps)
    labels = np.asarray(data.labels(lambda: seeds.centers))  # they may still be on workers
    return HierarchicalSeeds(_cast(seeds.centers, data), labels, seeds.neighbors)


def _open(X: Any, n_clusters: int, sample_weight: Any, n_threads: int | None, metric: str) -> Input:
    check_metric(metric)
    whole_number("n_clusters", n_clusters)
    data = open_input(
        BaseEstimator(), X, sample_weight, reset=True, unit_rows=metric == "cosine", n_threads=n_threads,
        at_least=n_clusters,
    )  # fmt: skip
    if n_clusters > data.n_rows:
        raise ValueError(f"n_clusters={n_clusters} must not exceed the number of rows of X, {data.n_rows}")
    return data


def _cast(centers: NDArray[Any], data: Input) -> Floats:
    return np.asarray(centers, dtype=data.dtype)
