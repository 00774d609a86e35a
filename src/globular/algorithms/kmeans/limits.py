"""K-means whose clusters keep limits of size: rows where they cost least within the limits, then centres at the means.

Rows choose among the centres close to their closest one (`Nearest` with a graph of the centres). `Transport` puts them
where they cost least together, which is exact for these choices; sizes count rows, costs are w d². Where the limits
cannot be met so, the rows that are left over go beyond their choices, those that lose least first.

A group of rows with too few centres sends some far away, which means do not mend. So centres move, too: to rows that
were sent away, from where one is hardly missed because the two closest to it have room for its rows. First they do so
without transport, as if rows without room went to their second choice. The error falls from round to round, or the
rounds end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.cells import EXACT_UP_TO, draw_cells, graph_by_cells
from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.kmeans.swaps import cost_of_joining, matched_swaps
from globular.model.cells import places_within
from globular.model.graph import Graph
from globular.model.statistics import F64
from globular.seam.answers import Nearest, Own
from globular.seam.center_passes import Transport
from globular.seam.passes import Assign, Labels, SumByLabel, TakeLabels
from globular.seam.shard import Shard, answer

CHOICES, ALL_CHOICES = (16, 64), 1 << 21
"""Fewest and most centres that a row may go to, and about how many all rows may together; larger = less error for rows
in hundreds of columns, and 20 bytes each."""
GRAPH, FEW, ALL_AMONG = 32, 8, 256
"""Centres close to a centre among which its rows choose, those before transport, and the number of centres up to which
rows choose among all; larger = more distances."""
MOST_ROUNDS, LEAST_GAIN, LEAST_MOVED = 10, 6e-3, 1e-2
"""Rounds before transport, and with it; the share of the error that one has to gain, or of the centres that have to
move. Otherwise it is the last. More rounds, or smaller shares = less error."""


def bytes_of_choices(n_rows: int, n_clusters: int) -> int:
    """Memory for the choices of all rows, squares and costs included."""
    return 24 * n_rows * n_choices(n_rows, n_clusters)


def n_choices(n_rows: int, n_clusters: int) -> int:
    """Centres that a row chooses among."""
    return min(n_asked(n_clusters), int(np.clip(ALL_CHOICES // n_rows, *CHOICES)))


def n_asked(n_clusters: int, width: int = GRAPH) -> int:
    """Centres that a row measures its distance to."""
    return width if n_clusters > ALL_AMONG else n_clusters


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
    ends = time.perf_counter() + seconds_left
    weights = np.asarray(shard.take(np.arange(shard.n_rows), "weights"), dtype=np.float64)
    if np.asarray(shard.labels).min() < 0:
        shard.run(Assign(centers, want="labels"))
    closest, n_distances, prices, best_error = np.asarray(shard.labels).copy(), 0, np.zeros(len(centers)), np.inf
    best, labels, may_swap = centers, closest, True
    if len(centers) > 2 and most < shard.n_rows:
        centers, closest, n_distances = _spread(shard, centers, closest, weights, most, unit=unit, ends=ends)
    n = n_choices(shard.n_rows, len(centers))
    for _ in range(MOST_ROUNDS):
        near, squares, graph = _choices(shard, centers, closest, n)
        costs = squares * weights[:, None]
        closest, n_distances = near[:, 0].copy(), n_distances + len(near) * n_asked(len(centers))
        found, own, prices = _assigned(shard, centers, near, costs, prices, (least, most))
        shard.run(TakeLabels(found))
        sums = shard.run(SumByLabel(len(centers)))
        means = np.asarray(update_centers(shard, sums, centers, unit=unit, relocate=False).centers)
        error = float(weights @ answer(shard, Own(means), "squares"))
        gain = best_error - error
        if gain > 0:
            best, labels, best_error = means, found, error
        centers, n_moved = means, 0
        if may_swap and gain > 0:
            sent = found, closest, own - costs[:, 0]
            swapped = _swapped(shard, means, graph, sent, most, unit=unit)
            may_swap = 2 * swapped[2] > LEAST_MOVED * len(centers)  # few are hardly ever worth a round
            if may_swap:
                centers, closest, n_moved = swapped
        elif may_swap:  # centres that moved did not pay
            centers, closest, may_swap, gain = best, labels, False, np.inf
        is_settled = gain <= LEAST_GAIN * error and n_moved <= LEAST_MOVED * len(centers)
        if is_settled or time.perf_counter() > ends:
            break
    shard.run(TakeLabels(labels))
    return Limited(best, best_error, n_distances)


def _spread(
    shard: Shard, centers: F64, closest: Labels, weights: F64, most: int, *, unit: bool, ends: float
) -> tuple[F64, Labels, int]:
    """Centres moved to where clusters have no room, as if rows went to their second choice; distances looked at."""
    n_distances = 0
    for _ in range(MOST_ROUNDS):
        near, squares, graph = _choices(shard, centers, closest, 2, FEW)
        sent = _overflowing(near, squares * weights[:, None], most)
        shard.run(TakeLabels(sent[0]))
        centers, closest, n_moved = _swapped(shard, centers, graph, sent, most, unit=unit)
        n_distances += len(near) * n_asked(len(centers), FEW)
        if n_moved <= LEAST_MOVED * len(centers) or time.perf_counter() > ends:
            break
    return centers, closest, n_distances


def _overflowing(near: Labels, costs: F64, most: int) -> tuple[Labels, Labels, F64]:
    """Labels with second choices for rows that a cluster has no room for; the first choices, and what rows lose."""
    closest, losses = near[:, 0], costs[:, 1] - costs[:, 0]
    rows = np.flatnonzero((np.bincount(closest) > most)[closest])
    order = rows[np.lexsort((-losses[rows], closest[rows]))]
    away = order[places_within(np.bincount(closest[rows])) >= most]
    labels, lost = closest.copy(), np.zeros(len(closest))
    labels[away], lost[away] = near[away, 1], losses[away]
    return labels, closest.copy(), lost


def _swapped(
    shard: Shard, means: F64, graph: Graph, sent: tuple[Labels, Labels, F64], most: int, *, unit: bool
) -> tuple[F64, Labels, int]:
    """Centres, some of them moved to rows that were sent away; centres close to the rows; and how many have moved.

    `sent` are the labels, the closest centres, and what each row lost. The other centres go back to the means of the
    rows that stayed.
    """
    labels, closest, lost = sent
    C, stays = len(means), labels == closest
    if graph.shape[1] < 3:
        return means, closest, 0

    def means_of(some: NDArray[np.bool_], numbers: Labels) -> tuple[F64, F64]:
        shard.run(TakeLabels(np.where(some, numbers, C).astype(np.int32)))
        found = shard.run(SumByLabel(C + 1))
        part = replace(found, sums=found.sums[:C], counts=found.counts[:C])
        return np.asarray(update_centers(shard, part, means, unit=unit, relocate=False).centers), part.counts

    (at_home, counts), (away, n_away) = means_of(stays, labels), means_of(~stays, closest)
    shard.run(TakeLabels(labels))
    others, sizes = graph[:, 1:3], np.bincount(labels, minlength=C)
    losses = cost_of_joining(counts, at_home, counts[others[:, 0]], at_home[others[:, 0]])
    losses[sizes + sizes[others].sum(axis=1) > 2 * most] = np.inf
    gains = np.where(n_away > 0, np.bincount(closest, lost, C), 0.0)
    names, seats = matched_swaps(losses, others[:, 0], gains, np.arange(C, dtype=np.int32), safety=1.0)
    split = np.flatnonzero(seats >= 0)
    if len(split) == 0:
        return means, closest, 0
    at_home[seats[split]] = away[split]
    return at_home, names[closest], len(split)


def _choices(shard: Shard, centers: F64, closest: Labels, n: int, width: int = GRAPH) -> tuple[Labels, F64, Graph]:
    """For every row its n closest centres and their squared distances, and for every centre the closest others."""
    C = len(centers)
    cells = draw_cells(shard, centers, np.random.default_rng(0)) if C > EXACT_UP_TO else None
    shard.run(TakeLabels(closest))
    graph = graph_by_cells(shard, centers, cells, width)
    found = answer(shard, Nearest(centers, n, graph if C > ALL_AMONG else None), "nearest")
    return found["center"].copy(), found["square"].copy(), graph


def _assigned(
    shard: Shard, centers: F64, near: Labels, costs: F64, prices: F64, limits: tuple[int, int]
) -> tuple[Labels, F64, F64]:
    """Labels that keep the limits, what rows cost so, and the prices that led to them."""
    none = np.zeros_like(prices)
    prices = min(prices, none, key=lambda start: _violation(near, costs, start, limits))
    found = shard.local(centers).run(Transport(near, costs, prices, *limits))
    labels = found.labels
    own = np.where(near == labels[:, None], costs, np.inf).min(axis=1)
    for is_most in (True, False):
        while _move_beyond(shard, centers, labels, own, limits, is_most):
            pass
    return labels, own, found.prices


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
