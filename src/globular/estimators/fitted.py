"""Fitted attributes on their way to passes and kernels, which do not ask whether shapes agree.

A user may set an attribute by hand, and a file may hold anything: what is not right is one `ValueError` that names the
attribute.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.history import History
from globular.model.statistics import F64
from globular.threads import resolve_threads


def checked_array(value: Any, name: str, shape: tuple[int | None, ...], kinds: str = "fiu") -> NDArray[Any]:
    """An attribute as an array of real numbers, finite and of this shape; None is any number, but not none at all."""
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if not fits or array.size == 0 or array.dtype.kind not in kinds:
        expected = tuple("any" if n is None else n for n in shape)
        raise ValueError(
            f"{name} has shape {array.shape} of {array.dtype}, expected numbers of shape {expected}; fit again"
        )
    if array.dtype.kind == "f" and not _all_finite(array):
        raise ValueError(f"{name} contains NaN or infinity; fit again")
    return array


def checked_floats(value: Any, name: str, shape: tuple[int | None, ...], *, positive: bool = False) -> F64:
    """The same in float64 and C order, as passes take it."""
    array = np.asarray(checked_array(value, name, shape), dtype=np.float64, order="C")
    if positive and not (array > 0).all():
        raise ValueError(f"{name} must be positive; fit again")
    return array


def check_indices(value: Any, name: str, shape: tuple[int | None, ...], n: int, *, least: int = 0) -> None:
    """Refuse what are not numbers of n clusters; `least` is −1 where a row may have none yet."""
    array = checked_array(value, name, shape, "iu")
    if array.min() < least or array.max() >= n:
        raise ValueError(f"{name} refers to clusters that are not there: there are {n}; fit again")


def check_components(n_components: int, weights: F64, noise_weight: float = 0.0) -> None:
    """Check that a mixture has as many components as its parameter says, and weights that are shares."""
    if len(weights) != n_components:
        raise ValueError(f"means_ holds {len(weights)} components, n_components={n_components}; fit again")
    if weights.min() < 0 or abs(weights.sum() + noise_weight - 1.0) > 1e-6:
        raise ValueError("weights_ must be at least 0 and sum to one; fit again")


def check_common(estimator: Any, *numbers: str) -> int:
    """Check what all models have, and those attributes that are single numbers; returns the number of columns."""
    D = estimator.n_features_in_
    if type(D) is not int or D < 1:
        raise ValueError(f"n_features_in_ must be a whole number of at least 1, got {D!r}")
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and not (np.shape(names) == (D,) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"feature_names_in_ must be {D} texts, one for each column")
    if not isinstance(getattr(estimator, "history_", History()), History):
        raise ValueError("history_ must be a History")
    for name in numbers:
        value = getattr(estimator, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, got {type(value).__name__}")
    resolve_threads(estimator.n_threads)
    return D


def _all_finite(array: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):
        total = array.sum()  # mostly settles it, without a table of truth values
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
