"""From what a user hands over to a shard: opened, validated, without rows of weight 0, and where passes can see it.

Arrays and sparse matrices are used where they lie; float16, integers and Fortran order are converted block by block
inside the passes. Files are read whole if they fit comfortably into memory and streamed otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted

from globular import machine
from globular.algorithms.mixtures.missing import IncompleteRows
from globular.data.blocks import Source, working_dtype
from globular.data.columns import reading
from globular.data.open import Given, counting_column, is_collection, tell
from globular.data.sources import choose_rows
from globular.errors import DataError, DeviceError
from globular.estimators.devices import device_for, lies_on_card
from globular.estimators.distributed import sample_of
from globular.estimators.running import warn_user
from globular.estimators.validation import check_weights, has_columns_of, validated
from globular.estimators.weights import ORDINARY, LeftOut, Weights
from globular.model.statistics import F64
from globular.passes.dask.opening import are_on_workers, open_on_workers
from globular.passes.registry import check_card_memory, rows_on_card, shard_on_card, shard_over
from globular.seam.passes import Labels
from globular.seam.shard import Shard
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

SMALLEST_VARIANCE = 2.0**-912
"""Rows that differ by less are refused: squares of differences as small as the rounding of a mean would vanish."""
FIRST = np.zeros(1, dtype=np.intp)
"""The row by which rows that stay elsewhere are validated."""
ROWS_LOOKED_AT = 10_000
"""Rows by which it is told that a column numbers them."""
MEMORY_SHARE = 0.25
"""Files and memory maps up to this share of the machine's memory are read whole."""


@dataclass(frozen=True, slots=True)
class Input:
    """Validated input of a fit or a prediction."""

    shard: Shard
    dtype: np.dtype[Any]
    """float32 or float64: the type of fitted attributes."""
    n_rows: int
    n_columns: int
    matrix: Any = None
    """The rows of the shard, where they lie in memory (for callables that want an array); else None."""
    left_out: LeftOut | None = None
    """Rows of weight 0, which the shard has not."""
    unit: float = 1.0
    """What a unit of the shard's weights is in those of the user."""
    is_streamed: bool = False
    """Whether rows are read anew for every pass, here or on workers, since memory is short."""
    incomplete: IncompleteRows | None = None
    """The rows as they were given, where some entries are not known; the shard has these filled in."""

    def labels(self, centers: F64, *, exact: bool = False) -> Labels:
        """The labels of all rows that were given: those of the shard, and the closest centre of those left out."""
        labels = np.asarray(self.shard.labels)
        return labels if self.left_out is None else self.left_out.join(labels, centers, exact=exact)

    def answers(self, label: Callable[[Shard], Labels]) -> Labels:
        """What a function of a shard says of all rows that were given, those left out too."""
        found = label(self.shard)
        if self.left_out is None:
            return found
        return self.left_out.in_order(found, label(self.left_out.open_rows(self.left_out.rows)))


def open_input(
    estimator: Any,
    X: Any,
    sample_weight: Any = None,
    *,
    reset: bool,
    unit_rows: bool = False,
    accept_sparse: bool = True,
    n_threads: int | None = None,
    at_least: int = 1,
    are_counts: bool = False,
) -> Input:
    """Validate X (and weights) and put a shard over the rows that count. `reset` is True in fit, False in predict.

    `at_least` is the number of rows that a fit needs, `are_counts` says that weights are numbers of rows; see
    `Weights.of`.
    """
    if not reset and "n_features_in_" not in vars(estimator):
        check_is_fitted(estimator)
    device = device_for(estimator, X)
    if device != "cpu":
        return _open_on_card(estimator, X, sample_weight, device, reset, unit_rows, n_threads, at_least)
    given = tell(X)
    source = given.open()
    check = partial(validated, estimator, source=source, reset=reset, accept_sparse=accept_sparse, n_threads=n_threads)
    if are_on_workers(given):
        check(sample_of(X) if source is None else source.take(FIRST))
        return _open_on_workers(estimator, given, sample_weight, unit_rows, n_threads)
    if source is None or _fits(source):
        matrix = rows = check(given.value if source is None else source.whole())
        n_rows = matrix.shape[0]
    else:
        check(source.take(FIRST))
        matrix, rows, n_rows = None, source, source.n_rows
        logger.info("%s: streamed", source.name)
    if reset and "feature_names_in_" in vars(estimator):
        _warn_of_ids(estimator, rows if matrix is None else matrix)
    weights = Weights.of(check_weights(sample_weight, n_rows), at_least, are_counts=are_counts)
    over = partial(shard_over, unit_rows=unit_rows, n_threads=resolve_threads(n_threads))
    left_out = weights.left_out(lambda numbers: over(choose_rows(rows, numbers)))
    counted = choose_rows(rows, weights.rows)
    shard = over(counted, weights.values)
    return Input(
        shard, working_dtype(rows.dtype), shard.n_rows, shard.n_columns, None if matrix is None else counted, left_out,
        weights.unit, is_streamed=matrix is None,
    )  # fmt: skip


def open_incomplete(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Rows in memory in which NaN stands for a value that is not known, (N, D), validated otherwise as all are.

    They are float32 where they are given so.
    """
    if lies_on_card(X):
        raise DeviceError("X: rows with missing values are not worked on by GPUs; pass X as an array of NumPy")
    given = tell(X)
    if given.kind == "collection":
        raise TypeError("X: rows with missing values are fitted in memory; pass X.compute()")
    source = given.open()
    rows = validated(
        estimator, given.value if source is None else source.whole(), source, reset=reset, accept_sparse=False,
        n_threads=estimator.n_threads, missing=True,
    )  # fmt: skip
    return np.asarray(rows, dtype=np.float32 if rows.dtype == np.float32 else np.float64)


def _warn_of_ids(estimator: Any, rows: Any) -> None:
    """A column that numbers the rows is no coordinate, and would outweigh all others."""
    remedy = reading(rows.name if isinstance(rows, Source) else "X")
    if isinstance(rows, Source):
        rows = rows.take(np.arange(min(rows.n_rows, ROWS_LOOKED_AT)))
    first = rows[:ROWS_LOOKED_AT]
    name = None if sparse.issparse(first) else counting_column(estimator.feature_names_in_, first)
    if name is not None:
        warn_user(
            f"X: column {name!r} numbers the rows and counts as a coordinate here; leave it out unless that is meant, "
            f"by {remedy}",
            UserWarning,
        )


def _open_on_card(
    estimator: Any,
    X: Any,
    sample_weight: Any,
    device: str,
    reset: bool,
    unit_rows: bool,
    n_threads: int | None,
    at_least: int,
) -> Input:
    """A shard on a card over a tensor there, an array or files, which are read block by block."""
    needed = at_least, estimator._card_bytes_per_row
    if not lies_on_card(X):
        given = tell(X)
        source = given.open()
        if are_on_workers(given):
            raise DeviceError(f"device={device!r}: rows on Dask workers stay there; leave device='auto'")
        checked = validated(
            estimator, given.value if source is None else source.take(FIRST), source, reset=reset, accept_sparse=False,
            n_threads=n_threads,
        )  # fmt: skip
        rows = rows_on_card(checked if source is None else source, device, *needed)
    else:
        rows = rows_on_card(X, device, *needed)
        if not has_columns_of(estimator, rows, reset=reset):
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input"
            )
    if hasattr(sample_weight, "cpu"):
        sample_weight = sample_weight.cpu().numpy()
    n_rows = rows.n_rows if isinstance(rows, Source) else len(rows)
    weights = Weights.of(check_weights(sample_weight, n_rows), at_least)
    over = partial(shard_on_card, device=device, unit_rows=unit_rows)
    shard = over(choose_rows(rows, weights.rows), weights.values)
    if reset:
        check_card_memory(shard, *needed)
    left_out = weights.left_out(lambda numbers: over(choose_rows(rows, numbers), None))
    return Input(shard, shard.dtype, shard.n_rows, shard.n_columns, left_out=left_out, unit=weights.unit)


def _fits(source: Source) -> bool:
    size = source.n_rows * source.n_columns * source.dtype.itemsize
    return source.in_memory or source.is_sparse or size <= MEMORY_SHARE * machine.physical_memory()


def _open_on_workers(estimator: Any, given: Given, sample_weight: Any, unit_rows: bool, n_threads: int | None) -> Input:
    """A shard on Dask workers over a collection or files; weights may be a collection or an array."""
    lazy = sample_weight if given.kind == "collection" and is_collection(sample_weight) else None
    weights = None if lazy is not None or sample_weight is None else check_weights(sample_weight, len(sample_weight))
    labelled = isinstance(estimator, ClusterMixin)  # mixtures ask their rows for no labels
    shard = open_on_workers(given, weights, lazy, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads)
    if shard.n_rows == 0:
        raise DataError("X: 0 sample(s) in all partitions together while a minimum of 1 is required.")
    if not shard.total_weight > 0:
        raise ValueError("sample_weight is zero everywhere; at least one row must count")
    if not ORDINARY[0] <= shard.total_weight <= ORDINARY[1]:
        raise ValueError(f"sample_weight adds up to {shard.total_weight:.3g}; on Dask scale it to about 1 per row")
    return Input(
        shard, working_dtype(shard.dtype), shard.n_rows, shard.n_columns, is_streamed="rows that stay" in shard.lacks
    )


def mean_variance(data: Input) -> float:
    """Mean variance of the columns; an error if squares leave the range of float64: no distance means anything then."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        means, variances = data.shard.column_moments()
        spread = float(variances.sum())
    variance = spread / len(variances)
    if not math.isfinite(variance):
        raise ValueError("X has values too large for float64: their squares overflow; scale X down")
    if not math.isfinite(spread * data.shard.total_weight * data.unit):
        raise ValueError("sample_weight times the squares of X overflows in float64; scale sample_weight or X down")
    if variance < SMALLEST_VARIANCE and not _is_constant(data.shard, means):
        raise ValueError(
            "X has values too close to each other for float64: squares of their differences underflow; "
            "scale X up by a power of two, so that nothing is lost and nothing overflows"
        )
    return variance


def _is_constant(shard: Shard, means: F64) -> bool:
    """Whether all rows that have a weight are the same; only for rows whose variance says nothing."""
    first = shard.take(shard.locate(np.zeros(1), "weights"))
    return bool((np.abs(first - means) <= 1e-12 * np.abs(means)).all())
