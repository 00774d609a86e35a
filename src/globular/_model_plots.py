"""Pictures of models: ellipses of a mixture, the graph of the clusters, curves over time, scores over k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from globular._axes import BLUE, GREY, HUES, INK, new_axes, pyplot, tidy
from globular.model.covariances import FAMILIES
from globular.model.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from globular.selection import Selection

_MOST_ELLIPSES = 2000
_NAMES = {"elbow": "elbow (change of slope)", "silhouette": "silhouette", "bic": "BIC (lower is better)"}


def plot_mixture(model: Any, X: ArrayLike | None = None, ax: Axes | None = None, n_std: float = 2.0) -> Axes:
    """Draw a mixture in the plane: an ellipse of `n_std` standard deviations for every component.

    Parameters
    ----------
    model : fitted Gaussian mixture on two columns
    X : array of shape (n, 2), optional
        Rows to draw below it, at most 20,000 of them.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    n_std : float, default=2.0
        Size of the ellipses.

    Returns
    -------
    Axes

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
    axes = new_axes(ax)
    from matplotlib.collections import EllipseCollection

    if X is not None:
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != 2:
            raise ValueError(f"X must have two columns, got shape {rows.shape}")
        rows = rows[:: -(-len(rows) // 20_000)]
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
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    max_clusters : int, default=5000
        Of more clusters the largest are drawn, and the title says so.

    Returns
    -------
    Axes

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


def plot_curves(curves: Mapping[str, Any], ax: Axes | None = None, highlight: Sequence[str] = ()) -> Axes:
    """Draw time–quality curves: the error of several runs against their seconds.

    Parameters
    ----------
    curves : mapping of str to fitted estimator, History or (seconds, errors)
        What to draw, by name.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    highlight : sequence of str, optional
        Names to draw in colour, the others in grey; all in colour if there are none.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from globular.plotting import plot_curves
    >>> ax = plot_curves({"a": ([0.1, 0.2], [5.0, 4.0]), "b": ([0.3, 0.9], [4.5, 3.9])})
    >>> ax.get_legend_handles_labels()[1]
    ['a', 'b']
    """
    if not curves:
        raise ValueError("curves is empty: there is nothing to draw")
    axes = new_axes(ax)
    longest = 0.0
    for number, (name, curve) in enumerate(curves.items()):
        seconds, errors = _curve(name, curve)
        chosen = name in highlight or not highlight
        color = (BLUE if len(highlight) == 1 else HUES[number % len(HUES)]) if chosen else GREY
        width = 2.0 if chosen else 1.2
        axes.plot(seconds, errors, color=color, linewidth=width, marker="o", markersize=3, label=name)
        longest = max(longest, float(seconds[-1] / max(seconds[0], 1e-9)))
    if longest > 30:
        axes.set_xscale("log")
    axes.legend(frameon=False, loc="upper right")  # errors fall: the corner is free
    axes.set(xlabel="seconds", ylabel="error", title="Error over time")
    return tidy(axes)


def _curve(name: str, curve: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    history = getattr(curve, "history_", curve)
    if isinstance(history, History):
        errors = np.asarray(history.column("quantization_error"), dtype=np.float64)
        if np.isnan(errors).any():
            errors = np.asarray(history.column("objective"), dtype=np.float64)
        seconds = np.asarray(history.column("seconds"), dtype=np.float64)
    else:
        seconds, errors = (np.asarray(part, dtype=np.float64) for part in curve)
    if seconds.ndim != 1 or seconds.shape != errors.shape or not len(seconds):
        raise ValueError(f"curves[{name!r}] must be a fitted estimator, a History or (seconds, errors) of equal length")
    return seconds, errors


def plot_selection(selection: Selection, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw the error and the criterion of a selection over the number of clusters; returns the two Axes.

    Parameters
    ----------
    selection : Selection
        What :func:`globular.select` returned.
    axes : two matplotlib Axes, optional
        Where to draw; a new figure by default.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> X = np.repeat([[0.0], [5.0], [9.0]], 20, axis=0) + np.linspace(0, 0.1, 60)[:, None]
    >>> left, right = globular.select(X, range(2, 6), random_state=0).plot()
    >>> right.get_title()
    'silhouette: 3 clusters'
    """
    if axes is None:
        axes = pyplot().subplots(1, 2, figsize=(10, 3.8), layout="constrained")[1]
    from matplotlib.ticker import MaxNLocator

    left, right = axes
    sizes = selection.column("n_clusters")
    for panel, values, label in (
        (left, selection.column("error"), "mean squared error"),
        (right, selection.column(selection.criterion), _NAMES[selection.criterion]),
    ):
        panel.plot(sizes, values, color=BLUE, linewidth=1.8, marker="o", markersize=3.5)
        panel.axvline(selection.best, color=INK, linewidth=1, linestyle="--")
        panel.set(xlabel="clusters", ylabel=label)
        if sizes[-1] > 30 * sizes[0]:
            panel.set_xscale("log")
        else:
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(panel)
    errors = selection.column("error")
    if errors.min() > 0 and errors.max() > 30 * errors.min():
        left.set_yscale("log")
    left.set_title("Error")
    right.set_title(f"{selection.criterion}: {selection.best:,} clusters")
    return axes
