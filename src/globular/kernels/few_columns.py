"""`search_neighborhoods` for rows of few columns: vectorised over rows instead of over the columns.

A batch of rows, of one group or of several that follow each other, lies in scratch memory, columns first, and so do the
centres that each of them looks at. What happens to every row is a loop over the batch that touches few arrays, so that
the compiler turns it into vectors (it gives up where it would have to prove many arrays apart); what happens to few
rows, which leave their group or meet a random candidate nearby, is left to loops over those. The last batch is filled
up to whole vectors by rows of weight zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, Zeros, inline, kernel, take_number
from globular.kernels.group_tables import HORIZON, add_groups, write_pair
from globular.kernels.random import random_cluster, random_outside

ROWS_AT_ONCE = 256
LANES = 16  # batches are filled up to a multiple of this; it divides `ROWS_AT_ONCE`


class Batch(NamedTuple):
    """Scratch memory for up to `ROWS_AT_ONCE` rows."""

    x: NDArray[np.floating]
    """The rows as the passes see them, (D, rows)."""
    weight: NDArray[np.float64]
    group: NDArray[np.int32]
    own: NDArray[np.float64]
    """The centre of their group, (D, rows)."""
    around: NDArray[np.floating]
    """The centres of its neighbours in the rows' dtype, (G · D, rows)."""
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
        B, single = ROWS_AT_ONCE, np.int32
        return cls(
            np.zeros((D, B), dtype), np.zeros(B), np.zeros(B, single), np.zeros((D, B)), np.zeros((G * D, B), dtype),
            np.zeros((G, B), dtype), np.zeros(B, dtype), np.zeros(B, dtype), np.zeros(B, single), np.zeros(B, single),
            np.zeros(B, dtype), np.zeros(B, single), np.zeros(B),
        )  # fmt: skip


@kernel
def search_few_columns(
    queue: Queue,  # IN/OUT  as in `search_neighborhoods`, like all that follows
    tasks: Any,  # IN
    room: Any,  # IN
    rows: Any,  # IN  (array,): dense rows of few columns
    places: Any,  # IN
    order: Any,  # IN
    weights: Any,  # IN
    scales: Any,  # IN
    starts: Any,  # IN
    graph: Any,  # IN
    quick: Any,  # IN
    centers: Any,  # IN
    n_random: int,  # IN
    seed: Any,  # IN
    first_row: int,  # IN
    labels: Any,  # OUT
    grouped: Any,  # OUT
    moved: Any,  # OUT
    pairs: Any,  # OUT
    pair_sums: Any,  # OUT
    objectives: Any,  # OUT
    numbers: Any,  # OUT
    batch: Zeros,  # scratch, a Batch of zeros
    table: Scratch,  # scratch (G, G + 1) float64
) -> None:
    """C′ = 1, few columns. O(rows · (G + n_random) · D)."""
    size, estimate = batch.x.shape[1], pairs.shape[1] > 0
    task = take_number(queue)
    while task < tasks.shape[0] - 1:
        base, stop = starts[tasks[task]], starts[tasks[task + 1]]
        objective, n_distances, n_pairs, n_moved = 0.0, (stop - base) * graph.shape[1], room[task], base
        table[:, :] = 0
        at = tasks[task]
        for begin in range(base, stop, size):
            m = min(size, stop - begin)
            width = (m + LANES - 1) & -LANES
            load_batch(rows[0], places, order, scales, weights, begin, m, width, batch)
            next_at = spread_groups(starts, at, begin, m, graph, quick, centers, batch)
            compare_neighbors(batch, width)
            settle_own(batch, width)
            settle_winners(batch, m, centers, graph)
            for t in range(n_random):
                draw_randoms(batch, m, width, quick, seed, first_row, order, begin, t)
                n_looks, n_pairs = meet_randoms(
                    batch, m, centers, graph, seed, first_row, order, begin, t, pairs, pair_sums, n_pairs
                )
                n_distances += n_looks
            objective += sum_errors(batch, width)
            if estimate:
                n_pairs = add_groups(
                    batch, m, width, begin, at, next_at, starts, graph, table, pairs, pair_sums, n_pairs
                )
            n_moved = move_rows(batch, m, begin, order, labels, grouped, moved, n_moved)
            at = next_at
        objectives[task] = objective
        numbers[task, 0], numbers[task, 1], numbers[task, 2] = n_distances, n_pairs - room[task], n_moved - base
        task = take_number(queue)


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
def spread_groups(starts: Any, at: int, begin: int, m: int, graph: Any, quick: Any, centers: Any, batch: Any) -> int:
    """group, own and around of the m rows from place `begin` on, the first of group `at` or later. O(m · G · D).

    Returns the last group that has rows among them.
    """
    D, G = batch.x.shape[0], graph.shape[1]
    group, own, around = batch.group, batch.own, batch.around
    p, k = at, 0
    while True:
        end = min(m, starts[p + 1] - begin)
        begin_at, end_at = np.uint64(k), np.uint64(end)
        for q in range(begin_at, end_at):
            group[q] = p
        for j in range(D):
            center = centers[p, j]
            for q in range(begin_at, end_at):
                own[j, q] = center
        for g in range(G):
            for j in range(D):
                value = quick[graph[p, g], j]
                for q in range(begin_at, end_at):
                    around[g * D + j, q] = value
        k = end
        if k == m:
            return p
        p += 1


@inline
def compare_neighbors(batch: Any, width: int) -> None:
    """Squared distances to all neighbours, the closest and the farthest of them. O(width · G · D)."""
    d, closest, farthest, winner = batch.d, batch.closest, batch.farthest, batch.winner
    for g in range(d.shape[0]):
        distances_of_columns(batch.x, width, batch.around, d, g)
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
def settle_own(batch: Any, width: int) -> None:
    """What a row has if it stays, in float64. O(width · D)."""
    x, own, exact, label, group = batch.x, batch.own, batch.exact, batch.label, batch.group
    for k in range(width):
        label[k] = group[k]
    for k in range(width):
        exact[k] = 0.0
    for j in range(x.shape[0]):
        for k in range(width):
            difference = x[j, k] - own[j, k]
            exact[k] += difference * difference


@inline
def settle_winners(batch: Any, m: int, centers: Any, graph: Any) -> None:
    """Rows that are closer to a neighbour leave for it, but only if float64 agrees. O(m), and O(D) for each of them."""
    winner, exact, label = batch.winner, batch.exact, batch.label
    for k in range(m):
        if winner[k] != 0:
            other = graph[batch.group[k], winner[k]]
            distance = column_distance(batch.x, k, centers, other)
            if distance < exact[k]:
                exact[k] = distance
                label[k] = other
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
def meet_randoms(
    batch: Any, m: int, centers: Any, graph: Any, seed: Any, first_row: int, order: Any, begin: int, t: int,
    pairs: Any, pair_sums: Any, n_pairs: int,
) -> tuple[int, int]:  # fmt: skip
    """Rows that are closer to random candidate t leave for it. Returns the distances, and the new number of triples.

    O(m), and O(D) for each candidate that is not too far.
    """
    n_looks = 0
    for k in range(m):
        # all neighbours are nearer than this: what is beyond is no neighbour, and of no use as one
        if batch.near[k] > HORIZON * batch.farthest[k]:
            n_looks += 1
            continue
        other = random_outside(seed, first_row + order[begin + k], t, graph, batch.group[k])
        if other < 0:
            continue
        n_looks += 1
        distance = column_distance(batch.x, k, centers, other)
        closest, label = batch.exact[k], batch.label[k]
        wins = distance < closest
        if pairs.shape[1] and distance < HORIZON * batch.farthest[k]:
            far = np.sqrt(np.float32(max(distance, closest)))
            write_pair(label, other, wins, batch.weight[k], far, pairs, pair_sums, n_pairs)
            n_pairs += 1
        if wins:
            batch.exact[k], batch.label[k] = distance, other
    return n_looks, n_pairs


@inline
def sum_errors(batch: Any, width: int) -> float:
    """Σ w d² over the rows. O(width)."""
    weight, exact = batch.weight, batch.exact
    total = 0.0
    for k in range(width):
        total += weight[k] * exact[k]
    return total


@inline
def move_rows(batch: Any, m: int, begin: int, order: Any, labels: Any, grouped: Any, moved: Any, n_moved: int) -> int:
    """Write the labels that have changed, and note whose; returns the new number of those. O(m)."""
    for k in range(m):
        old, label = batch.group[k], batch.label[k]
        if label != old:
            labels[order[begin + k]] = grouped[order[begin + k]] = label
            moved[0, n_moved], moved[1, n_moved], moved[2, n_moved] = begin + k, old, label
            n_moved += 1
    return n_moved


@inline
def distances_of_columns(x: Any, width: int, around: Any, d: Any, g: int) -> None:
    """d[g, k] = ‖x[:, k] − its g-th neighbour‖² for k < width; the first two columns in one go. O(width · D)."""
    D = x.shape[0]
    if D == 1:
        for k in range(width):
            first = x[0, k] - around[g, k]
            d[g, k] = first * first
        return
    at = g * D
    for k in range(width):
        first, second = x[0, k] - around[at, k], x[1, k] - around[at + 1, k]
        d[g, k] = first * first + second * second
    for j in range(2, D):
        for k in range(width):
            first = x[j, k] - around[at + j, k]
            d[g, k] += first * first


@inline
def column_distance(x: Any, k: int, centers: Any, c: int) -> float:
    """‖x[:, k] − m_c‖² in float64. O(D)."""
    total = 0.0
    for j in range(x.shape[0]):
        difference = x[j, k] - centers[c, j]
        total += difference * difference
    return total
