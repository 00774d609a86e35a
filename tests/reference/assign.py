"""The passes of k-means, equation by equation: the oracle of `hard_pass`, `column_moments`, `farthest`.

Rows are dense float64 as the passes see them (`as_seen`), weights have one entry per row. N×C×D numbers are held at
once, so that is what limits the size of a test.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64, I64, FarRows, HardStatistics, SpareCenters
from globular.seam.answers import NEAREST


def as_seen(matrix: Any, *, unit_rows: bool = False) -> F64:
    """Rows as the passes see them: dense, float64, and x / ‖x‖ for the cosine (rows of zeros stay zero)."""
    rows: F64 = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix).astype(np.float64)
    if not unit_rows:
        return rows
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def squared_distances(rows: F64, centers: F64) -> F64:
    """‖x − μ_c‖², (N, C), in the difference form."""
    return np.sum((rows[:, None, :] - centers[None, :, :]) ** 2, axis=2)


def closest_centers(rows: F64, centers: F64) -> I64:
    """argmin_c ‖x − μ_c‖², (N,); the lowest index where several centres are equally close."""
    return np.argmin(squared_distances(rows, centers), axis=1)


def hard_pass(rows: F64, weights: F64, centers: F64, before: NDArray[np.integer]) -> tuple[I64, HardStatistics]:
    """Labels and the statistics of a hard assignment; `before` are the labels that the rows had."""
    C = len(centers)
    labels = closest_centers(rows, centers)
    member = labels[:, None] == np.arange(C)  # (N, C)
    votes = weights[:, None] * member
    statistics = HardStatistics(
        sums=votes.T @ rows, counts=votes.sum(axis=0),
        objective=float(weights @ np.sum((rows - centers[labels]) ** 2, axis=1)),
        n_changed=int(np.sum(labels != before)), n_distances=len(rows) * C,
    )  # fmt: skip
    return labels, statistics


def column_moments(rows: F64, weights: F64) -> tuple[F64, F64]:
    """x̄ = Σ w x / Σ w and Σ w (x − x̄)² / Σ w, of every column."""
    total = weights.sum()
    mean = weights @ rows / total
    return mean, weights @ (rows - mean) ** 2 / total


def farthest(rows: F64, weights: F64, centers: F64, labels: NDArray[np.integer], n: int) -> FarRows:
    """The n rows of positive weight with the largest ‖x − μ_label‖², farthest first, then in row order."""
    squared = np.sum((rows - centers[labels]) ** 2, axis=1)
    counting = np.flatnonzero(weights > 0)
    chosen = counting[np.argsort(-squared[counting], kind="stable")][:n]
    return FarRows(rows[chosen], squared[chosen], weights[chosen], labels[chosen].astype(np.int64))


def spare(rows: F64, weights: F64, centers: F64) -> SpareCenters:
    """Σ w (d₂² − d₁²) over the rows of each centre, d₁ and d₂ the distances to the closest and the second closest."""
    closest, second = np.sort(squared_distances(rows, centers), axis=1)[:, :2].T
    labels = closest_centers(rows, centers)
    losses = np.bincount(labels, weights * (second - closest), minlength=len(centers))
    return SpareCenters(losses.astype(np.float64), float(weights @ closest), len(rows) * len(centers))


def distances_in_halves(rows: F64, labels: NDArray[np.integer], firsts: F64, seconds: F64) -> F64:
    """‖x − μ′‖² and ‖x − μ″‖², (2, n)."""
    return np.stack([np.sum((rows - centers[labels]) ** 2, axis=1) for centers in (firsts, seconds)])


def halve(rows: F64, weights: F64, labels: NDArray[np.integer], firsts: F64, seconds: F64) -> HardStatistics:
    """Sums of the rows closer to μ″ of their label than to μ′, and Σ w min(‖x − μ′‖², ‖x − μ″‖²)."""
    to_first, to_second = distances_in_halves(rows, labels, firsts, seconds)
    votes = (weights * (to_second < to_first))[:, None] * (labels[:, None] == np.arange(len(firsts)))
    objective = float(weights @ np.minimum(to_first, to_second))
    return HardStatistics(votes.T @ rows, votes.sum(axis=0), objective, 0, 2 * len(rows))


def nearest(squares: F64, n: int) -> NDArray[Any]:
    """The n closest centres of every row by its squared distances; of those equally far the first comes first."""
    order = np.argsort(squares, axis=1, kind="stable")[:, :n]
    found = np.empty(order.shape, dtype=NEAREST)
    found["center"], found["square"] = order, np.take_along_axis(squares, order, axis=1)
    return found
