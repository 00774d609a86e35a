"""Centres and exemplar rows in a form that fits into a page: a table, a profile, or an image.

Up to a dozen columns are shown as numbers, more as a profile: a line over the columns, a byte each. Smooth square rows
are shown as images (256 columns may be 16 × 16 pixels or an embedding). Where the centres of all clusters would not
fit, only the largest clusters have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from globular.data.blocks import Source
from globular.model.statistics import F64, I64
from globular.report.clusters import Clusters, Scan, as_dense

Kind = Literal["table", "profile", "image"]
ImageShape = tuple[int, int, int]
"""Height, width, channels."""

EXEMPLARS = (6, 3, 1)
"""Numbers of rows per cluster to choose from; the page takes the largest that fits for all clusters."""
_BUDGET = 6_000_000
"""Largest size of centres and rows in a page, in bytes before compression."""
_TABLE_UP_TO = 12
_PROFILE_POINTS = 512
_SMALLEST_SIDE = 8
_SMALLEST_SINGLE, _LARGEST_SINGLE = 1e-30, 3e38
_SMOOTH = 0.75
"""Mean squared difference of neighbouring pixels, relative to that of any two, below which rows count as images."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Values of centres and closest rows, for the clusters `shown`."""

    kind: Kind
    columns: list[str]
    """Names of the columns of a table."""
    image: ImageShape | None
    low: float
    """Value of the byte 0."""
    high: float
    """Value of the byte 255."""
    shown: NDArray[np.int32]
    """Numbers of the clusters with values, ascending."""
    centers: NDArray[Any]
    """(shown, width): numbers for a table, bytes otherwise."""
    rows: NDArray[Any]
    """(shown, n_exemplars, width)."""
    row_numbers: I64
    """(shown, n_exemplars); −1 where a cluster has fewer rows."""
    distances: F64


def n_exemplars_for(C: int, D: int) -> int:
    """Number of rows per cluster that fit into the page."""
    return next((n for n in EXEMPLARS if C * (n + 1) * _width(D) <= _BUDGET), EXEMPLARS[-1])


def picture_clusters(
    clusters: Clusters, scan: Scan | None, source: Source | None, images: ImageShape | Literal["auto", "none"]
) -> Pictures:
    """Values of the centres and of the rows of the scan."""
    D = clusters.centers.shape[1]
    n = 0 if scan is None else scan.rows.shape[1]
    n_shown = _BUDGET // ((n + 1) * _width(D))
    shown = np.sort(np.argsort(-clusters.sizes, kind="stable")[:n_shown])  # the largest clusters, by number
    numbers = np.empty((len(shown), 0), dtype=np.int64) if scan is None else scan.rows[shown]
    distances = np.empty((len(shown), 0)) if scan is None else scan.distances[shown]
    rows = _take(source, numbers, D)
    image = _image_shape(images, D, rows[numbers >= 0])
    kind: Kind = "image" if image else "table" if D <= _TABLE_UP_TO else "profile"
    names = getattr(source, "column_names", None)
    if kind == "table":
        low, high = 0.0, 1.0
        of_centers: NDArray[Any] = in_single(clusters.centers[shown])
        of_rows: NDArray[Any] = rows
    else:
        of_centers, of_rows = clusters.centers[shown], rows
        if not image:
            of_centers, of_rows = _pool(of_centers), _pool(of_rows)
        low, high = _range(of_centers, of_rows[numbers >= 0])
        of_centers, of_rows = _as_bytes(of_centers, low, high), _as_bytes(of_rows, low, high)
    columns = [str(name) for name in names] if names and len(names) == D else [f"column {d}" for d in range(D)]
    return Pictures(
        kind=kind,
        columns=columns if kind == "table" else [],
        image=image,
        low=low,
        high=high,
        shown=shown.astype(np.int32),
        centers=of_centers,
        rows=of_rows,
        row_numbers=numbers,
        distances=distances,
    )


def _width(D: int) -> int:
    """Size of one row in bytes."""
    return 4 * D if D <= _TABLE_UP_TO else min(D, _PROFILE_POINTS) if not _sides(D) else D


def in_single(values: F64) -> NDArray[np.floating[Any]]:
    """Values as float32, which halves the page; as float64 where float32 would over- or underflow."""
    largest = np.abs(values).max(initial=0.0)
    fits = largest == 0 or _SMALLEST_SINGLE < largest < _LARGEST_SINGLE
    return values.astype(np.float32) if fits else values


def _take(source: Source | None, numbers: I64, D: int) -> NDArray[np.floating[Any]]:
    """Rows of the source by number; zeros where the number is −1."""
    rows = np.zeros((*numbers.shape, D))
    filled = numbers >= 0
    if source is not None and filled.any():
        unique, places = np.unique(numbers[filled], return_inverse=True)
        found = source.take(unique.astype(np.intp))
        rows[filled] = as_dense(found)[places]
    return in_single(rows)


def _pool(values: NDArray[Any]) -> NDArray[Any]:
    """Means of neighbouring columns, at most as many as points in a profile."""
    D = values.shape[-1]
    if D <= _PROFILE_POINTS:
        return values
    starts = np.linspace(0, D, _PROFILE_POINTS, endpoint=False).astype(np.intp)
    return np.add.reduceat(values, starts, axis=-1) / np.diff(np.append(starts, D))


def _range(centers: NDArray[Any], rows: NDArray[Any]) -> tuple[float, float]:
    """Smallest and largest value without a few outliers."""
    sample = np.concatenate([centers.ravel()[:: max(1, centers.size // 500_000)], rows.ravel()[::7]])
    low, high = np.quantile(sample, [0.0005, 0.9995])
    return float(low), float(high if high > low else low + 1.0)


def _as_bytes(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    return np.clip(np.rint((values - low) * (255.0 / (high - low))), 0, 255).astype(np.uint8)


# --- are the rows images? -----------------------------------------------------------------------------------------


def parse_images(text: str) -> ImageShape | Literal["auto", "none"]:
    """ "auto", "none", "28x28" or "32x32x3"."""
    if text == "auto" or text == "none":
        return text  # type: ignore[return-value]  # one of the two literals
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) not in (2, 3) or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"images {text!r}: write auto, none, or the size as 28x28 or 32x32x3")
    height, width, *channels = map(int, parts)
    return height, width, channels[0] if channels else 1


def _image_shape(images: ImageShape | Literal["auto", "none"], D: int, rows: NDArray[Any]) -> ImageShape | None:
    if images == "none":
        return None
    if images == "auto":
        side = _sides(D)
        return side if side and len(rows) and _is_smooth(rows[:200], side) else None
    if math.prod(images) != D or images[2] not in (1, 3):
        raise ValueError(
            f"images of {'x'.join(map(str, images))} do not fit {D} columns; height × width × channels (1 or 3) "
            "must give the number of columns"
        )
    return images


def _sides(D: int) -> ImageShape | None:
    """Shape of a square image with one or three channels and D values; None if there is none."""
    for channels in (1, 3):
        side = math.isqrt(D // channels)
        if side >= _SMALLEST_SIDE and side * side * channels == D:
            return side, side, channels
    return None


def _is_smooth(rows: NDArray[Any], shape: Sequence[int]) -> bool:
    """True if pixels resemble their neighbours, in both directions, more than other pixels of the row."""
    images = rows.reshape(-1, *shape).astype(np.float64)
    typical = 2 * images.reshape(len(images), -1).var(axis=1).mean()
    return typical > 0 and all(
        float(np.square(np.diff(images, axis=axis)).mean()) < _SMOOTH * typical for axis in (1, 2)
    )
