"""The record that all functions of this package return, and checks of their arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

FloatArray = NDArray[np.floating[Any]]
RandomState = int | np.random.Generator | np.random.RandomState | None

# Values handled at a time: the work arrays stay small whatever the size of the result.
_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True)
class Dataset:
    """Rows and what is known about where they came from.

    Attributes
    ----------
    X : array of shape (n_samples, n_features), float32 or float64, C-contiguous
        The rows, in random order.
    y : int32 array of shape (n_samples,)
        The cluster that made each row; for images, the index of the image that the row was made from.
    centers : float64 array of shape (n_clusters, n_features), or None for images
        The true means (float64 whatever the type of X).
    covariances : float64 array of shape (n_clusters, n_features, n_features), or None
        The true covariances, where clusters are not isotropic.
    weights : float64 array of shape (n_clusters,), or None
        The share of each cluster in the generating model.
    """

    X: FloatArray
    y: NDArray[np.int32]
    centers: NDArray[np.float64] | None = None
    covariances: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None


def generator(random_state: RandomState) -> np.random.Generator:
    """New generator for a seed; a given generator is used as it is."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**32, size=4, dtype=np.uint32))
    refusal = f"random_state must be a non-negative integer, a NumPy generator or None, got {random_state!r}"
    if isinstance(random_state, bool):
        raise ValueError(refusal)
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(refusal) from error


def float_type(dtype: DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {kind}")
    return kind


def check_count(name: str, value: int, minimum: int, because: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}{f' ({because})' if because else ''}, got {value}")


def check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def check_numeric_images(stack: NDArray[Any]) -> None:
    if stack.shape[0] == 0:
        raise ValueError("images is empty; give at least one image")
    if stack.dtype.kind not in "buif":
        raise ValueError(f"images must be real numbers, got dtype {stack.dtype}")
    if stack.dtype.kind == "f" and not np.isfinite(stack).all():
        raise ValueError("images contains NaN or infinity; remove or replace these values")


def row_blocks(n_rows: int, n_values_per_row: int) -> list[slice]:
    step = max(1, _BLOCK_VALUES // max(1, n_values_per_row))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def check_at_least_zero(name: str, value: float, below: float = math.inf) -> None:
    if not 0.0 <= value < below:
        limit = "be finite" if below == math.inf else f"be below {below:g}"
        raise ValueError(f"{name} must be at least 0 and {limit}, got {value!r}")
