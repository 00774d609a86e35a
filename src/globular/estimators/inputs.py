"""From what a user hands over to a shard: opened, validated, without rows of weight 0, and where passes can see it.

Arrays and sparse matrices are used where they lie; float16, integers and Fortran order are converted block by block
inside the passes. Files are read whole if they fit comfortably into memory and streamed otherwise.

Rows of weight 0 are no rows. They are left out before there is a shard, and so have no part in anything: not in sums,
samples, thresholds by the number of rows, ranges of columns or cells of a tree. What a fit finds is what it finds in
the other rows alone; where rows have labels, those left out get theirs from the centres.

Weights far from one are counted in a unit of their own, a power of two, so that squares of sums of them neither
overflow nor vanish. Nothing is rounded by that; sums that are told to the user are told in the user's unit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular import machine
from globular.algorithms.kmeans.probing import find_labels
from globular.algorithms.mixtures.missing import IncompleteRows
from globular.data.blocks import Source, reading, working_dtype
from globular.data.open import GivenRows, counting_column, is_collection, tell
from globular.data.sources import ArraySource, choose_rows
from globular.errors import DataError, DeviceError
from globular.estimators.elsewhere import device_for, lies_on_card, sample_of
from globular.estimators.running import warn_user
from globular.estimators.validation import check_weights, has_columns_of, validated
from globular.model.statistics import F64
from globular.passes.dask import are_on_workers, open_on_workers
from globular.passes.registry import Card, cards, shard_over
from globular.seam.among import Need
from globular.seam.passes import Assign, Index, Labels
from globular.seam.shard import Shard
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

ORDINARY = 2.0**-64, 2.0**64
"""Where the largest weight lies between these the unit is one."""
TOTALS = 2.0**-1022, 2.0**1000
"""The least and the most that all weights may add up to."""
EXACT_BELOW = 500
"""Number of centres from which rows left out may look at the centres of a few cells alone."""
SMALLEST_VARIANCE = 2.0**-912
"""Rows that differ by less are refused: squares of differences as small as the rounding of a mean would vanish."""
FIRST = np.zeros(1, dtype=np.intp)
"""The row by which rows that stay elsewhere are validated."""
ROWS_LOOKED_AT = 10_000
"""Rows by which it is told that a column numbers them."""
MEMORY_SHARE = 0.25
"""Files and memory maps up to this share of the machine's memory are read whole."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rows of weight 0."""

    rows: Index
    """Their numbers in X."""
    counted: Index
    """Those of the rows that a fit is made on."""
    open_rows: Callable[[Index], Shard]
    """A shard over rows of these numbers."""

    def join(self, labels: Labels, centers: F64, *, exact: bool) -> Labels:
        """The labels of all rows of X, from those of the rows that count; the others take the closest centre."""
        shard = self.open_rows(self.rows)
        if exact or len(centers) < EXACT_BELOW:
            shard.run(Assign(centers, want="labels"))
        else:
            find_labels(shard, centers, np.random.default_rng(0))
        return self.in_order(labels, shard.labels)

    def in_order(self, counted: Labels, others: Labels) -> Labels:
        """Labels of the rows that count and of the others, in the order of X."""
        joined = np.empty(1 + max(self.rows[-1], self.counted[-1]), dtype=np.int32)
        joined[self.rows], joined[self.counted] = others, counted
        return joined


@dataclass(frozen=True, slots=True)
class Weights:
    """Checked sample weights."""

    values: F64 | None
    """In units of `unit`, of the rows that count; None where all count alike."""
    unit: float = 1.0
    rows: Index | None = None
    """The numbers of the rows that count, ascending; None where these are all."""
    zeros: Index | None = None
    """Those of the others."""

    @classmethod
    def of(cls, given: F64 | None, at_least: int = 1, *, are_counts: bool = False, keep_zeros: bool = False) -> Weights:
        """From weights that are at least 0, and not all 0; those that are numbers of rows have the unit one.

        Where fewer rows than `at_least` count, though X has more, they are repeated and the copies share the weight:
        what wants more clusters than there are rows wants clusters of equal rows. With `keep_zeros` all rows count.
        """
        if given is None:
            return cls(None)
        weights, unit = given, 1.0
        if not are_counts:
            with np.errstate(over="ignore"):
                total = float(given.sum())
            if not TOTALS[0] <= total <= TOTALS[1]:
                raise ValueError(
                    f"sample_weight adds up to {total:.3g}, beyond what float64 can count; scale it to about 1 per row"
                )
            if not ORDINARY[0] <= (largest := float(given.max())) <= ORDINARY[1]:
                exponent = int(np.frexp(largest)[1]) - 1
                weights, unit = np.ldexp(given, -exponent), float(np.ldexp(1.0, exponent))
        if keep_zeros or (weights > 0).all():
            return cls(weights, unit)
        rows, zeros = np.flatnonzero(weights > 0), np.flatnonzero(weights == 0)
        wanted = min(at_least, len(weights))
        if len(rows) < wanted:
            rows = np.sort(np.resize(rows, wanted))
            weights = weights / np.bincount(rows, minlength=len(weights)).clip(min=1)
        return cls(weights[rows], unit, rows, zeros)

    def left_out(self, open_rows: Callable[[Index], Shard]) -> LeftOut | None:
        """The rows that do not count, opened by a function of their numbers when they are wanted."""
        return None if self.rows is None or self.zeros is None else LeftOut(self.zeros, self.rows, open_rows)


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

    def labels(self, centers: Callable[[], F64], *, exact: bool = False) -> Labels:
        """The labels of all rows that were given: those of the shard, and the closest centre of those left out."""
        labels = np.asarray(self.shard.labels)
        return labels if self.left_out is None else self.left_out.join(labels, centers(), exact=exact)

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
    keep_zeros: bool = False,
) -> Input:
    """Validate X (and weights) and put a shard over the rows that count. `reset` is True in fit, False in predict.

    `at_least` is the number of rows that a fit needs, `are_counts` says that weights are numbers of rows, `keep_zeros`
    that rows of weight 0 count, too; see `Weights.of`.
    """
    if not (reset or estimator.__sklearn_is_fitted__()):
        check_is_fitted(estimator)
    device = device_for(estimator, X)
    on_card = device != "cpu"
    threads = 1 if on_card else resolve_threads(n_threads)

    card = Card(device, estimator._centers_on_card(at_least), estimator._card_bytes_per_row, reset) if on_card else None

    def over(counted: Any, values: F64 | None, card: Card | None) -> Any:
        return shard_over(counted, values, unit_rows=unit_rows, n_threads=threads, card=card)

    # NumPy has no bfloat16: on the way to a card a tensor stays one
    is_tensor = lies_on_card(X) or (on_card and str(getattr(X, "dtype", "")) == "torch.bfloat16")
    given = None if is_tensor else tell(X)
    source = None if given is None else given.open()
    accept_sparse &= not on_card
    check = partial(validated, estimator, source=source, reset=reset, accept_sparse=accept_sparse, n_threads=n_threads)
    if given is None:
        rows = X
    elif are_on_workers(given):
        check(sample_of(X) if source is None else source.take(FIRST))
        labelled = keep_zeros or isinstance(estimator, ClusterMixin)  # mixtures ask their rows for no labels
        return _open_on_workers(given, sample_weight, unit_rows, labelled, n_threads, card)
    elif source is None or (_fits(source) and not on_card):
        rows = check(given.value if source is None else source.whole())
    else:
        check(source.take(FIRST))
        rows = source
    in_memory = not (on_card or isinstance(rows, Source))
    if on_card:
        rows = cards().rows_for_cards(rows)
        if given is None and not has_columns_of(estimator, rows, reset=reset):
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input"
            )
        sample_weight = sample_weight.cpu().numpy() if hasattr(sample_weight, "cpu") else sample_weight
    else:
        if not in_memory:
            logger.info("%s: streamed", rows.name)
        if reset and "feature_names_in_" in vars(estimator):
            _warn_of_ids(estimator, rows)
    n_rows = rows.n_rows if isinstance(rows, Source) else rows.shape[0]
    checked = check_weights(sample_weight, n_rows)
    weights = Weights.of(checked, at_least, are_counts=are_counts, keep_zeros=keep_zeros)
    counted = choose_rows(rows, weights.rows)
    shard = over(counted, weights.values, card)
    aside = None if card is None else replace(card, is_fit=False)
    return Input(
        shard, shard.dtype if on_card else working_dtype(rows.dtype), shard.n_rows, shard.n_columns,
        counted if in_memory else None,
        weights.left_out(lambda numbers: over(choose_rows(rows, numbers), None, aside)),
        weights.unit, is_streamed=not (on_card or in_memory),
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


def open_filled(estimator: Any, rows: NDArray[Any], sample_weight: Any) -> Input:
    """Rows that count with what is known of them, and filled ones, drawn from one Gaussian, to find a start on."""
    names = vars(estimator).get("feature_names_in_")
    weights = Weights.of(check_weights(sample_weight, len(rows)), estimator.n_components)
    counted = choose_rows(rows, weights.rows)
    unknown = np.isnan(counted).all(axis=0)
    if unknown.any():
        those = "" if weights.rows is None else " in the rows of positive weight"
        column = unknown.argmax() if names is None else repr(names[unknown.argmax()])
        raise ValueError(f"X: of column {column} no value is known{those}; leave the column out")
    incomplete = IncompleteRows.of(counted, weights.values, resolve_threads(estimator.n_threads))
    one, random = incomplete.one_gaussian(), check_random_state(estimator.random_state)
    drawn = IncompleteRows.of(rows).drawn(one, random).astype(rows.dtype, copy=False)
    data = estimator._open(drawn, sample_weight, reset=True)
    if names is not None:
        estimator.feature_names_in_ = names
    return replace(data, incomplete=incomplete)


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


def _fits(source: Source) -> bool:
    size = source.n_rows * source.n_columns * source.dtype.itemsize
    return source.in_memory or source.is_sparse or size <= MEMORY_SHARE * machine.physical_memory()


def _open_on_workers(
    given: GivenRows, sample_weight: Any, unit_rows: bool, labelled: bool, n_threads: int | None, card: Card | None
) -> Input:
    """A shard on Dask workers over a collection or files; weights may be a collection or an array."""
    lazy = sample_weight if given.kind == "collection" and is_collection(sample_weight) else None
    weights = None if lazy is not None or sample_weight is None else check_weights(sample_weight, len(sample_weight))
    shard = open_on_workers(
        given, weights, lazy, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads, card=card
    )
    if shard.n_rows == 0:
        raise DataError("X: 0 sample(s) in all partitions together while a minimum of 1 is required.")
    if not shard.total_weight > 0:
        raise ValueError("sample_weight is zero everywhere; at least one row must count")
    if not ORDINARY[0] <= shard.total_weight <= ORDINARY[1]:
        raise ValueError(f"sample_weight adds up to {shard.total_weight:.3g}; on Dask scale it to about 1 per row")
    return Input(shard, working_dtype(shard.dtype), shard.n_rows, shard.n_columns, is_streamed=Need.STAY in shard.lacks)


def readable(data: Input) -> Source | Shard:
    """The rows as this process can read them; those on a card or on workers as their shard."""
    source = getattr(data.shard, "source", None) if data.matrix is None else ArraySource(data.matrix)
    return source if isinstance(source, Source) else data.shard


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
    if variance < SMALLEST_VARIANCE:
        first = data.shard.take(data.shard.locate(np.zeros(1), "weights"))
        if (np.abs(first - means) > 1e-12 * np.abs(means)).any():  # else all rows that have a weight are the same
            raise ValueError(
                "X has values too close to each other for float64: squares of their differences underflow; "
                "scale X up by a power of two, so that nothing is lost and nothing overflows"
            )
    return variance
