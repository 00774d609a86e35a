"""Pictures of models: a map of the clusters, their sizes and their graph, the ellipses of a mixture."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy

from globular.algorithms.seeding.common import evenly_spread_rows
from globular.model.covariances import FAMILIES
from globular.plotting.history import BLUE, GREY, HUES, INK, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ELLIPSES = 2000
_MOST_COLOURED = 20_000  # clusters; beyond, a colour is smaller than a pixel


def plot_sizes(model_or_labels: Any, ax: Axes | None = None) -> Axes:
    """Draw how many clusters have how many rows.

    Parameters
    ----------
    model_or_labels : fitted estimator or array of int
        Labels, or a model with ``labels_``; with a model clusters without rows are counted too.

    Examples
    --------
    >>> from globular.plotting import plot_sizes
    >>> plot_sizes([0, 0, 1, 1, 1, 2]).get_xlabel()
    'rows in the cluster'
    """
    labels = np.asarray(getattr(model_or_labels, "labels_", model_or_labels))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
        raise TypeError("model_or_labels must be a fitted model with labels_ or a 1-D array of integer labels")
    if labels.min() < 0:
        raise ValueError("model_or_labels: labels must not be negative")
    centers = getattr(model_or_labels, "cluster_centers_", getattr(model_or_labels, "means_", ()))
    sizes = np.bincount(labels, minlength=len(centers)).astype(np.int64)
    axes = new_axes(ax)
    filled = sizes[sizes > 0]
    n_bins = int(np.clip(np.sqrt(filled.size) * 2, 5, 60))
    if filled.max() >= 20 * np.median(filled):  # a long tail is only seen on a logarithmic axis
        bins: NDArray[np.float64] = np.geomspace(filled.min(), filled.max() + 1, n_bins + 1)
        axes.set_xscale("log")
    else:
        width = max(1, int(np.ceil((filled.max() - filled.min() + 1) / n_bins)))  # whole rows: no empty bins
        bins = np.arange(filled.min(), filled.max() + width + 1, width) - 0.5
    axes.hist(filled, bins=bins.tolist(), color=BLUE, edgecolor="white", linewidth=0.4)
    axes.axvline(float(np.median(filled)), color=INK, linewidth=1, linestyle="--")
    empty = int(sizes.size - filled.size)
    title = f"{sizes.size:,} clusters, median {np.median(filled):,.0f} rows"
    axes.set(xlabel="rows in the cluster", ylabel="clusters")
    axes.set_title(title + (f", {empty:,} empty" if empty else ""))
    return tidy(axes)


def plot_clusters(
    X2d: ArrayLike,
    labels: ArrayLike,
    centers: ArrayLike,
    ax: Axes | None = None,
    max_points: int = 100_000,
    random_state: int = 0,
) -> Axes:
    """Draw a map of two-dimensional rows, coloured by cluster, with the centres on top.

    Parameters
    ----------
    X2d : array of shape (n, 2)
        Rows, or a projection of them to two dimensions.
    labels : array of int of shape (n,)
        Cluster of each row.
    centers : array of shape (k, 2)
        Centres in the same two dimensions.
    max_points : int, default=100_000
        If there are more rows, a random part of this size is drawn and the title says so.
    random_state : int, default=0
        Seed of the random part.

    Examples
    --------
    >>> from globular.plotting import plot_clusters
    >>> ax = plot_clusters([[0.0, 0.0], [4.0, 4.0]], [0, 1], [[0.0, 0.0], [4.0, 4.0]])
    >>> ax.get_title()
    '2 clusters, 2 rows'
    """
    rows, marks, mids = np.asarray(X2d), np.asarray(labels), np.asarray(centers)
    if rows.ndim != 2 or rows.shape[1] != 2 or mids.ndim != 2 or mids.shape[1] != 2:
        raise ValueError(f"X2d and centers must have two columns, got shapes {rows.shape} and {mids.shape}")
    if marks.shape != rows.shape[:1]:
        raise ValueError(f"labels must have one entry per row of X2d, got {marks.shape} for {rows.shape[0]}")
    title = f"{len(mids):,} clusters, {len(rows):,} rows"
    if len(rows) > max_points:
        chosen = np.random.default_rng(random_state).choice(len(rows), max_points, replace=False)
        rows, marks = rows[chosen], marks[chosen]
        title += f" ({max_points:,} drawn)"
    axes = new_axes(ax)
    point_size = float(np.clip(1e5 / max(len(rows), 1), 0.4, 16))
    axes.scatter(rows[:, 0], rows[:, 1], c=_hues(marks, mids), s=point_size, linewidths=0, rasterized=True)
    center_size = float(np.clip(5e3 / len(mids), 2, 30))
    axes.scatter(mids[:, 0], mids[:, 1], s=center_size, c="black", linewidths=0)
    axes.set_title(title)
    axes.set_aspect("equal", adjustable="box")
    return tidy(axes)


def _hues(labels: NDArray[Any], centers: NDArray[Any]) -> NDArray[Any]:
    """Colour of each row by its cluster; neighbouring clusters have different colours."""
    from matplotlib.colors import to_rgba_array
    from scipy.spatial import Delaunay, QhullError

    n_clusters = max(len(centers), int(labels.max(initial=0)) + 1)
    hue = np.random.default_rng(1).integers(0, len(HUES), n_clusters)
    with suppress(QhullError):  # centres on one line have no triangles; the random colours stay
        if 4 <= len(centers) <= _MOST_COLOURED:
            start, neighbors = Delaunay(centers).vertex_neighbor_vertices
            hue[: len(centers)] = -1
            for i in range(len(centers)):
                taken = set(hue[neighbors[start[i] : start[i + 1]]].tolist())
                free = [color for color in range(len(HUES)) if color not in taken]
                hue[i] = free[i % len(free)] if free else i % len(HUES)  # in turn, so that all colours are used
    return np.asarray(to_rgba_array(HUES))[hue[labels]]


def plot_mixture(model: Any, X: ArrayLike | None = None, ax: Axes | None = None, n_std: float = 2.0) -> Axes:
    """Draw a mixture in the plane: an ellipse of `n_std` standard deviations for every component.

    Parameters
    ----------
    model : fitted Gaussian mixture on two columns
    X : array of shape (n, 2), optional
        Rows to draw below it, at most 20,000 of them.
    n_std : float, default=2.0
        Size of the ellipses.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> from globular.plotting import plot_mixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> ax = plot_mixture(globular.GaussianMixture(3, random_state=0).fit(X), X)
    >>> ax.get_title()
    '3 components'
    """
    means = np.asarray(getattr(model, "means_", np.empty((0, 0))))
    if means.ndim != 2 or means.shape[1] != 2:
        raise ValueError("model must be a fitted mixture on two columns; project the data before fitting")
    model = model.to_full() if hasattr(model, "to_full") else model
    axes = new_axes(ax)
    from matplotlib.collections import EllipseCollection

    if X is not None:
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != 2:
            raise ValueError(f"X must have two columns, got shape {rows.shape}")
        rows = rows[evenly_spread_rows(len(rows), 20_000, np.random.default_rng(0))]
        axes.scatter(rows[:, 0], rows[:, 1], s=3, color=GREY, alpha=0.5, linewidths=0, rasterized=True)
    shown = np.argsort(-np.asarray(model.weights_), kind="stable")[:_MOST_ELLIPSES]
    covariances = np.asarray(model.covariances_, dtype=np.float64)
    matrices = FAMILIES[model.covariance_type].matrices(covariances, *means.shape)
    values, vectors = np.linalg.eigh(matrices[shown])
    sizes = 2.0 * n_std * np.sqrt(values)
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    colors = [HUES[c % len(HUES)] for c in shown]
    axes.add_collection(
        EllipseCollection(
            sizes[:, 1], sizes[:, 0], angles, units="xy", offsets=means[shown], offset_transform=axes.transData,
            facecolors=[f"{color}38" for color in colors], edgecolors=colors, linewidths=1.4,
        )
    )  # fmt: skip
    axes.scatter(means[shown, 0], means[shown, 1], s=12, color=INK, linewidths=0, zorder=3)
    reach = sizes[:, 1] / 2
    axes.update_datalim(np.concatenate([means[shown] - reach[:, None], means[shown] + reach[:, None]]))
    axes.autoscale_view()
    axes.set_aspect("equal", adjustable="datalim")
    title = f"{len(means):,} components"
    axes.set_title(title + (f" ({len(shown):,} drawn)" if len(shown) < len(means) else ""))
    return tidy(axes)


def plot_graph(model: Any, ax: Axes | None = None, max_clusters: int = 5000) -> Axes:
    """Draw the cluster graph: circles at the centres (in the plane of largest variance), lines to the neighbours.

    Parameters
    ----------
    model : fitted model with ``neighbors_``
        `VariationalKMeans` or `VariationalGaussianMixture`.
    max_clusters : int, default=5000
        If there are more clusters, the largest are drawn and the title says so.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> from globular.plotting import plot_graph
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> plot_graph(globular.VariationalKMeans(30, random_state=0).fit(X)).get_title()
    '30 clusters and their neighbours'
    """
    if getattr(model, "neighbors_", None) is None:
        raise TypeError(
            f"model must have neighbors_, such as VariationalKMeans; {type(model).__name__} keeps no cluster graph"
        )
    from globular.report.clusters import describe_clusters

    axes = new_axes(ax)
    from matplotlib.collections import LineCollection

    clusters = describe_clusters(model, None)
    positions, sizes = clusters.plane.positions, clusters.sizes
    shown = np.zeros(len(sizes), dtype=bool)
    shown[np.argsort(-sizes, kind="stable")[:max_clusters]] = True
    pairs = np.column_stack([np.repeat(np.arange(len(sizes)), clusters.neighbors.shape[1]), clusters.neighbors.ravel()])
    pairs = np.unique(np.sort(pairs[shown[pairs].all(axis=1)], axis=1), axis=0)
    width = float(np.clip(400 / max(len(pairs), 1), 0.25, 0.9))
    axes.add_collection(LineCollection(list(positions[pairs]), colors=GREY, linewidths=width, alpha=0.7))
    share = sizes[shown] / max(float(sizes[shown].mean()), np.finfo(np.float64).tiny)
    areas = np.clip(12_000 / shown.sum(), 4, 160) * np.clip(share, 0.1, 8)
    axes.scatter(
        positions[shown, 0], positions[shown, 1], s=areas, color=BLUE, edgecolors="white", linewidths=0.5, zorder=2
    )
    title = f"{len(sizes):,} clusters and their neighbours"
    axes.set_title(title + (f" ({max_clusters:,} largest)" if max_clusters < len(sizes) else ""))
    axes.set(xlabel=clusters.plane.axes[0], ylabel=clusters.plane.axes[1])
    axes.set_aspect("equal", adjustable="datalim")
    return tidy(axes)


def plot_tree(linkage: NDArray[np.float64], ax: Axes | None = None, *, n_leaves: int = 30) -> Axes:
    """Draw the top of a tree of clusters as a dendrogram.

    Parameters
    ----------
    linkage : array of shape (n_clusters − 1, 4)
        Joins in the format of SciPy, such as ``globular.cluster_tree(model).linkage``.
    n_leaves : int, default=30
        Number of groups at the bottom; a number in brackets is the number of clusters in a group.

    Examples
    --------
    >>> import globular
    >>> from globular.plotting import plot_tree
    >>> plot_tree(globular.cluster_tree([[0.0], [1.0], [5.0]]).linkage).get_title()
    '3 clusters'
    """
    axes = new_axes(ax)
    hierarchy.dendrogram(
        linkage, n_leaves, "lastp", ax=axes, color_threshold=0.0, above_threshold_color=BLUE, leaf_rotation=90.0
    )
    axes.set(ylabel="√(2 × rise of the error)", title=f"{len(linkage) + 1:,} clusters")
    tidy(axes).grid(False, axis="x")
    return axes
