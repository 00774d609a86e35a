"""Truncated E-steps with one cluster per row: the closest of its cluster's neighbourhood (var-k-means).

Rows are handled in groups by their cluster, so that the rows of a group share candidates, which stay in the first-level
cache. Where the columns of a row fill no vector, the candidates are copied columns first, and vectors run along them.
Candidates are compared in the rows' own precision; a row changes its cluster only if float64 agrees that this is an
improvement, so rounding never raises the objective.

What Eq. 8 needs comes out as triples (c, c̃, Σ w d, Σ w): sums over rows closest to c, of their distances to c̃. The
rows of a group share the candidates, so a G × G table collects them; random candidates are written one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, take_number, twin
from globular.jit.memory import prefetch_row
from globular.jit.tiles import distances_to_tile, line_tile
from globular.model.graph import Graph, Search
from globular.model.statistics import F64, PairStatistics
from globular.passes.cpu.cells import prepared
from globular.passes.cpu.engine.random import random_cluster, random_outside
from globular.passes.cpu.engine.rows import AHEAD, fetch, quick_distance, quick_distances, squared_distance
from globular.passes.cpu.grouped import group_rows, move_rows, packed
from globular.passes.cpu.rows import KernelRows, can_be_indexed, on_tasks
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import HORIZON, SEARCHED_AT_ONCE

GATHERED_ROWS = 16384
"""Least rows of a task whose rows have to be brought together, which is a call of its own; larger = fewer calls."""


class Near(NamedTuple):
    """What rows are compared with."""

    graph: Any  # (C, G) neighbours of every cluster, itself first
    quick: Any  # (C, D) centres in the rows' dtype
    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64
    n_random: int  # random candidates per row
    seed: Any  # uint64 of this iteration
    first_row: int  # global number of row 0


class FoundCandidates(NamedTuple):
    """What a search writes, each task from where its groups or triples begin."""

    labels: Any  # (N,)
    grouped: Any  # (N,) a copy of the labels that stays with the groups
    moved: Any  # (3, N) of rows that change their cluster: their places in the order of groups, the clusters that they
    # leave and those that they join
    pairs: Any  # (2, ·) int32: c and c̃ of the triples; width 0 when no estimates are wanted
    sums: Any  # (2, ·) float32: Σ w d and Σ w


class CandidateTile(NamedTuple):
    """Scratch of a thread."""

    tile: Any  # (D, ≥ G) rows' dtype, whole vectors wide; (0, ≥ G) unless columns are few
    d: Any  # (≥ G,) rows' dtype, as wide as the tile
    table: Any  # (G, G + 1) float64: Σ w d by winner and candidate, Σ w by winner


@kernel
def search_neighborhoods(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the groups tasks[t] … tasks[t + 1] − 1
    room: Any,  # IN  (T,) where the triples of each task begin
    rows: Any,  # IN
    places: Any,  # IN  (N,) where the rows, grouped by their cluster, lie in `rows`
    order: Any,  # IN  (N,) their numbers in the shard
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    starts: Any,  # IN  (C + 1,) where each group begins
    near: Any,  # IN
    found: Any,  # OUT
    objectives: Any,  # OUT (T,) Σ w d²
    numbers: Any,  # OUT (T, 3) distances, triples, and rows that have moved
    scratch: Scratch,
) -> None:
    """C′ = 1: the closest of the group's neighbours and of `n_random` others. O(rows · (G + n_random) · D)."""
    (n_clusters, G), graph, seed, first_row = near.graph.shape, near.graph, near.seed, near.first_row
    d, table, moved, estimate = scratch.d, scratch.table, found.moved, found.pairs.shape[1] > 0
    task = take_number(queue)
    while task < tasks.shape[0] - 1:
        base, end = starts[tasks[task]], starts[tasks[task + 1]]
        objective, n_distances, n_pairs, n_moved = 0.0, 0, room[task], base
        for p in range(tasks[task], tasks[task + 1]):
            table[:, :] = 0
            fill_tile(graph, p, near.quick, scratch.tile)
            for k in range(starts[p], starts[p + 1]):
                i, r = order[k], places[k]
                if k + AHEAD < end:
                    fetch(rows, places[k + AHEAD])
                    if near.n_random:
                        prefetch_row(near.quick, random_cluster(seed, first_row + order[k + AHEAD], 0, n_clusters))
                scale = scales[i] if scales.shape[0] else 1.0
                weight = weights[i] if weights.shape[0] else 1.0
                winner, closest, farthest = closest_neighbor(rows, r, scale, near, p, scratch)
                label, horizon = graph[p, winner], HORIZON * farthest
                n_distances += G
                for t in range(near.n_random):
                    other = random_outside(seed, first_row + i, t, graph, p)
                    if other < 0:
                        continue
                    n_distances += 1
                    distance = np.float64(quick_distance(rows, r, scale, near.quick, other, near.norms))
                    if distance < closest:
                        distance = squared_distance(rows, r, scale, near.centers, other, near.norms)
                    wins = distance < closest
                    if estimate:  # written in any case and kept if it is near: a branch here would be a coin toss
                        far = np.sqrt(max(distance, closest))
                        write_pair(label, other, wins, weight, far, found, n_pairs)
                        n_pairs += distance < horizon
                    if wins:
                        closest, label = distance, other
                if label != p:
                    found.labels[i] = found.grouped[i] = label
                    moved[0, n_moved], moved[1, n_moved], moved[2, n_moved] = k, p, label
                    n_moved += 1
                objective += weight * closest
                if estimate and label == graph[p, winner]:
                    table[winner, G] += weight
                    for g in range(G):
                        table[winner, g] += weight * np.sqrt(d[g])
            if estimate:
                n_pairs = flush_table(p, graph, table, found, n_pairs)
        objectives[task] = objective
        numbers[task, 0], numbers[task, 1], numbers[task, 2] = n_distances, n_pairs - room[task], n_moved - base
        task = take_number(queue)


@inline
def closest_neighbor(rows: Any, r: int, scale: float, near: Any, p: int, scratch: Any) -> tuple[int, float, float]:
    """Which neighbour of cluster p is closest, its squared distance, and that of the farthest. O(G · D).

    `scratch.d` has all of them, in the rows' dtype but for the cluster's own; another one wins only if float64 agrees.
    """
    graph, centers, norms, d = near.graph, near.centers, near.norms, scratch.d
    closest = squared_distance(rows, r, scale, centers, p, norms)
    neighbor_distances(rows, r, scale, near.quick, graph, p, norms, scratch.tile, d)
    d[0] = closest
    winner, lowest, farthest = 0, d[0], d[0]
    for g in range(1, graph.shape[1]):
        winner = g if d[g] < lowest else winner
        lowest = min(lowest, d[g])
        farthest = max(farthest, d[g])
    if winner != 0:
        distance = squared_distance(rows, r, scale, centers, graph[p, winner], norms)
        if distance < closest:
            closest = distance
        else:
            winner = 0
    return winner, closest, np.float64(farthest)


@inline
def fill_tile(graph: Any, p: int, quick: Any, tile: Any) -> None:
    """The neighbours of cluster p, columns first; the last one is repeated. O(G · D)."""
    G = graph.shape[1]
    for j in range(tile.shape[0]):
        for g in range(tile.shape[1]):
            tile[j, g] = quick[graph[p, min(g, G - 1)], j]


@twin
def neighbor_distances(
    rows: Any, r: int, scale: float, quick: Any, graph: Any, p: int, norms: Any, tile: Any, d: Any
) -> None:
    """d[g] = `quick_distance` to the neighbour graph[p, g], for g ≥ 1. O(G · D) or O(G · nnz)."""
    if tile.shape[0]:
        distances_to_tile(rows[0], r, rows[0].dtype.type(scale), tile, d)
    else:
        quick_distances(rows, r, scale, quick, graph, p, norms, d)


@neighbor_distances.for_csr
def _neighbor_distances(
    rows: Any, r: int, scale: float, quick: Any, graph: Any, p: int, norms: Any, tile: Any, d: Any
) -> None:
    quick_distances(rows, r, scale, quick, graph, p, norms, d)


@inline
def write_pair(label: int, other: int, wins: Any, weight: float, distance: float, found: Any, n: int) -> None:
    """The triple (closest, random); or, when the random cluster wins, (winner, former closest)."""
    pairs, sums = found.pairs, found.sums
    pairs[0, n] = other if wins else label
    pairs[1, n] = label if wins else other
    sums[0, n] = weight * distance
    sums[1, n] = weight


@inline
def flush_table(p: int, graph: Any, table: Any, found: Any, n_pairs: int) -> int:
    """Write the table of group p as triples; returns their new number. O(G²)."""
    pairs, sums, G = found.pairs, found.sums, graph.shape[1]
    for a in range(G):
        if table[a, G] <= 0:
            continue
        for b in range(G):
            if b != a:
                pairs[0, n_pairs], pairs[1, n_pairs] = graph[p, a], graph[p, b]
                sums[0, n_pairs], sums[1, n_pairs] = table[a, b], table[a, G]
                n_pairs += 1
    return n_pairs


def closest_of_neighborhoods(
    shard: CpuShard, centers: F64, graph: Graph, search: Search
) -> tuple[float, int, PairStatistics, int]:
    """C′ = 1: tables per group. The closest cluster of every row goes to the labels.

    Returns the objective, the number of distances, what Eq. 8 needs, and how many rows moved.
    """
    (C, D), G = centers.shape, graph.shape[1]
    grouping, dtype = group_rows(shard, C), shard.rows.dtype
    starts, order = grouping.starts, grouping.order
    norms, _, quick = prepared(centers, 1.0, dtype, shard.n_threads)
    lanes = line_tile(dtype.itemsize).lanes
    tile = D if lanes > D else 0, G + -G % lanes  # where columns fill no vector, vectors run along the neighbours
    tasks = grouping.tasks(SEARCHED_AT_ONCE if can_be_indexed(shard.rows) else GATHERED_ROWS)
    begins = starts[tasks]
    room = tasks * (G * (G - 1)) + begins * search.n_random  # where the triples of a task begin, if it has all it may
    width = int(room[-1]) if search.estimate else 0
    triples = np.empty((4, width), dtype=np.int32)
    moved, numbers = np.empty((3, shard.n_rows), dtype=order.dtype), np.empty((len(tasks) - 1, 3), dtype=np.int64)
    objectives, seed = np.empty(len(tasks) - 1), np.uint64(search.seed)
    near = Near(graph, quick[:, :, 0], centers, norms, search.n_random, seed, shard.first_row)
    found = FoundCandidates(shard.labels, grouping.labels, moved, triples[:2], triples[2:].view(np.float32))

    def search_groups(queue: NDArray[np.int64], part: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        search_neighborhoods(
            queue, tasks[part.start : part.stop + 1], room[part], rows, places, order, shard.weights, shard.scales,
            starts, near, found, objectives[part], numbers[part],
            CandidateTile(np.empty(tile, dtype), np.empty(tile[1], dtype), np.empty((G, G + 1))),
        )  # fmt: skip

    on_tasks(shard.rows, order, begins[:-1], shard.n_threads, search_groups)
    n_distances, n_pairs, n_moved = np.ascontiguousarray(numbers.T)
    moved = packed(moved, begins[:-1], n_moved, shard.n_threads)
    triples = packed(triples, room[:-1], n_pairs, shard.n_threads)
    moved[0] = move_rows(shard, grouping, moved)
    shard.keep(grouping)
    pairs = PairStatistics(triples[:2], triples[2:].view(np.float32))
    return float(objectives.sum()), int(n_distances.sum()), pairs, moved.shape[1]
