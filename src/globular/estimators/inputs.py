"""From what a user hands over to a shard: validation, weights, and the choice of a backend.

Arrays and sparse matrices are used where they lie; float16, integers and Fortran order are converted block by block
inside the passes. Files are read whole if they fit comfortably into memory and streamed otherwise.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from globular.algorithms.mixtures.missing import IncompleteRows
from globular.backends.dask.opening import are_on_workers, open_on_workers
from globular.backends.registry import check_card_memory, rows_on_card, shard_on_card, shard_over
from globular.data import memory
from globular.data.blocks import Source, check_table, working_dtype
from globular.data.columns import check_columns, column_names, reading
from globular.data.frames import are_not_numbers, counting_column
from globular.data.open import Given, is_collection, tell
from globular.data.some_rows import choose_rows
from globular.data.sparse_rows import checked_csr
from globular.errors import DataError, DeviceError
from globular.estimators.devices import device_for, lies_on_card
from globular.estimators.distributed import sample_of
from globular.estimators.running import warn_user
from globular.estimators.weights import ORDINARY, LeftOut, Weights
from globular.model.statistics import F64
from globular.seam.passes import Labels
from globular.seam.shard import Shard
from globular.threads import even_ranges, map_all, resolve_threads

logger = logging.getLogger("globular")

REAL_DTYPES = [
    np.float64, np.float32, np.float16, np.uint8, np.int8, np.uint16, np.int16,
    np.int32, np.uint32, np.int64, np.uint64, np.bool_,
]  # fmt: skip
"""What passes convert by themselves; anything else becomes float64 beforehand."""
SMALLEST_VARIANCE = 2.0**-912
"""Rows that differ by less are refused: squares of differences as small as the rounding of a mean would vanish."""
FIRST = np.zeros(1, dtype=np.intp)
"""The row by which rows that stay elsewhere are validated."""
SUMMED_AT_ONCE = 1 << 20
"""Numbers that a thread looks through for NaN and infinity before it takes the next ones."""
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
    check = partial(_validate, estimator, source=source, reset=reset, accept_sparse=accept_sparse, n_threads=n_threads)
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
    rows = _validate(
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
        checked = _validate(
            estimator, given.value if source is None else source.take(FIRST), source, reset=reset, accept_sparse=False,
            n_threads=n_threads,
        )  # fmt: skip
        rows = rows_on_card(checked if source is None else source, device, *needed)
    else:
        rows = rows_on_card(X, device, *needed)
        if not _has_columns_of(estimator, rows, reset=reset):
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
    return source.in_memory or source.is_sparse or size <= MEMORY_SHARE * memory.physical_memory()


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
    return Input(shard, working_dtype(shard.dtype), shard.n_rows, shard.n_columns, is_streamed=shard.is_streamed)


def _validate(
    estimator: Any,
    X: Any,
    source: Source | None,
    *,
    reset: bool,
    accept_sparse: bool,
    n_threads: int | None,
    missing: bool = False,
) -> Any:
    """The rows as passes take them; the estimator notes or compares the number and the names of their columns."""
    if source is None and _is_plain(X, n_threads) and _has_columns_of(estimator, X, reset=reset):
        return X
    if sparse.issparse(X) and not accept_sparse:
        raise TypeError(
            f"{type(estimator).__name__} needs dense rows, X is sparse; pass X.toarray(), of fewer columns if that is "
            "too large"
        )
    try:
        with naming("X"), np.errstate(over="ignore", invalid="ignore"):  # infinity is told by an error, not a warning
            dtype = getattr(X, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind not in "biufcO":  # text and dates would be converted
                check_table(X.shape, dtype, "X")
            X = checked_csr(X) if sparse.issparse(X) else X
            return _checked_rows(estimator, X, source, reset=reset, missing=missing)
    except DataError:
        raise
    except (ValueError, TypeError) as error:
        message = _told_shortly(str(error), X)
        raise (type(error)(message) if source is None else DataError(f"{source.name}: {message}")) from None


def _is_plain(X: Any, n_threads: int | None) -> bool:
    """Whether X is an array that scikit-learn would take as it is.

    It looks at so many kinds of tables that small fits would spend much of their time there.
    """
    if not (type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and X.flags.c_contiguous and X.dtype in REAL_DTYPES):
        return False
    if X.dtype.kind != "f":
        return True

    def is_finite(span: tuple[int, int]) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(X[slice(*span)].sum()))  # any other sum asks for a closer look

    spans = even_ranges(len(X), max(1, SUMMED_AT_ONCE // X.shape[1]))
    return all(map_all(is_finite, spans, resolve_threads(n_threads))) if len(spans) > 1 else is_finite(spans[0])


def _has_columns_of(estimator: Any, X: NDArray[Any], *, reset: bool) -> bool:
    """Whether the columns of an array are those of the fit, and had no names; with `reset` they become those."""
    if reset:
        estimator.n_features_in_ = X.shape[1]
        vars(estimator).pop("feature_names_in_", None)
        return True
    own = vars(estimator)
    return own.get("n_features_in_") == X.shape[1] and "feature_names_in_" not in own


def _checked_rows(estimator: Any, X: Any, source: Source | None, *, reset: bool, missing: bool) -> Any:
    """Validate as scikit-learn does.

    Blocks of a file whose columns have been compared come as a source without names: they are taken without a warning.
    """
    finite = "allow-nan" if missing else True
    options = {"accept_sparse": "csr", "dtype": REAL_DTYPES, "order": "C", "ensure_all_finite": finite}
    if source is None:
        return validate_data(estimator, X, reset=reset, **options)
    if not reset:
        check_columns(source, estimator.n_features_in_, getattr(estimator, "feature_names_in_", None))
    matrix = check_array(X, estimator=estimator, input_name="X", **options)
    if reset:
        estimator.n_features_in_ = source.n_columns
        vars(estimator).pop("feature_names_in_", None)
        names = column_names(source)
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
    return matrix


def _told_shortly(message: str, X: Any) -> str:
    """An error of scikit-learn in one line: the place of NaN and infinity, the columns without numbers, no values."""
    if found := re.search(r"contains (?:NaN|infinity)", message):
        looked_for = np.isinf if found[0].endswith("infinity") else np.isnan
        return f"{message[: found.end()]}{_place_of(looked_for, X)}; fill in these values or drop their rows"
    values = r":\narray=.*?\n(?=Reshape)|(?<=Complex data not supported)\n.*"
    return are_not_numbers(X) or re.sub(values, ". ", message, flags=re.DOTALL).strip()


def _place_of(looked_for: Callable[[Any], Any], X: Any) -> str:
    values = np.asarray(X) if not sparse.issparse(X) else np.empty(0)
    if values.ndim != 2 or values.dtype.kind != "f":
        return ""
    with np.errstate(over="ignore", invalid="ignore"):  # invalid: a NaN of the signalling kind
        row, column = np.argwhere(looked_for(values.astype(np.float64)))[0]  # long doubles may be finite in X alone
    return f", first in row {row} (the first row is 0), column {column}"


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Put the argument's name before an error that does not tell it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if re.search(rf"\b{re.escape(argument)}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{argument}: {error}") from None


def check_weights(sample_weight: Any, n_rows: int) -> F64 | None:
    """sample_weight as float64, or None; an error that names it otherwise."""
    if sample_weight is None:
        return None
    if np.isscalar(sample_weight):
        raise ValueError("sample_weight must have one entry per row of X; leave it out for equal weights")
    with naming("sample_weight"):
        weights: NDArray[np.float64] = check_array(
            sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
        )
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(n_rows,)}: one weight per row of X")
    if (weights < 0).any():
        raise ValueError("sample_weight has negative entries; weights must be at least 0")
    if not (weights > 0).any():
        raise ValueError("sample_weight is zero everywhere; at least one row must count")
    return weights


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
