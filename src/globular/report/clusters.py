"""What the page tells of every cluster: its size, its error, its place in the plane and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.fitted import check_indices, checked_floats
from globular.estimators.inputs import open_input
from globular.estimators.mixtures import MixtureEstimator
from globular.model.covariances import FAMILIES
from globular.model.graph import Graph
from globular.model.statistics import F64
from globular.report.scan import Scan, is_cosine

N_NEIGHBORS = 6
"""Neighbours of a cluster that the page knows."""
_EXACT_AXES_UP_TO = 1500
"""Columns up to which the axes come from the whole covariance matrix of the centres."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Clusters in two dimensions."""

    positions: F64
    """(C, 2)."""
    axes: tuple[str, str]
    explained: float
    """Share of the variance of the centres that the plane shows."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters of a model, as the page shows them."""

    centers: F64
    plane: Plane
    sizes: F64
    """(C,), in units of `size_unit`."""
    size_unit: str
    """"rows", "share" (weights of a mixture), or "" where nothing is known: all sizes are 1 then."""
    errors: F64 | None
    """(C,), mean squared or cosine distance of a cluster's rows to its centre, or the trace of its covariance."""
    error_name: str
    neighbors: Graph
    """(C, up to N_NEIGHBORS), closest first, without the cluster itself."""
    graph_of_model: bool
    """Whether the model knew the neighbours; otherwise they are the closest centres."""

    def __len__(self) -> int:
        return len(self.centers)


def describe_clusters(model: Any, scan: Scan | None) -> Clusters:
    """Gather what is known about the clusters of a fitted model, with the data (`scan`) or without."""
    centers = centers_of(model)
    sizes, unit = _sizes(model, scan, len(centers))
    errors, error_name = _errors(model, scan, centers)
    known = getattr(model, "neighbors_", None)
    graph = known if known is not None else _closest_centers(centers)
    return Clusters(
        centers=centers,
        plane=project(centers, sizes, getattr(model, "feature_names_in_", None)),
        sizes=sizes,
        size_unit=unit,
        errors=errors,
        error_name=error_name,
        neighbors=np.ascontiguousarray(graph[:, 1 : N_NEIGHBORS + 1], dtype=np.int32),
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


def _closest_centers(centers: F64) -> Graph:
    """Every centre and the closest others, nearly exactly. O(C √C D)."""
    shard = open_input(BaseEstimator(), centers, reset=True).shard
    cells = draw_cells(shard, centers, np.random.default_rng(0))
    return graph_by_cells(shard, centers, cells, N_NEIGHBORS + 1)


def project(centers: F64, sizes: F64, names: Any = None) -> Plane:
    """The plane of largest variance of the centres, weighted by size; up to two columns as they are."""
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
    axes = _main_axes(scaled)
    axes *= np.where(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0) < 0, -1.0, 1.0)
    explained = float(np.square(scaled @ axes).sum()) / total if total > 0 else 1.0
    return Plane(centred @ axes, ("first principal axis", "second principal axis"), explained)


def _main_axes(scaled: F64) -> F64:
    """The two directions of largest variance, (D, 2)."""
    if scaled.shape[1] <= _EXACT_AXES_UP_TO:
        return np.linalg.eigh(scaled.T @ scaled)[1][:, [-1, -2]]
    from sklearn.utils.extmath import randomized_svd

    n_axes = min(2, *scaled.shape)
    found = randomized_svd(scaled, n_axes, random_state=0)[2].T
    return np.pad(found, ((0, 0), (0, 2 - n_axes)))
