"""The exact error of centres, the same way for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.spatial import cKDTree
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils import gen_batches
from threadpoolctl import threadpool_limits

TREE_FEATURES = 8
"""Up to here a k-d tree finds nearest centres faster than a matrix product."""
_ROWS_AT_ONCE = 1 << 16


def quantization_error(
    X: Any, centers: NDArray[Any], *, weights: NDArray[np.floating[Any]] | None = None, threads: int = 1
) -> float:
    """Mean over all rows, or weighted mean, of the squared distance to the nearest centre.

    The nearest centre is found in float64, the distance itself is summed as a difference, so neither an
    offset of the data nor float32 input costs digits. A sparse X has no offset, and stays sparse.
    """
    typed = np.array(centers, dtype=np.float64)
    if typed.ndim != 2 or typed.shape[1] != X.shape[1] or not np.isfinite(typed).all():
        raise ValueError(f"centers must be finite and have {X.shape[1]} columns, got shape {typed.shape}")
    find = _sparse_squares if issparse(X) else _dense_squares
    squares = np.concatenate(list(find(X, typed, threads)))
    return float(squares.mean() if weights is None else np.average(squares, weights=weights.astype(np.float64)))


def _dense_squares(X: NDArray[Any], centers: NDArray[np.float64], threads: int) -> Iterator[NDArray[np.float64]]:
    """Squared distances to the nearest centre, of some rows at a time."""
    shift = X.mean(axis=0, dtype=np.float64)
    centers = centers - shift
    tree = cKDTree(centers) if X.shape[1] <= TREE_FEATURES else None
    for rows in gen_batches(len(X), _ROWS_AT_ONCE):
        part = X[rows].astype(np.float64) - shift
        if tree is not None:
            labels = tree.query(part, workers=threads)[1]
        else:
            with threadpool_limits(limits=threads):
                labels = pairwise_distances_argmin(part, centers)
        yield np.square(part - centers[labels]).sum(axis=1)


def _sparse_squares(X: Any, centers: NDArray[np.float64], threads: int) -> Iterator[NDArray[np.float64]]:
    """The same for CSR, by ‖x‖² − 2x·m + ‖m‖²."""
    across, norms = np.ascontiguousarray(centers.T), np.square(centers).sum(axis=1)
    for rows in gen_batches(X.shape[0], _ROWS_AT_ONCE):
        part = X[rows].astype(np.float64)
        lowest = (norms - 2.0 * (part @ across)).min(axis=1)
        yield np.maximum(lowest + part.multiply(part).sum(axis=1).A1, 0.0)
