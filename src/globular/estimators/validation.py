"""Rows and weights as scikit-learn validates them, faster for plain arrays, and with errors that say where and what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_array, validate_data

from globular.data.blocks import Source, check_columns, check_table, column_names
from globular.data.open import UNEVEN, are_not_numbers
from globular.data.sources import checked_csr
from globular.errors import DataError
from globular.model.statistics import F64
from globular.threads import even_ranges, map_all, resolve_threads

REAL_DTYPES = [
    np.float64, np.float32, np.float16, np.uint8, np.int8, np.uint16, np.int16,
    np.int32, np.uint32, np.int64, np.uint64, np.bool_,
]  # fmt: skip
"""What passes convert by themselves; anything else becomes float64 beforehand."""
CHECKED_AT_ONCE = 1 << 20
"""Numbers that a thread looks through for NaN and infinity before it takes the next ones."""


def validated(
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
    if source is None and _is_plain(X, n_threads) and has_columns_of(estimator, X, reset=reset):
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
        message = _told_shortly(str(error), X, _way_with_nan(estimator, reset=reset))
        raise (type(error)(message) if source is None else DataError(f"{source.name}: {message}")) from None


def _way_with_nan(estimator: Any, *, reset: bool) -> str:
    """What lets this estimator, or another one, take NaN here; empty where nothing does."""
    if hasattr(estimator, "missing"):
        return 'set missing="allow"' if estimator.missing == "error" else ""
    if "missing" not in signature(getattr(estimator, "predict", len)).parameters:
        return ""
    return 'take GaussianMixture(missing="allow")' if reset else "pass missing=True"


def _is_plain(X: Any, n_threads: int | None) -> bool:
    """Whether X is an array that scikit-learn would take as it is.

    Its own checks look at many kinds of tables, and small fits would spend much of their time there.
    """
    if not (type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and X.flags.c_contiguous and X.dtype in REAL_DTYPES):
        return False
    if X.dtype.kind != "f":
        return True

    def is_finite(span: tuple[int, int]) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(X[slice(*span)].sum()))  # any other sum asks for a closer look

    spans = even_ranges(len(X), max(1, CHECKED_AT_ONCE // X.shape[1]))
    return all(map_all(is_finite, spans, resolve_threads(n_threads))) if len(spans) > 1 else is_finite(spans[0])


def has_columns_of(estimator: Any, X: NDArray[Any], *, reset: bool) -> bool:
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


def _told_shortly(message: str, X: Any, how: str) -> str:
    """An error of scikit-learn in one line: the place of NaN and infinity, the columns without numbers, no values.

    `how` names the way to let NaN through, and is empty where there is none.
    """
    if found := re.search(r"contains (?:NaN|infinity)", message):
        infinite = found[0].endswith("infinity")
        remedy = "fill in these values or drop their rows"
        if how and not infinite:
            remedy = f"fill in these values, drop their rows, or {how} if NaN is an unknown value"
        return f"{message[: found.end()]}{_place_of(np.isinf if infinite else np.isnan, X)}; {remedy}"
    if "an array element with a sequence" in message:
        return are_not_numbers(X) or UNEVEN
    values = r":\narray=.*?\n(?=Reshape)|(?<=Complex data not supported)\n.*"
    return are_not_numbers(X) or re.sub(values, ". ", message, flags=re.DOTALL).strip()


def _place_of(looked_for: Callable[[Any], Any], X: Any) -> str:
    with np.errstate(over="ignore", invalid="ignore"):  # invalid: a NaN of the signalling kind
        # long doubles may be finite in X alone
        values: Any = check_array(X, accept_sparse="coo", dtype=np.float64, ensure_all_finite=False)
    if sparse.issparse(X):
        row, column = (places[looked_for(values.data).argmax()] for places in (values.row, values.col))
    else:
        row, column = np.argwhere(looked_for(values))[0]
    names = getattr(X, "columns", None)
    return f", first in row {row} (the first row is 0), column {column if names is None else repr(names[column])}"


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
