"""K-means whose clusters keep limits of size: rows where they cost least within the limits, then centres at the means.

Rows choose among the centres close to their closest one (`Nearest` with a graph of the centres). `Transport` puts them
where they cost least together, which is exact for these choices; sizes count rows, costs are w d². Where the limits
cannot be met so, the rows that are left over go beyond their choices, those that lose least first. The error falls from
round to round, or the rounds end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from globular.algorithms.kmeans.cells import EXACT_UP_TO, draw_cells, graph_by_cells
from globular.algorithms.kmeans.centers import update_centers
from globular.model.statistics import F64
from globular.seam.answers import Nearest, Own
from globular.seam.center_passes import Transport
from globular.seam.passes import Assign, Labels, SumByLabel, TakeLabels
from globular.seam.shard import Shard, answer

CHOICES, ALL_CHOICES = (16, 64), 1 << 21
"""Fewest and most centres that a row may go to, and about how many all rows may together; larger = less error for rows
in hundreds of columns, and 20 bytes each."""
GRAPH, ALL_AMONG = 32, 256
"""Centres close to a centre, among which its rows choose, and the number of centres up to which they choose among all;
larger = more distances."""
MOST_ROUNDS, LEAST_GAIN = 10, 3e-3
"""Rounds, and the share of the error that one has to gain; otherwise it is the last."""


def bytes_of_choices(n_rows: int, n_clusters: int) -> int:
    """Memory for the choices of all rows, squares and costs included."""
    return 24 * n_rows * n_choices(n_rows, n_clusters)


def n_choices(n_rows: int, n_clusters: int) -> int:
    """Centres that a row chooses among."""
    return min(n_asked(n_clusters), int(np.clip(ALL_CHOICES // n_rows, *CHOICES)))


def n_asked(n_clusters: int) -> int:
    """Centres that a row measures its distance to."""
    return GRAPH if n_clusters > ALL_AMONG else n_clusters


@dataclass(frozen=True, slots=True)
class Limited:
    """Clusters within the limits."""

    centers: F64
    """Means of their rows."""
    error: float
    """Σ w d²."""
    n_distances: int


def keep_limits(
    shard: Shard, centers: F64, least: int, most: int, *, unit: bool, seconds_left: float = np.inf
) -> Limited:
    """Rounds of assignments and means; the rows are left with the labels, which keep the limits."""
    started, everyone = time.perf_counter(), np.arange(shard.n_rows)
    weights = np.asarray(shard.take(everyone, "weights"), dtype=np.float64)
    closest, prices, best_error, n_distances = np.asarray(shard.labels).copy(), np.zeros(len(centers)), np.inf, 0
    if closest.min() < 0:
        shard.run(Assign(centers, want="labels"))
        closest = np.asarray(shard.labels).copy()
    best, labels = centers, closest
    for _ in range(MOST_ROUNDS):
        near, squares = _choices(shard, centers, closest)
        closest, n_distances = near[:, 0].copy(), n_distances + len(near) * n_asked(len(centers))
        found, prices = _assigned(shard, centers, near, squares * weights[:, None], prices, (least, most))
        shard.run(TakeLabels(found))
        sums = shard.run(SumByLabel(len(centers)))
        means = np.asarray(update_centers(shard, sums, centers, unit=unit, relocate=False).centers)
        error = float(weights @ answer(shard, Own(means), "squares"))
        gain = best_error - error
        if gain > 0:
            best, labels, best_error = means, found, error
        if gain <= LEAST_GAIN * error or time.perf_counter() - started > seconds_left:
            break
        centers = means
    shard.run(TakeLabels(labels))
    return Limited(best, best_error, n_distances)


def _choices(shard: Shard, centers: F64, closest: Labels) -> tuple[Labels, F64]:
    """For every row the closest centres and their squared distances."""
    C, n = len(centers), n_choices(shard.n_rows, len(centers))
    cells = draw_cells(shard, centers, np.random.default_rng(0)) if C > EXACT_UP_TO else None
    shard.run(TakeLabels(closest))
    graph = graph_by_cells(shard, centers, cells, GRAPH) if C > ALL_AMONG else None
    found = answer(shard, Nearest(centers, n, graph), "nearest")
    return found["center"].copy(), found["square"].copy()


def _assigned(
    shard: Shard, centers: F64, near: Labels, costs: F64, prices: F64, limits: tuple[int, int]
) -> tuple[Labels, F64]:
    """Labels that keep the limits, and the prices that led to them."""
    none = np.zeros_like(prices)
    prices = min(prices, none, key=lambda start: _violation(near, costs, start, limits))
    found = shard.local(centers).run(Transport(near, costs, prices, *limits))
    labels = found.labels
    own = np.where(near == labels[:, None], costs, np.inf).min(axis=1)
    for is_most in (True, False):
        while _move_beyond(shard, centers, labels, own, limits, is_most):
            pass
    return labels, found.prices


def _violation(near: Labels, costs: F64, prices: F64, limits: tuple[int, int]) -> int:
    """Rows that have to move if all go where it is cheapest at these prices, which may be those of other centres."""
    cheapest = (costs + prices[near]).argmin(axis=1)
    sizes = np.bincount(near[np.arange(len(near)), cheapest], minlength=len(prices))
    least, most = np.where(prices > 0, limits[1], limits[0]), np.where(prices < 0, limits[0], limits[1])
    return int(np.maximum(sizes - most, 0).sum() + np.maximum(least - sizes, 0).sum())


def _move_beyond(shard: Shard, centers: F64, labels: Labels, own: F64, limits: tuple[int, int], is_most: bool) -> bool:
    """Move rows beyond their choices, out of clusters too full or into those with too few; whether there were any.

    Those that lose least go first, each to the closest centre that has room or wants rows.
    """
    sizes = np.bincount(labels, minlength=len(centers))
    least, most = limits
    give, take = (sizes - most, most - sizes) if is_most else (sizes - least, least - sizes)
    n_wanted = int(np.maximum(give if is_most else take, 0).sum())
    if n_wanted == 0:
        return False
    rows, numbers = np.flatnonzero(give[labels] > 0), np.flatnonzero(take > 0)
    nearest = answer(shard.subset(rows), Nearest(centers[numbers], 1), "nearest")[:, 0]
    squares = nearest["square"] * np.asarray(shard.take(rows, "weights"))
    for k in np.argsort(squares - own[rows], kind="stable"):
        a, b = labels[rows[k]], numbers[nearest["center"][k]]
        if give[a] > 0 and take[b] > 0:
            give[a], take[b], n_wanted = give[a] - 1, take[b] - 1, n_wanted - 1
            labels[rows[k]], own[rows[k]] = b, squares[k]
        if n_wanted == 0:
            break
    return True
