"""Numbers and seeds that users give to functions and methods, of which True and False are none.

(Parameters of estimators are checked by `parameters`, fitted attributes by `fitted`.)
"""

from __future__ import annotations

from numbers import Integral, Real
from operator import index
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_array, check_random_state

from globular.model.statistics import F64

RandomState = int | np.random.RandomState | np.random.Generator | None
Metric = Literal["euclidean", "cosine"]


def whole_number(name: str, value: Any, what: str = "a whole number of at least 1") -> int:
    """A whole number of at least 1, or an error that says what the argument must be."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value!r} must be {what}")
    return int(value)


def rows_to_draw(n_samples: Any) -> int:
    """The argument of `sample`, refused as scikit-learn does."""
    n_rows = 0 if isinstance(n_samples, bool) else index(n_samples)
    if n_rows < 1:
        raise ValueError(f"Invalid value for 'n_samples': {n_samples!r}, it must be a whole number of at least 1")
    return n_rows


def positive_number(name: str, value: Any) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < np.inf:
        raise ValueError(f"{name}={value!r} must be a number above 0")
    return float(value)


def checked_limit(name: str, value: Any) -> float:
    """A number of any size, infinity included."""
    if isinstance(value, bool) or not isinstance(value, Real) or np.isnan(float(value)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def check_metric(metric: Any) -> None:
    """Refuse what is no name of a metric."""
    if metric not in ("euclidean", "cosine"):
        raise ValueError(f'metric={metric!r} must be "euclidean" or "cosine"')


def generator(random_state: RandomState) -> np.random.Generator:
    """The source of all draws of one call; a given generator is used, and advanced, as it is."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, bool):
        raise ValueError(f"random_state={random_state!r} must be a whole number, a RandomState, a Generator or None")
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))


def checked_shape(values: Any, shape: tuple[int, ...], name: str, what: str = "") -> F64:
    """A copy of values that a user gave as a float64 array; an error names the argument, and `what` it is elsewhere."""
    array = np.asarray(values)
    if array.shape != shape:
        wanted = f". The parameter '{what}' should have the shape of {shape}, but got {array.shape}"
        raise ValueError(f"{name} has shape {array.shape}{wanted if what else f', expected {shape}'}")
    flat: F64 = check_array(array.reshape(1, -1), dtype=np.float64, input_name=name, copy=True)
    return flat.reshape(shape)


def checked_shares(values: Any, n: int, name: str, what: str = "") -> F64:
    """The same for n numbers that add up to 1, but for what the user has rounded."""
    shares = checked_shape(values, (n,), name, what)
    if (shares < 0).any() or abs(shares.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"{name} must be at least 0 and add up to 1, "
            f"got a smallest of {shares.min():.6g} and a sum of {shares.sum():.6g}"
        )
    return np.asarray(shares / shares.sum())
