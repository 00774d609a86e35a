"""`search_neighborhoods` for rows of few columns: vectorised over the rows of a group instead of over the columns.

A batch of rows of one group lies in scratch memory, columns first. What happens to every row is a loop over the batch
that touches few arrays, so that the compiler turns it into vectors (it gives up where it would have to prove many
arrays apart); what happens to few rows, which leave the group or meet a random candidate nearby, is left to loops over
those. Batches are filled up to whole vectors by rows of weight zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.kernels.compile import inline, kernel
from globular.kernels.neighborhoods import HORIZON, flush_table
from globular.kernels.random import random_cluster, random_outside

ROWS_AT_ONCE = 256
LANES = 16
"""Batches are filled up to a multiple of this; it divides `ROWS_AT_ONCE`."""


class Batch(NamedTuple):
    """Scratch memory for up to `ROWS_AT_ONCE` rows of one group."""

    x: NDArray[np.floating]
    """The rows as the passes see them, (D, rows)."""
    weight: NDArray[np.float64]
    d: NDArray[np.floating]
    """Squared distances to the neighbours, (G, rows)."""
    closest: NDArray[np.floating]
    farthest: NDArray[np.floating]
    winner: NDArray[np.int32]
    """Which neighbour is closest."""
    drawn: NDArray[np.int32]
    """A random cluster."""
    near: NDArray[np.floating]
    """Squared distance to it."""
    label: NDArray[np.int32]
    """Where the row goes."""
    exact: NDArray[np.float64]
    """Its squared distance there, in float64."""

    @classmethod
    def make(cls, D: int, G: int, dtype: np.dtype) -> Batch:
        B = ROWS_AT_ONCE
        return cls(
            np.zeros((D, B), dtype), np.zeros(B), np.zeros((G, B), dtype), np.zeros(B, dtype), np.zeros(B, dtype),
            np.zeros(B, np.int32), np.zeros(B, np.int32), np.zeros(B, dtype), np.zeros(B, np.int32), np.zeros(B),
        )  # fmt: skip


@kernel
def search_few_columns(
    rows: Any,  # IN  (array,): dense rows of few columns
    places: Any,  # IN  as in `search_neighborhoods`, like all that follows
    order: Any,  # IN
    weights: Any,  # IN
    scales: Any,  # IN
    starts: Any,  # IN
    first: int,  # IN
    last: int,  # IN
    graph: Any,  # IN
    quick: Any,  # IN
    centers: Any,  # IN
    n_random: int,  # IN
    seed: Any,  # IN
    first_row: int,  # IN
    labels: Any,  # OUT
    errors: Any,  # OUT
    moved: Any,  # OUT
    pairs: Any,  # OUT
    pair_sums: Any,  # OUT
    batch: Any,  # scratch, a Batch
    table: Any,  # scratch (G, G + 1) float64
) -> tuple[int, int, int]:
    """C′ = 1, few columns. O(rows · (G + n_random) · D)."""
    G = graph.shape[1]
    n_distances, n_pairs, n_moved = 0, 0, 0
    estimate = pairs.shape[1] > 0
    base, size = starts[first], batch.x.shape[1]
    for p in range(first, last):
        objective = 0.0
        if estimate:
            table[:, :] = 0
        for begin in range(starts[p] - base, starts[p + 1] - base, size):
            m = min(size, starts[p + 1] - base - begin)
            width = (m + LANES - 1) & -LANES
            load_batch(rows[0], places, order, scales, weights, begin, m, width, batch)
            compare_neighbors(batch, width, quick, graph, p)
            n_distances += m * G
            settle_own(batch, width, centers, p)
            settle_winners(batch, m, centers, graph, p)
            for t in range(n_random):
                draw_randoms(batch, m, width, quick, seed, first_row, order, begin, t)
                for k in range(m):
                    # all neighbours are nearer than this: what is beyond is no neighbour, and of no use as one
                    if batch.near[k] > HORIZON * batch.farthest[k]:
                        n_distances += 1
                        continue
                    other = random_outside(seed, first_row + order[begin + k], t, graph, p)
                    if other < 0:
                        continue
                    n_distances += 1
                    distance = column_distance(batch.x, k, centers, other)
                    closest, label = batch.exact[k], batch.label[k]
                    wins = distance < closest
                    if estimate and distance < HORIZON * batch.farthest[k]:
                        pairs[0, n_pairs] = other if wins else label
                        pairs[1, n_pairs] = label if wins else other
                        pair_sums[0, n_pairs] = batch.weight[k] * np.sqrt(np.float32(max(distance, closest)))
                        pair_sums[1, n_pairs] = batch.weight[k]
                        n_pairs += 1
                    if wins:
                        batch.exact[k], batch.label[k] = distance, other
            if estimate:
                add_to_table(batch, m, width, graph, p, table)
            for k in range(width):
                objective += batch.weight[k] * batch.exact[k]
            for k in range(m):
                if batch.label[k] != p:
                    labels[order[begin + k]] = batch.label[k]
                    moved[0, n_moved], moved[1, n_moved] = order[begin + k], p
                    n_moved += 1
        errors[p] = objective
        if estimate:
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
    return n_distances, n_pairs, n_moved


@inline
def load_batch(
    matrix: Any, places: Any, order: Any, scales: Any, weights: Any, begin: int, m: int, width: int, batch: Any
) -> None:
    """x and weight of the batch; rows beyond m keep what was there, without weight. O(m · D)."""
    x, weight = batch.x, batch.weight
    for j in range(x.shape[0]):
        for k in range(m):
            x[j, k] = matrix[places[begin + k], j]
    if scales.shape[0]:
        for k in range(m):
            scale = x.dtype.type(scales[order[begin + k]])
            for j in range(x.shape[0]):
                x[j, k] *= scale
    if weights.shape[0]:
        for k in range(m):
            weight[k] = weights[order[begin + k]]
    else:
        for k in range(m):
            weight[k] = 1.0
    for k in range(m, width):
        weight[k] = 0.0


@inline
def compare_neighbors(batch: Any, width: int, quick: Any, graph: Any, p: int) -> None:
    """Squared distances to all of G_p, the closest and the farthest of it. O(width · G · D)."""
    d, closest, farthest, winner = batch.d, batch.closest, batch.farthest, batch.winner
    for g in range(graph.shape[1]):
        distances_of_columns(batch.x, width, quick, graph[p, g], d, g)
        if g == 0:
            for k in range(width):
                closest[k] = d[0, k]
            for k in range(width):
                farthest[k] = d[0, k]
            for k in range(width):
                winner[k] = 0
            continue
        name = np.int32(g)
        for k in range(width):
            farthest[k] = d[g, k] if d[g, k] > farthest[k] else farthest[k]
        for k in range(width):
            winner[k] = name if d[g, k] < closest[k] else winner[k]
        for k in range(width):
            closest[k] = d[g, k] if d[g, k] < closest[k] else closest[k]


@inline
def settle_own(batch: Any, width: int, centers: Any, p: int) -> None:
    """What a row has if it stays, in float64. O(width · D)."""
    x, exact, label = batch.x, batch.exact, batch.label
    for k in range(width):
        label[k] = p
    for k in range(width):
        exact[k] = 0.0
    for j in range(x.shape[0]):
        center = centers[p, j]
        for k in range(width):
            difference = x[j, k] - center
            exact[k] += difference * difference


@inline
def settle_winners(batch: Any, m: int, centers: Any, graph: Any, p: int) -> None:
    """Rows that are closer to a neighbour leave for it, but only if float64 agrees. O(m), and O(D) for each of them."""
    winner, exact, label = batch.winner, batch.exact, batch.label
    for k in range(m):
        if winner[k] != 0:
            distance = column_distance(batch.x, k, centers, graph[p, winner[k]])
            if distance < exact[k]:
                exact[k] = distance
                label[k] = graph[p, winner[k]]
            else:
                winner[k] = 0


@inline
def draw_randoms(
    batch: Any, m: int, width: int, quick: Any, seed: Any, first_row: int, order: Any, begin: int, t: int
) -> None:
    """The first draw of random candidate t, and how far it is in the rows' own precision. O(width · D)."""
    x, drawn, near = batch.x, batch.drawn, batch.near
    n_clusters = quick.shape[0]
    for k in range(m):
        drawn[k] = random_cluster(seed, first_row + order[begin + k], 4 * t, n_clusters)
    for k in range(width):
        near[k] = 0
    for j in range(x.shape[0]):
        for k in range(width):
            difference = x[j, k] - quick[drawn[k], j]
            near[k] += difference * difference


@inline
def add_to_table(batch: Any, m: int, width: int, graph: Any, p: int, table: Any) -> None:
    """Σ w d by winner and candidate, for rows that have not left for a random cluster. O(width · G)."""
    d, weight, winner, label = batch.d, batch.weight, batch.winner, batch.label
    G = graph.shape[1]
    stayed = 0.0
    for k in range(width):
        stayed += weight[k] if label[k] == p else 0.0
    table[0, G] += stayed
    for g in range(1, G):
        total = 0.0
        for k in range(width):
            total += weight[k] * np.sqrt(d[g, k]) if label[k] == p else 0.0
        table[0, g] += total
    for k in range(m):
        if winner[k] != 0 and label[k] == graph[p, winner[k]]:
            table[winner[k], G] += weight[k]
            for g in range(G):
                table[winner[k], g] += weight[k] * np.sqrt(d[g, k])


@inline
def distances_of_columns(x: Any, width: int, centers: Any, c: int, d: Any, g: int) -> None:
    """d[g, k] = ‖x[:, k] − m_c‖² for k < width; the first two columns in one go. O(width · D)."""
    D = x.shape[0]
    if D == 1:
        a = centers[c, 0]
        for k in range(width):
            first = x[0, k] - a
            d[g, k] = first * first
        return
    a, b = centers[c, 0], centers[c, 1]
    for k in range(width):
        first, second = x[0, k] - a, x[1, k] - b
        d[g, k] = first * first + second * second
    for j in range(2, D):
        a = centers[c, j]
        for k in range(width):
            first = x[j, k] - a
            d[g, k] += first * first


@inline
def column_distance(x: Any, k: int, centers: Any, c: int) -> float:
    """‖x[:, k] − m_c‖² in float64. O(D)."""
    total = 0.0
    for j in range(x.shape[0]):
        difference = x[j, k] - centers[c, j]
        total += difference * difference
    return total
