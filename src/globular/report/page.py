"""The page itself: figures into HTML, arrays into base64, everything into one file."""

from __future__ import annotations

import base64
import gzip
import html
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
from globular.io.files import check_file, write_whole
from globular.model.history import Record
from globular.report import figures
from globular.report.clusters import Clusters, Scan, centers_of, describe_clusters, scan
from globular.report.pictures import Pictures, in_single, n_exemplars_for, parse_images, picture_clusters

_SCRIPTS = ("arrays.js", "charts.js", "map.js", "panel.js", "main.js")
_GRID = 65535
"""Positions on the map are whole numbers up to this."""


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
    path : path
        Ends in ``.html``. Written whole or not at all.
    data : array, CSR matrix, data frame, source or path, optional
        Rows to count, and to show for every cluster: usually those of the fit. Read once, block by block, and
        assigned by ``predict``; where that would take long, by ``predict(X, exact=False)``, and the page says so.
    title : str, optional
        Headline of the page.
    images : str, default="auto"
        Whether rows are images: "auto" looks at squares of at least 8 × 8 values, "28x28" or "32x32x3" says so, "none"
        says they are not.
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
    centers = centers_of(model)
    source = None if data is None else as_source(data)
    found = None if source is None else scan(model, centers, source, n_exemplars_for(*centers.shape), progress)
    clusters = describe_clusters(model, found)
    pictures = picture_clusters(clusters, found, source, wanted)
    report = Report(model, clusters, pictures, source, found)
    page = report.html(title).encode("utf-8", "replace")  # names of files may hold halves of characters
    return write_whole(target, lambda file: file.write(page))


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that goes into a page."""

    model: Any
    clusters: Clusters
    pictures: Pictures
    source: Source | None
    scan: Scan | None

    @property
    def n_rows(self) -> int | None:
        """Rows that the sizes count, where they count rows."""
        return round(float(self.clusters.sizes.sum())) if self.clusters.size_unit == "rows" else None

    def html(self, title: str | None) -> str:
        """The page as text."""
        heading = title or f"{len(self.clusters):,} clusters"
        parts = {
            "title": html.escape(heading),
            "subtitle": html.escape(self._subtitle()),
            "style": _asset("style.css"),
            "logo": _asset("logo.svg"),
            "figures": _figures(figures.key_figures(self.model, self.clusters, self.n_rows)),
            "sizes": _figures(figures.size_figures(self.clusters)),
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
        """How the rows were assigned, where not by comparing all centres; and how often that misses the closest."""
        if self.scan is None or self.scan.exact:
            return ""
        found = self.model.certificate(self.source) if hasattr(self.model, "certificate") else None
        often = (
            "now and then"
            if found is None
            else f"for {figures.percent(found.missed)} of {found.n_samples:,} sampled rows"
        )
        return f"Rows were assigned by predict(X, exact=False), which misses the best cluster {often}."

    def _settings(self) -> str:
        C, n_rows = len(self.clusters), self.n_rows
        changed, usual = figures.settings(self.model)
        n_bytes = None
        if self.source is not None and not self.source.is_sparse:
            n_bytes = self.source.n_rows * self.source.n_columns * self.source.dtype.itemsize
        sections = [
            ("Outcome", figures.outcome(self.model)),
            ("Time", figures.timings(self.model, n_rows)),
            ("Memory", figures.memory(self.model, C, n_rows, n_bytes)),
            ("Chosen settings", changed),
            ("Default settings", usual),
        ]
        frame = '<section class="facts"><h3>{}</h3><dl>{}</dl></section>'
        return "\n".join(frame.format(name, _figures(table)) for name, table in sections if table)

    def _data(self) -> dict[str, Any]:
        clusters, pictures = self.clusters, self.pictures
        history = figures.history_of(self.model)
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
    """An array as the page reads it: type, shape, and its compressed bytes as text."""
    packed = gzip.compress(np.ascontiguousarray(values).tobytes(), compresslevel=6, mtime=0)
    return {
        "type": values.dtype.newbyteorder("<").str[1:],
        "shape": list(values.shape),
        "bytes": base64.b64encode(packed).decode("ascii"),
    }


def _on_grid(positions: NDArray[np.float64]) -> tuple[NDArray[np.uint16], list[float]]:
    """Positions as whole numbers, both axes on one scale, and the width and height of the map, the larger one 1."""
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
