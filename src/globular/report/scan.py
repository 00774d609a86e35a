"""One pass over the data of a model: how many rows each cluster has, how far they are, and which are the closest."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from globular.data.blocks import Matrix, Source
from globular.data.columns import check_columns
from globular.model.statistics import F64, I64

_VALUES_PER_BLOCK = 1 << 22
SEARCH_FROM = 2000
"""Clusters from which rows may be assigned by way of cells of centres rather than by all centres."""
EXACT_UP_TO = 2e11
"""Rows × centres × columns up to which they are compared all the same; larger = exact for longer, some 10 s here."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass has found."""

    counts: I64
    """Rows of each cluster, (C,)."""
    squared: F64
    """Sum of the squared distances of a cluster's rows to its centre, (C,)."""
    rows: I64
    """The closest rows of each cluster, closest first, (C, n_exemplars); −1 where there are fewer."""
    distances: F64
    """Distances of `rows` to the centre of their cluster, as `predict` gives them, (C, n_exemplars)."""
    exact: bool
    """Whether every row was compared with every centre."""


def scan(
    model: Any, centers: F64, source: Source, n_exemplars: int, progress: Callable[[int], None] = lambda done: None
) -> Scan:
    """Assign every row of the source and keep the closest rows of each cluster. `progress` hears of rows done."""
    check_columns(source, centers.shape[1], getattr(model, "feature_names_in_", None))
    C = len(centers)
    assign = getattr(model, "predict_components", model.predict)  # clusters of several components have no centre
    few = C < SEARCH_FROM or (hasattr(model, "cluster_centers_") and source.n_rows * centers.size <= EXACT_UP_TO)
    exact = few or "exact" not in inspect.signature(assign).parameters
    unit = is_cosine(model)
    counts, squared = np.zeros(C, dtype=np.int64), np.zeros(C)
    best = _Closest(C, n_exemplars)
    for block in source.blocks(max(256, _VALUES_PER_BLOCK // source.n_columns)):
        with warnings.catch_warnings():  # names have been compared, blocks have none
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            labels = assign(block.rows) if exact else assign(block.rows, exact=False)
        own = squared_distances(block.rows, centers, labels, unit=unit)
        counts += np.bincount(labels, minlength=C)
        squared += np.bincount(labels, own, minlength=C)
        best.add(np.arange(block.start, block.stop), labels, own)
        progress(block.stop)
    return Scan(counts, squared, best.rows, best.squared / 2 if unit else np.sqrt(best.squared), exact)


def is_cosine(model: Any) -> bool:
    """Whether distances are 1 − cos, which is half of ‖x − μ‖² between unit vectors."""
    return bool(getattr(model, "metric", "") == "cosine")


def squared_distances(rows: Matrix, centers: F64, labels: NDArray[Any], *, unit: bool) -> F64:
    """‖x − μ‖² to the row's own centre, in float64, a few megabytes at a time."""
    result = np.empty(len(labels))
    step = max(64, (1 << 20) // centers.shape[1])
    for start in range(0, len(labels), step):
        dense = as_dense(rows[start : start + step]).astype(np.float64)
        if unit:
            dense = normalize(dense, copy=False)
        dense -= centers[labels[start : start + step]]
        result[start : start + step] = np.einsum("nd,nd->n", dense, dense)
    return result


def as_dense(rows: Any) -> NDArray[Any]:
    """Rows as an array, whether they are sparse or not."""
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


class _Closest:
    """The n closest rows of every cluster among all that were added."""

    def __init__(self, C: int, n: int) -> None:
        self.rows = np.full((C, n), -1, dtype=np.int64)
        self.squared = np.full((C, n), np.inf)

    def add(self, rows: NDArray[Any], labels: NDArray[Any], squared: F64) -> None:
        n = self.rows.shape[1]
        if n == 0:
            return
        candidates = np.flatnonzero(squared < self.squared[labels, -1])
        rows, labels, squared = rows[candidates], labels[candidates], squared[candidates]
        touched = np.unique(labels)
        owners = np.concatenate([np.repeat(touched, n), labels])
        values = np.concatenate([self.squared[touched].ravel(), squared])
        names = np.concatenate([self.rows[touched].ravel(), rows])
        order = np.lexsort((names, values, owners))
        first = np.searchsorted(owners[order], touched)
        chosen = order[first[:, None] + np.arange(n)]  # every touched cluster has at least its n old places
        self.rows[touched], self.squared[touched] = names[chosen], values[chosen]
