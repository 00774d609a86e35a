"""Pictures of a clustering; each function draws into an Axes and returns it. Needs matplotlib.

Colours keep one meaning throughout: blue is the model, grey what it is compared with. Clusters in a map are
told apart by a handful of hues in turn: with thousands of clusters no colour can be a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from globular._axes import BLUE, GREY, HUES, INK, new_axes, pyplot, tidy
from globular._model_plots import plot_curves, plot_graph, plot_mixture, plot_selection
from globular.model.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_clusters",
    "plot_curves",
    "plot_graph",
    "plot_history",
    "plot_mixture",
    "plot_selection",
    "plot_sizes",
    "plot_time_quality",
]

_MOST_COLOURED = 20_000  # clusters; beyond, a colour is smaller than a pixel


def plot_history(history: Any, ax: Axes | None = None) -> Axes:
    """Draw the objective against the seconds of the fit.

    Parameters
    ----------
    history : History or fitted estimator
        What the fit recorded.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from globular.model.history import History, Record
    >>> from globular.plotting import plot_history
    >>> ax = plot_history(History([Record(1, 0.1, 20.0, 100), Record(2, 0.2, 10.0, 200)]))
    >>> ax.get_xlabel()
    'seconds'
    """
    records = getattr(history, "history_", history)
    if not isinstance(records, History):
        raise TypeError(f"history must be a History or a fitted estimator, got {type(history).__name__}")
    if not records:
        raise ValueError("history is empty: there is no iteration to draw")
    axes = new_axes(ax)
    seconds, objective = records.column("seconds"), records.column("objective")
    axes.plot(seconds, objective, color=BLUE, linewidth=1.8, marker="o", markersize=3.5)
    last = records[-1]
    axes.annotate(
        f"iteration {last.iteration}: {last.objective:.5g}",
        (last.seconds, last.objective),
        xytext=(0, 10),
        textcoords="offset points",
        ha="right",
        color=INK,
    )
    axes.set(xlabel="seconds", ylabel="objective", title="Objective during the fit")
    axes.set_xlim(left=0)
    axes.margins(y=0.12)
    return tidy(axes)


def plot_sizes(model_or_labels: Any, ax: Axes | None = None) -> Axes:
    """Draw how many clusters have how many rows.

    Parameters
    ----------
    model_or_labels : fitted estimator or array of int
        Labels, or a model with ``labels_``; a model also tells of clusters without rows.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from globular.plotting import plot_sizes
    >>> plot_sizes([0, 0, 1, 1, 1, 2]).get_xlabel()
    'rows in the cluster'
    """
    sizes = _cluster_sizes(model_or_labels)
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
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    max_points : int, default=100_000
        Of more rows a random part is drawn, and the title says so.
    random_state : int, default=0
        Seed of that choice.

    Returns
    -------
    Axes

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


def plot_time_quality(
    names: Sequence[str],
    seconds: Sequence[float],
    errors: Sequence[float],
    axes: Sequence[Axes] | None = None,
    highlight: Sequence[str] = (),
) -> Sequence[Axes]:
    """Draw two rows of bars side by side: the seconds and the mean squared error of several methods.

    `highlight` lists the names to draw in colour; returns the two Axes.
    """
    if not len(names) == len(seconds) == len(errors) > 0:
        raise ValueError("names, seconds and errors must have the same length, at least 1")
    if axes is None:
        axes = pyplot().subplots(1, 2, figsize=(10, 0.6 * len(names) + 1.6), layout="constrained")[1]
    left, right = axes
    positions = np.arange(len(names))[::-1]
    colors = [BLUE if name in highlight else GREY for name in names]
    for panel, values, title in ((left, seconds, "seconds"), (right, errors, "mean squared error")):
        bars = panel.barh(positions, values, color=colors, height=0.62)
        panel.bar_label(bars, labels=[f"{value:.4g}" for value in values], padding=4, color=INK)
        panel.set(title=title, xlim=(0, 1.18 * max(values)))
        panel.set_yticks(positions, names if panel is left else [""] * len(names))
        panel.tick_params(axis="y", length=0)
        tidy(panel)
        panel.grid(False)
    return axes


def _cluster_sizes(model_or_labels: Any) -> NDArray[np.int64]:
    labels = np.asarray(getattr(model_or_labels, "labels_", model_or_labels))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
        raise TypeError("model_or_labels must be a fitted model with labels_ or a 1-D array of integer labels")
    if labels.min() < 0:
        raise ValueError("model_or_labels: labels must not be negative")
    centers = getattr(model_or_labels, "cluster_centers_", getattr(model_or_labels, "means_", ()))
    return np.bincount(labels, minlength=len(centers)).astype(np.int64)


def _hues(labels: NDArray[Any], centers: NDArray[Any]) -> NDArray[Any]:
    """A colour per row: that of its cluster, such that clusters side by side differ."""
    from matplotlib.colors import to_rgba_array

    n_clusters = max(len(centers), int(labels.max(initial=0)) + 1)
    hue = np.random.default_rng(1).integers(0, len(HUES), n_clusters)
    if 4 <= len(centers) <= _MOST_COLOURED:
        _recolour(hue, centers)
    return np.asarray(to_rgba_array(HUES))[hue[labels]]


def _recolour(hue: NDArray[np.int64], centers: NDArray[Any]) -> None:
    """Go through the centres and give each a colour that none of its neighbours in the plane has."""
    from scipy.spatial import Delaunay, QhullError

    try:
        start, neighbors = Delaunay(centers).vertex_neighbor_vertices
    except QhullError:  # centres on one line have no triangles; the random colours stay
        return
    hue[: len(centers)] = -1
    for i in range(len(centers)):
        taken = set(hue[neighbors[start[i] : start[i + 1]]].tolist())
        free = [color for color in range(len(HUES)) if color not in taken]
        hue[i] = free[i % len(free)] if free else i % len(HUES)  # in turn, so that all colours are used
