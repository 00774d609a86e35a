"""Pictures of fits: objective over time, errors of several fits, scores over the number of clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from globular.errors import import_extra
from globular.model.history import SEEDS, History
from globular.model.selection import LOWER_IS_BETTER, Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE = "#2563a8"
GREY = "#9aa3ad"
INK = "#2b2f33"
HUES = ("#4c9bd6", "#e8a33d", "#5bb18a", "#c96b8d", "#8f7fc9", "#b5893f", "#6fb3b8", "#d97b5c")
_NAMES = {
    "elbow": "elbow (change of slope)", "silhouette": "silhouette", "bic": "BIC (lower is better)",
    "icl": "ICL (lower is better)", "variance_ratio": "variance ratio",
}  # fmt: skip


def pyplot() -> Any:
    """Import matplotlib's pyplot, or raise an error that names the extra."""
    return import_extra("matplotlib.pyplot", "matplotlib", "plot", "drawing")


def new_axes(ax: Axes | None) -> Axes:
    """The given Axes, or the Axes of a new figure."""
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def tidy(axes: Axes) -> Axes:
    """Give the Axes a light grid and no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e5e7ea", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def plot_history(history: Any, ax: Axes | None = None) -> Axes:
    """Draw the objective against the seconds of the fit.

    Parameters
    ----------
    history : History or fitted estimator
        Records of the fit.

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
    # the first seeds leave an error beside which nothing else could be told apart
    n_seeds = sum(record.stage == SEEDS for record in records)
    records = records[min(max(n_seeds - 1, 0), len(records) - 1) :]
    seconds, objective = records.column("seconds"), records.column("objective")
    axes.plot(seconds, objective, color=BLUE, linewidth=1.8, marker="o", markersize=3.5)
    last, falls = records[-1], records[-1].objective < records[0].objective
    _mark_stages(axes, records, at_top=falls)
    axes.annotate(  # on the side where the curve is not
        f"{f'iteration {last.iteration}' if last.iteration else last.stage}: {last.objective:.5g}",
        (last.seconds, last.objective),
        xytext=(0, -8 if falls else 8),
        textcoords="offset points",
        ha="right",
        va="top" if falls else "bottom",
        color=INK,
    )
    axes.set(xlabel="seconds", ylabel="objective", title="Objective during the fit")
    axes.margins(x=0.04, y=0.15)
    return tidy(axes)


def _mark_stages(axes: Axes, records: History, *, at_top: bool) -> None:
    """Draw a line with a name where each stage begins, if there are several stages."""
    groups = [(stage, next(group)) for stage, group in groupby(records, key=lambda record: record.stage)]
    for stage, first in groups if len(groups) > 1 else ():
        axes.axvline(first.seconds, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            stage, (first.seconds, float(at_top)), xycoords=("data", "axes fraction"), xytext=(3, -2 if at_top else 2),
            textcoords="offset points", rotation=90, va="top" if at_top else "bottom", fontsize="small", color=INK,
        )  # fmt: skip


def plot_curves(curves: Mapping[str, Any], ax: Axes | None = None, highlight: Sequence[str] = ()) -> Axes:
    """Draw time–quality curves: the error of several runs against their seconds.

    Parameters
    ----------
    curves : mapping of str to fitted estimator, History or (seconds, errors)
        Curves by name.
    highlight : sequence of str, optional
        Names to draw in colour, the others in grey; by default all are in colour.

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
        history = history.iterations or history  # estimates on a part have no place beside errors of all rows
        errors = np.asarray(history.column("quantization_error"), dtype=np.float64)
        if np.isnan(errors).any():
            errors = np.asarray(history.column("objective"), dtype=np.float64)
        seconds = np.asarray(history.column("seconds"), dtype=np.float64)
    else:
        seconds, errors = (np.asarray(part, dtype=np.float64) for part in curve)
    if seconds.ndim != 1 or seconds.shape != errors.shape or not len(seconds):
        raise ValueError(f"curves[{name!r}] must be a fitted estimator, a History or (seconds, errors) of equal length")
    return seconds, errors


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


def plot_selection(selection: Scores, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
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
    sizes, kinds = selection.column("n_clusters"), selection.column("covariance_type")
    lines = list(dict.fromkeys(kinds.tolist()))
    for panel, name, label in (
        (left, "error", "mean squared error"),
        (right, selection.criterion, _NAMES[selection.criterion]),
    ):
        values, own = selection.column(name), name in LOWER_IS_BETTER  # k-means says the same for every type
        for number, kind in enumerate(lines if own else lines[:1]):
            color = BLUE if len(lines) == 1 or not own else HUES[number % len(HUES)]
            of = kinds == kind
            panel.plot(sizes[of], values[of], color=color, linewidth=1.8, marker="o", markersize=3.5, label=kind)
        if own and len(lines) > 1:
            panel.legend(frameon=False)
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
    kind = f", {selection.best_covariance_type}" if len(lines) > 1 else ""
    right.set_title(f"{selection.criterion}: {selection.best:,} clusters{kind}")
    return axes
