"""Size, error, position, neighbours and closest rows of every cluster, from one pass."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd

from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells
from globular.data.blocks import Matrix, Source, check_columns
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.checks import check_indices, checked_floats
from globular.estimators.inputs import open_input
from globular.estimators.mixtures import MixtureEstimator
from globular.model.covariances import FAMILIES
from globular.model.graph import Graph
from globular.model.statistics import F64, I64

_VALUES_PER_BLOCK = 1 << 22
SEARCH_FROM = 2000
"""Number of clusters from which rows may be assigned through cells of centres instead of all centres."""
EXACT_WORK = 2e11
"""Rows × centres × columns up to which all centres are compared; larger = exact, but slower; about 10 s."""
SHOWN_NEIGHBORS = 6
"""Number of neighbours of a cluster on the page."""
_EXACT_AXES_UP_TO = 1500
"""Number of columns up to which the axes of the map come from the full covariance matrix of the centres."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of the pass over the rows."""

    counts: I64
    """Rows of each cluster, (C,)."""
    squared: F64
    """Sum of the squared distances of a cluster's rows to its centre, (C,)."""
    rows: I64
    """The closest rows of each cluster, closest first, (C, n_exemplars); −1 where there are fewer."""
    distances: F64
    """Distances of `rows` to the centre of their cluster, as `predict` gives them, (C, n_exemplars)."""
    exact: bool
    """True if every row was compared with every centre."""


def scan(
    model: Any, centers: F64, source: Source, n_exemplars: int, progress: Callable[[int], None] = lambda done: None
) -> Scan:
    """Assign every row and keep the closest rows of each cluster; `progress` is called with the number of rows done."""
    check_columns(source, centers.shape[1], getattr(model, "feature_names_in_", None))
    C = len(centers)
    assign = getattr(model, "predict_components", model.predict)  # clusters of several components have no centre
    few = C < SEARCH_FROM or (hasattr(model, "cluster_centers_") and source.n_rows * centers.size <= EXACT_WORK)
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
    """True if distances are 1 − cos, half of ‖x − μ‖² between unit vectors."""
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
    """Rows as a dense array."""
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


class _Closest:
    """Keeps the n closest rows of every cluster among the rows added."""

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


@dataclass(frozen=True, slots=True)
class Plane:
    """Positions of clusters in two dimensions."""

    positions: F64
    """(C, 2)."""
    axes: tuple[str, str]
    explained: float
    """Share of the variance of the centres that the plane shows."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Clusters of a model as the page shows them."""

    centers: F64
    plane: Plane
    sizes: F64
    """(C,), in units of `size_unit`."""
    size_unit: str
    """"rows", "share" (weights of a mixture), or "" if unknown: all sizes are 1 then."""
    errors: F64 | None
    """(C,), mean squared or cosine distance of a cluster's rows to its centre, or the trace of its covariance."""
    error_name: str
    neighbors: Graph
    """(C, up to SHOWN_NEIGHBORS), closest first, without the cluster itself."""
    graph_of_model: bool
    """True if the neighbours are from the model, False if they are the closest centres."""

    def __len__(self) -> int:
        return len(self.centers)


def describe_clusters(model: Any, scan: Scan | None) -> Clusters:
    """Describe the clusters of a fitted model, with data (`scan`) or without."""
    centers = centers_of(model)
    sizes, unit = _sizes(model, scan, len(centers))
    errors, error_name = _errors(model, scan, centers)
    known = getattr(model, "neighbors_", None)
    graph: Any = known
    if known is None:  # every centre and the closest others, nearly exactly: O(C √C D)
        shard = open_input(BaseEstimator(), centers, reset=True).shard
        cells = draw_cells(shard, centers, np.random.default_rng(0))
        graph = graph_by_cells(shard, centers, cells, SHOWN_NEIGHBORS + 1)
    return Clusters(
        centers=centers,
        plane=project(centers, sizes, getattr(model, "feature_names_in_", None)),
        sizes=sizes,
        size_unit=unit,
        errors=errors,
        error_name=error_name,
        neighbors=np.ascontiguousarray(graph[:, 1 : SHOWN_NEIGHBORS + 1], dtype=np.int32),
        graph_of_model=known is not None,
    )


def centers_of(model: Any) -> F64:
    """Centres of a k-means model or means of a mixture, float64."""
    if isinstance(model, CentroidEstimator | MixtureEstimator):
        model._check_state()
    name = "cluster_centers_" if hasattr(model, "cluster_centers_") else "means_"
    found = getattr(model, name, None)
    if found is None:
        raise TypeError(
            f"model must be a fitted k-means model or mixture, got {type(model).__name__} without "
            "cluster_centers_ or means_; call fit first"
        )
    centers = checked_floats(found, name, (None, None))
    with np.errstate(over="ignore"):
        if not np.isfinite(np.square(centers).sum()):
            raise ValueError(f"{name}: values too large for float64, their squares overflow; scale the data down")
    return centers


def _sizes(model: Any, scan: Scan | None, C: int) -> tuple[F64, str]:
    if scan is not None:
        return scan.counts.astype(np.float64), "rows"
    if getattr(model, "weights_", None) is not None:
        return checked_floats(model.weights_, "weights_", (C,)), "share"
    labels = getattr(model, "labels_", None)
    if labels is not None:
        check_indices(labels, "labels_", (None,), C, least=-1)
        assigned = np.asarray(labels)
        return np.bincount(assigned[assigned >= 0], minlength=C).astype(np.float64), "rows"
    return np.ones(C), ""


def _errors(model: Any, scan: Scan | None, centers: F64) -> tuple[F64 | None, str]:
    if scan is not None:
        mean = scan.squared / np.maximum(scan.counts, 1)
        return (mean / 2, "mean cosine distance") if is_cosine(model) else (mean, "mean squared distance")
    covariances = getattr(model, "covariances_", None)
    if covariances is None or FAMILIES[model.covariance_type].tied:  # tied: the same for all
        return None, ""
    family, (C, D) = FAMILIES[model.covariance_type], centers.shape
    variances = np.broadcast_to(family.variances(np.asarray(covariances, dtype=np.float64), C, D), (C, D))
    return variances.sum(axis=1), "trace of the covariance"


def project(centers: F64, sizes: F64, names: Any = None) -> Plane:
    """Project centres on their plane of largest variance, weighted by size; up to two columns stay as they are."""
    C, D = centers.shape
    if D <= 2:
        named = names is not None and len(names) == D
        labels = (str(names[0]), str(names[-1])) if named else ("column 0", "column 1")
        second = centers[:, 1] if D == 2 else np.zeros(C)
        return Plane(np.column_stack([centers[:, 0], second]), labels if D == 2 else (labels[0], ""), 1.0)
    weights = sizes / sizes.sum() if sizes.sum() > 0 else np.full(C, 1.0 / C)
    centred = centers - weights @ centers
    scaled = centred * np.sqrt(weights)[:, None]
    total = float(np.square(scaled).sum())
    if D <= _EXACT_AXES_UP_TO:
        axes = np.linalg.eigh(scaled.T @ scaled)[1][:, [-1, -2]]
    else:
        n_axes = min(2, C)
        found = randomized_svd(scaled, n_axes, random_state=0)[2].T
        axes = np.pad(found, ((0, 0), (0, 2 - n_axes)))
    axes *= np.where(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0) < 0, -1.0, 1.0)
    explained = float(np.square(scaled @ axes).sum()) / total if total > 0 else 1.0
    return Plane(centred @ axes, ("first principal axis", "second principal axis"), explained)
