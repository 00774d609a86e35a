"""``globular demo``: thousands of clusters on this machine, compared with scikit-learn, with pictures."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from globular.cli.shared import output, print_columns, print_next, say

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    Array = NDArray[Any]

_ITERATIONS = 15


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds, iterations and error of one method."""

    name: str
    model: Any
    seconds: float
    error: float


def demo(
    folder: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="Where the pictures, the page and the model go.")
    ] = Path("globular-demo"),
    side: Annotated[int, Option(metavar="N", min=2, help="The data are side × side clusters on a grid.")] = 45,
) -> None:
    """Cluster generated data into thousands of clusters, beside scikit-learn. Takes less than a minute."""
    from globular.datasets import birch_grid
    from globular.persistence import check_destination, save
    from globular.report import write_report

    console = output()
    check_destination(folder / "model")
    folder.mkdir(parents=True, exist_ok=True)
    X = birch_grid(side, n_per_cluster=20, random_state=0).X
    n_clusters = side * side
    console.print(
        f"Data: {len(X):,} rows in the plane, {n_clusters:,} round clusters on a grid. The true centres have a "
        "mean squared error of 2."
    )
    results = []
    for name, model in _methods(n_clusters).items():
        console.print(f"Running {name} …")
        results.append(_measure(name, model, X))
    _print_results(console, results)
    ours = results[0].model
    save(ours, folder / "model")
    page = write_report(ours, folder / "report.html", data=X, title=f"{n_clusters:,} clusters on a grid")
    for path in (*_draw(folder, X, results), page):
        console.print(f"Written: {path}", soft_wrap=True)
    console.print(f"Open {folder / 'report.html'} in a browser: a map of the clusters.", soft_wrap=True)
    print_next(console, "globular", "info", folder / "model")


def _methods(n_clusters: int) -> dict[str, Any]:
    """The methods to compare, globular first; all but MiniBatchKMeans may do the same number of iterations."""
    import sklearn.cluster as peers

    import globular
    from globular.callbacks import Progress

    most: dict[str, Any] = {"max_iter": _ITERATIONS, "random_state": 0}
    return {
        "globular KMeans": globular.KMeans(n_clusters, callbacks=[Progress()], **most),
        "scikit-learn KMeans": peers.KMeans(n_clusters, n_init=1, tol=0.0, **most),
        "scikit-learn MiniBatchKMeans": peers.MiniBatchKMeans(n_clusters, n_init=1, random_state=0),
    }


def _measure(name: str, model: Any, X: Array) -> Result:
    """Fit and measure: seconds with seeding but without compiling, and the exact error over all rows."""
    import numpy as np
    from scipy.spatial import cKDTree

    from globular.estimators.running import Clock
    from globular.threads import default_threads

    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that so few iterations do not converge is no news
        model.fit(X)
    seconds = clock.wall_seconds - clock.compile_seconds
    distances, _ = cKDTree(model.cluster_centers_).query(X, workers=default_threads())
    return Result(name, model, seconds, float(np.square(distances).mean()))


def _print_results(console: Console, results: list[Result]) -> None:
    from globular.threads import default_threads

    rows = [
        (result.name, f"{result.seconds:.2f}", str(result.model.n_iter_), f"{result.error:.4f}") for result in results
    ]
    headings = ("", "seconds", "iterations", "mean squared error")
    print_columns(console, f"\nMeasured here with {default_threads()} threads", headings, rows, bold=0)
    chosen = results[0].model
    console.print(
        f"\nSeconds include the seeding but no compiling; the error is over all rows, and lower is better. globular "
        f"chose the {chosen.algorithm_} algorithm with {chosen.init_} seeding. Everybody may do {_ITERATIONS} "
        "iterations, except MiniBatchKMeans: it has its defaults, and its iterations are passes over the data.\n"
    )


def _draw(folder: Path, X: Array, results: list[Result]) -> list[Path]:
    """Draw the pictures, or name the extra to install if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say('no pictures: matplotlib is not installed; pip install "globular[plot]"')
        return []
    from globular.io import write_whole
    from globular.plotting import plot_clusters, plot_history, plot_time_quality

    model = results[0].model
    maps = Figure(figsize=(15, 8), layout="constrained")
    whole, corner = maps.subplots(1, 2)
    plot_clusters(X, model.labels_, model.cluster_centers_, ax=whole)
    plot_clusters(*_corner(X, model.labels_, model.cluster_centers_), ax=corner).set_title("a corner of it")
    curve = Figure(figsize=(7, 4.2), layout="constrained")
    plot_history(model, ax=curve.subplots())
    bars = Figure(figsize=(10, 3.2), layout="constrained")
    plot_time_quality(
        [result.name for result in results],
        [result.seconds for result in results],
        [result.error for result in results],
        axes=bars.subplots(1, 2),
        highlight=[results[0].name],
    )
    figures = {"clusters.png": maps, "history.png": curve, "time-quality.png": bars}
    return [
        write_whole(folder / name, partial(figure.savefig, format="png", dpi=130)) for name, figure in figures.items()
    ]


def _corner(X: Array, labels: Array, centers: Array) -> tuple[Array, Array, Array]:
    """Clusters with centres in the lower left part of the plane, and their rows."""
    import numpy as np

    low, high = X.min(axis=0), X.max(axis=0)
    inside = np.flatnonzero((centers < low + 0.22 * (high - low)).all(axis=1))
    rows = np.flatnonzero(np.isin(labels, inside))
    return X[rows], np.searchsorted(inside, labels[rows]), centers[inside]
