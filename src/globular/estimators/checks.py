"""Checks of what users give to functions and methods, of fitted attributes on their way to passes, and of memory.

Kernels do not ask whether shapes agree. A user may set an attribute by hand, and a file may hold anything: what is not
right is one `ValueError` that names it. (Parameters of estimators are checked by `parameters`.)

The most memory that fits take beside the rows is known before any of it is taken. One rough formula serves all
algorithms: copies of the parameters, words for every row, and a copy or two of the rows while seeds are drawn
or the rows are brought into an order.
"""

from __future__ import annotations

import logging
import math
from numbers import Integral, Real
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from globular.algorithms.seeding.common import TAKEN_NUMBERS
from globular.machine import check_fits
from globular.model.covariances import FAMILIES, ScatterKind
from globular.model.history import History
from globular.model.statistics import F64
from globular.passes.host import tree_bytes
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

RandomState = int | np.random.RandomState | np.random.Generator | None
Metric = Literal["euclidean", "cosine"]
FIXED_BYTES, THREAD_BYTES = 64 << 20, 2 << 20
"""Samples, cells and blocks of rows: in all, and for every thread."""
COPIED_AT_ONCE = 1 << 30
"""Bytes of rows in float64 that are copied at a time, at most."""
CELL_BYTES = 2**26
"""Blocks of cells and of statistics in the hands of the threads, and what compiled kernels take."""


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


def checked_array(value: Any, name: str, shape: tuple[int | None, ...], kinds: str = "fiu") -> NDArray[Any]:
    """An attribute as an array of real numbers, finite and of this shape; None is any number, but not none at all."""
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if not fits or array.size == 0 or array.dtype.kind not in kinds:
        expected = tuple("any" if n is None else n for n in shape)
        raise ValueError(
            f"{name} has shape {array.shape} of {array.dtype}, expected numbers of shape {expected}; fit again"
        )
    with np.errstate(all="ignore"):  # the sum mostly settles it, without a table of truth values
        finite = array.dtype.kind != "f" or np.isfinite(array.sum()) or np.isfinite(array).all()
    if not finite:
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


def check_allocation(n_bytes: int, what: str, alternative: str, *, at_most: int | None = None) -> None:
    """Say beforehand how much memory something takes; refuse what cannot fit into this machine, and say what can.

    `n_bytes` is sure to be needed. Where more may be, `at_most` is what is said.
    """
    check_fits(n_bytes, what, alternative)
    logger.info("%s: up to %.1f MiB", what, (n_bytes if at_most is None else at_most) / 2**20)


def fit_bytes(n_rows: int, n_columns: int, n_numbers: int, n_words: int, n_threads: int) -> int:
    """For a fit with `n_numbers` parameters that holds `n_words` of 8 bytes for every row.

    Parameters, statistics, factors and what moved are there in 16 copies, and those of threads under way. Rows are
    drawn in float64, as found and as sorted.
    """
    copies = 5 * min(8 * n_rows * n_columns, COPIED_AT_ONCE) // 2
    parameters = (16 + n_threads) * 8 * n_numbers
    return parameters + 8 * n_words * n_rows + copies + FIXED_BYTES + n_threads * THREAD_BYTES


def sparse_bytes(n_rows: int, n_entries: int, n_columns: int, n_clusters: int, n_threads: int) -> int:
    """For a fit of sparse rows with sparse centres: entries by row, by column and by cluster, and what they come from.

    Centres have at most as many entries as the rows.
    """
    threads = n_threads * (8 * (n_columns + n_clusters) + THREAD_BYTES)
    return 128 * n_entries + 80 * n_rows + FIXED_BYTES + threads


def neighbor_bytes(n_rows: int, n_clusters: int, n_neighbors: int, n_candidates: int, n_random: int) -> int:
    """For rows that look at neighbourhoods: K(n) twice, and the pairs of Eq. 8.

    With one candidate these are pairs of neighbours of a cluster; with more, at worst every row has its own.
    """
    n_pairs = n_random * n_rows
    n_pairs += 4 * n_candidates * n_rows if n_candidates > 1 else n_clusters * min(n_neighbors, n_clusters) ** 2
    return 8 * ((20 + 3 * n_candidates) * n_rows + 5 * n_pairs)


def mixture_bytes(
    n_rows: int, n_columns: int, n_components: int, covariance_type: str, *, C_prime: int = 0, n_threads: int
) -> int:
    """For a mixture that is fitted to rows, from its start by k-means on; C′ components a row, 0 for all."""
    covariances = math.prod(FAMILIES[covariance_type].shape(n_components, n_columns))
    n_numbers = n_components * (n_columns + 1) + max(covariances, n_components * n_columns)
    return fit_bytes(n_rows, n_columns, n_numbers, 8 + 5 * C_prime, n_threads)


def chunky_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """For a fit on the cells of a tree: the tree, twice while its subtrees are joined, and blocks of cells."""
    return 2 * tree_bytes(n_rows, n_columns, leaf_size, kind) + CELL_BYTES


def batch_bytes(n_rows: int, n_columns: int, *, in_memory: bool) -> int:
    """The most that batches take beside X: the numbers of their rows, and the rows where these come from elsewhere."""
    copied = 0 if in_memory else min(TAKEN_NUMBERS, n_rows // 2 * n_columns)
    return 9 * (n_rows // 2) + 16 * copied
