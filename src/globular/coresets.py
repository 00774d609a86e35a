"""Few weighted rows in place of many: what is fitted to a coreset is nearly what would be fitted to all rows.

A coreset is a sample in which every row has the inverse of its chance for a weight. So the error of any centres, or the
log-likelihood of any mixture, is on the coreset what it is on all rows, up to the noise of sampling. Chances are higher
for remote rows and, for mixtures, for rows of small groups, so that neither are missed. Then weights are calibrated
(:mod:`globular.algorithms.calibration`): groups of rows have the weight and the mean that they have among all rows, and
the noise is less. Every estimator takes a coreset as rows and `sample_weight`. Coresets of parts of the data, made
wherever the parts lie, are merged into one of all.

>>> import numpy as np
>>> from globular import KMeans, coresets
>>> X = np.random.default_rng(0).normal(size=(50_000, 2))
>>> part = coresets.coreset(X, 5000, random_state=0)
>>> model = KMeans(n_clusters=20, random_state=0).fit(part.rows, sample_weight=part.weights)
>>> bool(-model.score(X) < 1.03 * KMeans(n_clusters=20, random_state=0).fit(X).inertia_)
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator

from globular.algorithms.calibration import calibrated
from globular.algorithms.kmeans.coreset import draw_rows
from globular.algorithms.mixtures.coreset import draw_rows_of_groups
from globular.algorithms.seeding.common import DrawnRows
from globular.estimators.checks import Metric, RandomState, check_allocation, check_metric, generator, whole_number
from globular.estimators.inputs import mean_variance, open_input
from globular.model.statistics import F64

__all__ = ["Coreset", "coreset", "merge"]

Kind = Literal["k-means", "mixture"]
_DRAWS = {"k-means": draw_rows, "mixture": draw_rows_of_groups}


@dataclass(frozen=True, eq=False)
class Coreset:
    """Some rows, and what each of them stands for."""

    rows: Any
    """Distinct rows of the data as they are there: an array of shape (n, n_columns), or a CSR matrix."""
    weights: F64
    """What each of them stands for, in units of `sample_weight`, (n,): for `sample_weight` of every estimator. They add
    up to the weight of all rows."""
    indices: NDArray[np.int64] | None = None
    """The numbers of the rows in the data, ascending, (n,); None after a merger."""

    def __len__(self) -> int:
        return len(self.weights)


def coreset(
    X: Any,
    n_rows: int,
    *,
    kind: Kind = "k-means",
    sample_weight: Any = None,
    metric: Metric = "euclidean",
    random_state: RandomState = None,
    n_threads: int | None = None,
) -> Coreset:
    """Draw a coreset.

    Parameters
    ----------
    X : array-like, CSR matrix, data frame, Dask collection, source or path of shape (n_samples, n_columns)
        Rows larger than memory are read four times for "k-means", six times for "mixture", and stay where they are;
        those drawn come to memory. CSR matrices go with "k-means".
    n_rows : int
        How many draws: a few rows fewer, as some are drawn twice. X has no more rows: then it is its own coreset, and
        the weights are `sample_weight`.
    kind : {"k-means", "mixture"}, default="k-means"
        What shall be fitted. "k-means" draws half of the rows by weight and half by their squared distance from the
        mean of all, a lightweight coreset, whatever the number of clusters will be. "mixture" also puts rows into up to
        256 rough groups (one for 64 rows of the coreset), each of which has its share: components of few rows have
        enough of them for their covariances.
    sample_weight : array-like of shape (n_samples,), optional
        A row of weight 2 is drawn as two rows would be; one of weight 0 never.
    metric : {"euclidean", "cosine"}, default="euclidean"
        With the cosine rows count as scaled to unit length; those that come from files or workers are scaled.
    random_state : int, RandomState, Generator or None
    n_threads : int, optional
        All cores by default; the result does not depend on it.

    Returns
    -------
    Coreset

    Notes
    -----
    Centres fitted to m rows a cluster end about 1/m above the error that all rows would give, and up to 3/m where
    clusters overlap; a mixture of P parameters about P / 2n nats a row below the log-likelihood, with n rows. So 100 to
    300 rows a cluster cost one per cent of the error, 50 rows a parameter 0.01 nats.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import coresets
    >>> X = np.random.default_rng(0).normal(size=(10_000, 3))
    >>> X[:3] += 1000.0  # far off
    >>> part = coresets.coreset(X, 500, random_state=0)
    >>> part.indices[:3].tolist(), float(part.weights.sum().round(6))
    ([0, 1, 2], 10000.0)
    """
    if kind not in _DRAWS:
        raise ValueError(f'kind={kind!r} must be "k-means" or "mixture"')
    check_metric(metric)
    n = whole_number("n_rows", n_rows)
    data = open_input(
        BaseEstimator(), X, sample_weight, reset=True, unit_rows=metric == "cosine", accept_sparse=kind == "k-means",
        n_threads=n_threads,
    )  # fmt: skip
    rng = generator(random_state)
    if n >= data.n_rows:
        everyone = np.arange(data.n_rows)
        drawn = DrawnRows(everyone, np.asarray(data.shard.take(everyone, "weights")), np.ones_like(everyone))
    else:
        mean_variance(data)  # for its check
        drawn = calibrated(data.shard, _DRAWS[kind](data.shard, n, rng), rng)
    indices = np.asarray(drawn.indices, dtype=np.int64)
    numbers = indices if data.left_out is None else data.left_out.counted[indices]
    if data.matrix is not None:
        rows = data.matrix[indices]
    else:  # as passes see them, in float32 or float64
        check_allocation(8 * len(indices) * data.n_columns, "the rows of the coreset", "ask for fewer rows")
        rows = np.asarray(data.shard.take(indices), dtype=data.dtype)
    return Coreset(rows, np.asarray(drawn.weights) * data.unit, numbers)


def merge(
    coresets: Sequence[Coreset],
    n_rows: int | None = None,
    *,
    kind: Kind = "k-means",
    metric: Metric = "euclidean",
    random_state: RandomState = None,
    n_threads: int | None = None,
) -> Coreset:
    """One coreset for all the rows that several stand for: those of files, of partitions, of days.

    Parameters
    ----------
    coresets : sequence of Coreset
        Of the same columns.
    n_rows : int, optional
        Rows to draw anew, in proportion to their weights; by default all stay. Groups of what is drawn
        have the weight and the mean that they have in all the coresets, so these may be merged in any number of rounds;
        each adds its noise.
    kind, metric, random_state, n_threads
        As in `coreset`.

    Returns
    -------
    Coreset
        Without `indices`.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import coresets
    >>> days = np.random.default_rng(0).normal(size=(7, 5000, 3))
    >>> parts = [coresets.coreset(day, 500, random_state=number) for number, day in enumerate(days)]
    >>> week = coresets.merge(parts, 1000, random_state=0)
    >>> len(week) <= 1000, float(week.weights.sum().round(6))
    (True, 35000.0)
    """
    given = list(coresets)
    if not given:
        raise ValueError("coresets must not be empty; give one at least")
    for each in given:
        if not isinstance(each, Coreset):
            raise TypeError(f"coresets must hold what coreset() and merge() return, got {type(each).__name__}")
    widths = {each.rows.shape[1] for each in given}
    if len(widths) > 1:
        raise ValueError(f"coresets must have the same columns, got {' and '.join(map(str, sorted(widths)))} of them")
    if any(sparse.issparse(each.rows) for each in given):
        rows: Any = sparse.vstack([sparse.csr_array(each.rows) for each in given], format="csr")
    else:
        rows = np.concatenate([each.rows for each in given])
    weights = np.concatenate([each.weights for each in given])
    if n_rows is None:
        return Coreset(rows, weights)
    found = coreset(
        rows, n_rows, kind=kind, sample_weight=weights, metric=metric, random_state=random_state, n_threads=n_threads
    )
    return Coreset(found.rows, found.weights)
