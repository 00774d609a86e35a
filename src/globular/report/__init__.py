"""One HTML page about a fitted model: convergence, sizes, map and contents of its clusters.

The page is one HTML file that needs no network and no server; it is made for 10 and for 100,000 clusters alike. Here
figures become HTML, arrays base64, and everything one file.
"""

from __future__ import annotations

import base64
import gzip
import html
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular._version import __version__
from globular.data.blocks import Source
from globular.data.open import as_source
from globular.io import check_file, file_size, in_units, write_whole
from globular.model.history import History, Record
from globular.report.clusters import Clusters, Scan, centers_of, describe_clusters, scan
from globular.report.pictures import Pictures, in_single, n_exemplars_for, parse_images, picture_clusters

__all__ = ["write_report"]

_SCRIPTS = ("arrays.js", "charts.js", "map.js", "panel.js", "main.js")
_GRID = 65535
"""Largest coordinate on the map; positions are whole numbers."""


def write_report(
    model: Any,
    path: str | os.PathLike[str],
    *,
    data: Any = None,
    title: str | None = None,
    images: str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> Path:
    """Write one self-contained HTML page about a fitted model.

    The page shows the convergence, the sizes of the clusters, the distances per step and a map of the clusters
    that can be zoomed and searched. It needs no network.

    Parameters
    ----------
    model : fitted k-means model or mixture
        For a :class:`globular.ResidualKMeans` the page shows the clusters of the first level, and figures of all.
    path : path
        Ends in ``.html``. Written whole or not at all.
    data : array, CSR matrix, data frame, source or path, optional
        Rows to count and to show for every cluster, usually the rows of the fit. Read once, block by block, and
        assigned by ``predict``, or by ``predict(X, exact=False)`` where that would take long; the page then says so.
    title : str, optional
        Headline of the page.
    images : str, default="auto"
        Whether to show rows as images: "auto" tests squares of at least 8 × 8 values for smoothness, "28x28" or
        "32x32x3" is their shape, "none" shows none.
    progress : callable, optional
        Called with the number of rows read so far.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import globular
    >>> from globular.datasets import many_blobs
    >>> from globular.report import write_report
    >>> X = many_blobs(500, 10, 3, random_state=0).X
    >>> model = globular.KMeans(n_clusters=10, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(model, pathlib.Path(folder, "report.html"), data=X)
    ...     print(page.read_text(encoding="utf-8")[:15])
    <!doctype html>
    """
    target = check_file(path, (".html", ".htm"), "a report")
    wanted = parse_images(images)
    check_is_fitted(model)
    shown = model.first_level() if hasattr(model, "first_level") else model
    centers = centers_of(shown)
    source = None if data is None else as_source(data)
    found = None if source is None else scan(shown, centers, source, n_exemplars_for(*centers.shape), progress)
    clusters = describe_clusters(shown, found)
    pictures = picture_clusters(clusters, found, source, wanted)
    report = Report(model, clusters, pictures, source, found)
    page = report.html(title).encode("utf-8", "replace")  # names of files may hold halves of characters
    return write_whole(target, lambda file: file.write(page))


@dataclass(frozen=True, slots=True)
class Report:
    """Contents of a page."""

    model: Any
    clusters: Clusters
    pictures: Pictures
    source: Source | None
    scan: Scan | None

    @property
    def n_rows(self) -> int | None:
        """Number of rows, if sizes count rows."""
        return round(float(self.clusters.sizes.sum())) if self.clusters.size_unit == "rows" else None

    def html(self, title: str | None) -> str:
        """Make the page as text."""
        heading = title or f"{len(self.clusters):,} clusters"
        parts = {
            "title": html.escape(heading),
            "subtitle": html.escape(self._subtitle()),
            "style": _asset("style.css"),
            "logo": _asset("logo.svg"),
            "figures": _figures(key_figures(self.model, self.clusters, self.n_rows)),
            "sizes": _figures(size_figures(self.clusters)),
            "settings": self._settings(),
            # JSON that may stand inside a script element
            "data": json.dumps(self._data(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
            "script": "\n".join(_asset(name) for name in _SCRIPTS),
            "footer": f"globular {__version__}, {datetime.now(UTC):%d %B %Y}",
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))

    def _subtitle(self) -> str:
        words = [type(self.model).__name__]
        algorithm = getattr(self.model, "algorithm_", None)
        if algorithm:
            words.append(f"{algorithm} algorithm")
        if getattr(self.model, "metric", "euclidean") != "euclidean":
            words.append(f"{self.model.metric} metric")
        if self.source is not None and self.source.name != "X":
            words.append(Path(self.source.name).name)
        return " · ".join(words)

    def _assignment(self) -> str:
        """Note on rows that were not compared with all centres, and how often they miss the closest one."""
        if self.scan is None or self.scan.exact:
            return ""
        found = self.model.certificate(self.source) if hasattr(self.model, "certificate") else None
        often = "now and then" if found is None else f"for {percent(found.missed)} of {found.n_samples:,} sampled rows"
        return f"Rows were assigned by predict(X, exact=False), which misses the best cluster {often}."

    def _settings(self) -> str:
        C, n_rows = len(self.clusters), self.n_rows
        changed, usual = settings(self.model)
        n_bytes = None
        if self.source is not None and not self.source.is_sparse:
            n_bytes = self.source.n_rows * self.source.n_columns * self.source.dtype.itemsize
        sections = [
            ("Outcome", outcome(self.model)),
            ("Levels", levels(self.model)),
            ("Time", timings(self.model, n_rows)),
            ("Memory", memory(self.model, C, n_rows, n_bytes)),
            ("Chosen settings", changed),
            ("Default settings", usual),
        ]
        frame = '<section class="facts"><h3>{}</h3><dl>{}</dl></section>'
        return "\n".join(frame.format(name, _figures(table)) for name, table in sections if table)

    def _data(self) -> dict[str, Any]:
        clusters, pictures = self.clusters, self.pictures
        history = history_of(self.model)
        positions, extent = _on_grid(clusters.plane.positions)
        mixture = hasattr(self.model, "lower_bound_")
        arrays: dict[str, NDArray[Any]] = {
            "positions": positions,
            "sizes": clusters.sizes.astype(np.uint32 if clusters.size_unit == "rows" else np.float32),
            "neighbors": clusters.neighbors,
            "shown": pictures.shown,
            "centers": pictures.centers,
            "rows": pictures.rows,
            "row_numbers": pictures.row_numbers.astype(np.uint32),  # −1 becomes the largest number
            "distances": in_single(np.where(np.isfinite(pictures.distances), pictures.distances, 0)),
            **{
                f"history_{field.name}": history.column(field.name).astype(np.float64)
                for field in fields(Record)
                if field.name != "stage"
            },
        }
        if clusters.errors is not None:
            arrays["errors"] = in_single(clusters.errors)
        return {
            "n": len(clusters),
            "extent": extent,
            "axes": clusters.plane.axes,
            "explained": clusters.plane.explained,
            "size_unit": clusters.size_unit,
            "error_name": clusters.error_name,
            "graph_of_model": clusters.graph_of_model,
            "n_rows": self.n_rows,
            "objective": "log-likelihood" if mixture else "sum of squared distances",
            "assignment": self._assignment(),
            "has_rows": self.scan is not None,
            "history_stage": [record.stage for record in history],
            "pictures": {name: getattr(pictures, name) for name in ("kind", "columns", "image", "low", "high")},
            "arrays": {name: encode_array(values) for name, values in arrays.items()},
        }


def encode_array(values: NDArray[Any]) -> dict[str, Any]:
    """Encode an array for the page: type, shape and compressed bytes as text."""
    packed = gzip.compress(np.ascontiguousarray(values).tobytes(), compresslevel=6, mtime=0)
    return {
        "type": values.dtype.newbyteorder("<").str[1:],
        "shape": list(values.shape),
        "bytes": base64.b64encode(packed).decode("ascii"),
    }


def _on_grid(positions: NDArray[np.float64]) -> tuple[NDArray[np.uint16], list[float]]:
    """Positions as whole numbers on one scale, and width and height of the map, the larger one 1."""
    low = positions.min(axis=0)
    span = np.ptp(positions, axis=0)
    scale = float(span.max()) or 1.0
    grid = np.rint((positions - low) / scale * _GRID).astype(np.uint16)
    return grid, (span / scale).tolist()


def _figures(table: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in table)


@cache
def _asset(name: str) -> str:
    return files("globular.report").joinpath("assets", name).read_text(encoding="utf-8")


Table = list[tuple[str, str]]


def key_figures(model: Any, clusters: Clusters, n_rows: int | None) -> Table:
    """Large numbers at the head of the page."""
    history = history_of(model)
    figures: Table = [("clusters", f"{len(clusters):,}")]
    if n_rows is not None:
        figures.append(("rows", f"{n_rows:,}"))
    figures.append(("columns", f"{clusters.centers.shape[1]:,}"))
    error = mean_squared_error(model, history)
    if error is not None:
        figures.append(("mean squared error", f"{error:.5g}"))
    elif getattr(model, "lower_bound_", None) is not None:
        figures.append(("log-likelihood per row", f"{model.lower_bound_:.5g}"))
    if history:
        figures.append(("iterations", f"{len(history.iterations):,}"))
        compiling = history[-1].compile_seconds
        after = f", after {compiling:,.2g} of compiling" if compiling else ""
        figures.append((f"seconds{after}", f"{history[-1].seconds:,.3g}"))
    if (recall := getattr(model, "label_recall_", 1.0)) < 1:
        figures.append(("of the labels of the fit miss the closest centre", percent(1 - recall)))
    return figures


def mean_squared_error(model: Any, history: History) -> float | None:
    """Inertia per unit of weight, with the weight implied by the last record."""
    last = history[-1] if history else None
    if last is None or last.quantization_error is None or not hasattr(model, "inertia_"):
        return None
    return float(model.inertia_) * last.quantization_error / last.objective if last.objective else 0.0


def history_of(model: Any) -> History:
    """History of the fit; empty if there is none."""
    found = getattr(model, "history_", None)
    return found if isinstance(found, History) else History()


def size_figures(clusters: Clusters) -> Table:
    """Figures about the evenness of cluster sizes."""
    sizes, C = clusters.sizes, len(clusters)
    if not clusters.size_unit or sizes.sum() <= 0:
        return []
    share = sizes / sizes.sum()
    positive = share[share > 0]
    entropy = -float(positive @ np.log(positive))

    def shown(value: float) -> str:
        return f"{value:,.0f}" if clusters.size_unit == "rows" else percent(value)

    figures: Table = [
        ("smallest", shown(sizes.min())),
        ("median", shown(float(np.median(sizes)))),
        ("largest", shown(sizes.max())),
    ]
    if clusters.size_unit == "rows":
        figures.append(("empty", f"{int((sizes == 0).sum()):,}"))
    figures.append(("imbalance factor", f"{C * float(share @ share):.3g}"))
    figures.append(("effective clusters", f"{np.exp(entropy):,.0f}"))
    return figures


def settings(model: Any) -> tuple[Table, Table]:
    """Parameters in two lists: changed from the default, and unchanged."""
    changed: Table = []
    usual: Table = []
    defaults = {name: p.default for name, p in inspect.signature(type(model)).parameters.items()}
    for name, value in sorted(model.get_params(deep=False).items()):
        if name in ("callbacks", "verbose"):
            continue
        entry = (name, _shown_value(value))
        default = defaults.get(name)
        comparable = not (isinstance(value, np.ndarray | list) or isinstance(default, np.ndarray))
        (usual if comparable and value == default else changed).append(entry)
    return changed, usual


def outcome(model: Any) -> Table:
    """Results of the fit, and why it ended."""
    names = ("algorithm_", "init_", "stopped_", "converged_", "n_iter_", "inertia_", "lower_bound_", "label_recall_")
    found = [(name, getattr(model, name, None)) for name in names]
    return [(name, _shown_value(value)) for name, value in found if value is not None]


def levels(model: Any) -> Table:
    """For each level of a residual quantiser: error, and use of its words."""
    if not hasattr(model, "codes_"):
        return []
    table: Table = [("rows with the code of another row", f"{model.n_collisions_:,}")]
    for number, (sizes, error) in enumerate(zip(model.cluster_sizes_, model.inertia_per_level_, strict=True), 1):
        share = sizes[sizes > 0] / sizes.sum()
        effective = np.exp(-float(share @ np.log(share)))
        table.append((f"level {number}: inertia", f"{error:.6g}"))
        table.append((f"level {number}: words in use", f"{len(share):,} of {len(sizes):,}, {effective:,.0f} effective"))
    return table


def timings(model: Any, n_rows: int | None) -> Table:
    """Seconds of the stages, from the history."""
    history = history_of(model)
    if not history:
        return []
    iterations = np.asarray(history.iterations.column("seconds"), dtype=np.float64)
    stages = history.stage_seconds
    table: Table = [(stage, _seconds(spent)) for stage, spent in stages.items()] if len(stages) > 1 else []
    if len(iterations):
        table.append(("until the first iteration was done", _seconds(iterations[0])))
    steps = np.diff(iterations)
    if len(steps):
        table.append(("an iteration after that (median)", _seconds(float(np.median(steps)))))
        evaluated = int(np.asarray(history.iterations.column("n_distances"))[1:].sum())
        if steps.sum() > 0:
            pace = in_units(evaluated / float(steps.sum()), "", " thousand", " million", " billion", " trillion")
            table.append(("distances per second", pace))
    table.append(("in all", _seconds(history[-1].seconds)))
    if history[-1].compile_seconds:
        table.append(("compiling kernels, beside that", _seconds(history[-1].compile_seconds)))
    table.append(("distances", f"{model.n_distances_:,}"))
    if n_rows:
        table.append(("distances of a row", f"{model.n_distances_ / n_rows:,.4g}"))
    return table


def memory(model: Any, C: int, n_rows: int | None, data_bytes: int | None) -> Table:
    """Bytes of the model's arrays, of the data, and of an N × C table for comparison."""
    table: Table = []
    for name, value in sorted(vars(model).items()):
        if name.endswith("_") and isinstance(value, np.ndarray) and value.ndim:
            table.append((name, file_size(value.nbytes)))
    if data_bytes is not None:
        table.append(("data", file_size(data_bytes)))
    if n_rows:
        table.append(("rows × clusters, never held", file_size(4 * n_rows * C)))
    return table


def percent(share: float) -> str:
    """Format a share as a percentage with three digits."""
    return f"{100 * share:.3g} %"


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.3g} s"


def _shown_value(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"array {' × '.join(map(str, value.shape))} {value.dtype}"
    if isinstance(value, float):
        return f"{value:.8g}"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
