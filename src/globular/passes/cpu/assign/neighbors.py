"""Truncated E-steps of k-means: rows look at neighbourhoods, at a cost that does not depend on the number of clusters.

Rows are grouped by their closest cluster (counting sort); groups are searched side by side on our threads. A row keeps
its label, and K(n) too if C′ > 1. Sums are taken in cluster order. `expect.neighbors` has this search for mixtures.

With several clusters per row K(n) becomes the best of the neighbourhoods of its own members. What Eq. 8 needs comes out
as triples (c, c̃, Σ w d, Σ w): over rows closest to c, their distances to c̃; a small hash table collects them.
`assign.neighborhoods` has the search with one cluster per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, take_number
from globular.model.graph import Graph, Search
from globular.model.random import GOLDEN
from globular.model.statistics import F64, Floats, HardStatistics, PairStatistics
from globular.passes.cpu.assign.neighborhoods import closest_of_neighborhoods
from globular.passes.cpu.cells import prepared
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.random import random_cluster
from globular.passes.cpu.engine.rows import AHEAD, fetch, quick_distance, quick_mahalanobis, squared_distance
from globular.passes.cpu.grouped import ROWS_PER_TASK, Grouping
from globular.passes.cpu.rows import KernelRows, on_rows, on_tasks
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import wanted_sums
from globular.passes.host import HASH_SIZE, RUN, on_runs, runs_of, threads_for_runs
from globular.seam.among import Neighbors
from globular.seam.passes import Assign

TABLES_AT_ONCE = 8
"""Full tables of pairs that a thread has room for before it asks for more."""


class Ground(NamedTuple):
    """What rows are compared with, and how."""

    graph: Any  # (C, G)
    quick: Any  # (C, D) centres in the rows' dtype
    norms: Any  # (C,) ‖m‖² float64
    precisions: Any  # rows' dtype: (0, 0) none, (C, 1) or (C, D)
    biases: Any  # (C,) rows' dtype: what log-weights and determinants add to a cost
    n_random: int
    seed: Any  # uint64
    first_row: int
    by_distance: bool  # whether Eq. 8 takes square roots of costs (distances) or costs


class NeighborWorkspace(NamedTuple):
    """Working memory of one thread in one pass."""

    keys: NDArray[np.int64]
    """Hash table of pairs, −1 where free; length 0 when no estimates are wanted, (H,)."""
    pair_sums: F64
    """(H, 2)."""
    stamps: NDArray[np.int64]
    """The last row that looked at each cluster (rows are stamped 1 … N), (C,)."""
    former: NDArray[np.int32]
    costs: Floats
    """(C′,) like `former`, in the rows' dtype."""
    seen: NDArray[np.int32]
    """The search space G(n), (C′·G + n_random,)."""
    seen_costs: Floats

    @classmethod
    def make(cls, C: int, C_prime: int, G: int, search: Search, dtype: np.dtype) -> NeighborWorkspace:
        width = C_prime * G + search.n_random
        size = max(HASH_SIZE, 1 << (4 * width).bit_length()) if search.estimate else 0
        return cls(
            np.full(size, -1, dtype=np.int64), np.empty((size, 2)), np.zeros(C, dtype=np.int64),
            np.empty(C_prime, dtype=np.int32), np.empty(C_prime, dtype=dtype), np.empty(width, dtype=np.int32),
            np.empty(width, dtype=dtype),
        )  # fmt: skip


class Triples(NamedTuple):
    """What a thread has come across: triples of Eq. 8 in stretches, each of one task."""

    pairs: NDArray[np.int32]
    """c and c̃, (2, P), P no less than H / 2."""
    sums: NDArray[np.float32]
    """Σ w d and Σ w, (2, P)."""
    stretches: NDArray[np.int64]
    """Where their task begins in the order, where they begin, how many, (S, 3)."""

    @classmethod
    def make(cls, table_size: int) -> Triples:
        n = TABLES_AT_ONCE * table_size // 2
        return cls(
            np.empty((2, n), dtype=np.int32), np.empty((2, n), dtype=np.float32),
            np.empty((4 * TABLES_AT_ONCE, 3), dtype=np.int64),
        )  # fmt: skip


@inline
def cost_of(rows: Any, r: int, scale: float, ground: Any, c: int) -> float:
    """−2 log p(c, x) up to a constant, in the rows' dtype; the squared distance where there are no precisions."""
    precisions, biases = ground.precisions, ground.biases
    if precisions.shape[1] <= 1:
        squared = quick_distance(rows, r, scale, ground.quick, c, ground.norms)
        return squared if precisions.shape[0] == 0 else squared * precisions[c, 0] + biases[c]
    return quick_mahalanobis(rows, r, ground.quick, c, precisions) + biases[c]


@kernel
def renew_members(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    labels: Any,  # IN  (N,)
    graph: Any,  # IN  (C, G)
    members: Any,  # IN/OUT (N, C′)
) -> None:
    """K(n) of rows that it is new to, or whose label it does not go with: the label's neighbourhood. O(N)."""
    n, C_prime = members.shape
    G = min(C_prime, graph.shape[1])
    begin = length * take_number(queue)
    while begin < n:
        for i in range(begin, min(begin + length, n)):
            if members[i, 0] != labels[i]:
                for a in range(G):
                    members[i, a] = graph[labels[i], a]
                for a in range(G, C_prime):
                    members[i, a] = -1
        begin = length * take_number(queue)


@kernel
def search_candidates(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the rows order[tasks[t]:tasks[t + 1]]
    rows: Any,  # IN
    places: Any,  # IN  (N,) where the rows lie in `rows`
    order: Any,  # IN  (N,) their numbers in the shard, grouped by their closest cluster
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    ground: Any,  # IN
    members: Any,  # IN/OUT (N, C′) K(n), closest first; −1 where there is none
    n_distances: Any,  # IN/OUT (T,)
    pause: Any,  # IN/OUT (2,) where to go on: the task, −1 for the next one, and the place in the order
    space: Any,  # IN/OUT
    triples: Any,  # OUT
) -> int:
    """General C′: K(n) = the C′ best of ∪ G_c, c ∈ K(n), and of `n_random` others. O(rows · C′ · G · D).

    The table is emptied at the end of a task, and before it is too full. Returns the number of stretches of triples,
    when all is done (`pause` is −1 then) or when there may be no room for the next ones.
    """
    H, n_stretches, n_triples, stretches = space.keys.shape[0], 0, 0, triples.stretches
    task, k = pause[0], pause[1]
    if task < 0:
        task = take_number(queue)
        k = tasks[task] if task < tasks.shape[0] - 1 else 0
    while task < tasks.shape[0] - 1:
        end = tasks[task + 1]
        while k < end:
            if H and (n_triples + H // 2 > triples.pairs.shape[1] or n_stretches == stretches.shape[0]):
                pause[0], pause[1] = task, k
                return n_stretches
            n_held = 0
            while k < end and (H == 0 or n_held + space.seen.shape[0] <= H // 2):
                i = order[k]
                if k + AHEAD < end:
                    fetch(rows, places[k + AHEAD])
                n_seen = search_row(rows, places[k], scales[i] if scales.shape[0] else 1.0, i, ground, members, space)
                n_distances[task] += n_seen
                weight = weights[i] if weights.shape[0] else 1.0
                if H and weight > 0:
                    n_held += collect_pairs(members[i, 0], weight, ground, n_seen, space)
                k += 1
            if n_held:
                drain_pairs(ground.graph.shape[0], space, triples, n_triples)
                stretches[n_stretches, 0], stretches[n_stretches, 1] = tasks[task], n_triples
                stretches[n_stretches, 2] = n_held
                n_triples += n_held
                n_stretches += 1
        task = take_number(queue)
        k = tasks[task] if task < tasks.shape[0] - 1 else 0
    pause[0] = -1
    return n_stretches


@inline
def search_row(rows: Any, r: int, scale: float, i: int, ground: Any, members: Any, space: Any) -> int:
    """K(n) of one row; returns how many clusters it has looked at. O(C′ · G · D)."""
    n_seen = search_space(members, i, ground.graph, ground.n_random, ground.seed, ground.first_row + i, space)
    n_kept, seen, seen_costs = 0, space.seen, space.seen_costs
    for s in range(n_seen):
        seen_costs[s] = cost_of(rows, r, scale, ground, seen[s])
        n_kept = insert(seen_costs[s], seen[s], space.costs, members[i], n_kept)
    for a in range(n_kept, members.shape[1]):
        members[i, a] = -1
    return n_seen


@inline
def search_space(members: Any, i: int, graph: Any, n_random: int, seed: Any, number: int, space: Any) -> int:
    """G(n) = ∪ G_c, c ∈ K(n), and `n_random` others, each once; returns how many. `former` becomes K(n). O(C′ · G)."""
    stamps, former, seen = space.stamps, space.former, space.seen
    stamp, n_seen = np.int64(i) + 1, 0
    for a in range(former.shape[0]):
        former[a] = members[i, a]
    for a in range(former.shape[0]):
        if former[a] < 0:
            continue
        for g in range(graph.shape[1]):
            c = graph[former[a], g]
            if stamps[c] != stamp:
                stamps[c] = stamp
                seen[n_seen] = c
                n_seen += 1
    for t in range(n_random):
        for attempt in range(4):
            c = random_cluster(seed, number, 4 * t + attempt, graph.shape[0])
            if stamps[c] != stamp:
                stamps[c] = stamp
                seen[n_seen] = c
                n_seen += 1
                break
    return n_seen


@inline
def collect_pairs(closest: Any, weight: float, ground: Any, n_seen: int, space: Any) -> int:
    """Add what one row says about its closest cluster and the others it has seen; returns how many are new."""
    n_new = 0
    for s in range(n_seen):
        if space.seen[s] != closest:
            value = np.float64(space.seen_costs[s])
            value = np.sqrt(max(value, 0.0)) if ground.by_distance else value
            key = np.int64(closest) * ground.graph.shape[0] + space.seen[s]
            n_new += collect_pair(key, weight, value, space.keys, space.pair_sums)
    return n_new


@inline
def collect_pair(key: Any, weight: float, value: float, keys: Any, pair_sums: Any) -> Any:
    """Add to the sums of a pair in the hash table; returns 1 if it is a new one. O(1)."""
    last = keys.shape[0] - 1
    slot = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & last
    while keys[slot] != key and keys[slot] >= 0:
        slot = (slot + 1) & last
    is_new = keys[slot] < 0
    if is_new:
        keys[slot] = key
        pair_sums[slot, 0] = 0.0
        pair_sums[slot, 1] = 0.0
    pair_sums[slot, 0] += weight * value
    pair_sums[slot, 1] += weight
    return np.int64(is_new)


@inline
def drain_pairs(n_clusters: int, space: Any, triples: Any, n: int) -> None:
    """Move the hash table's entries into triples, in table order, from triple n on. O(H)."""
    keys, pairs, sums = space.keys, triples.pairs, triples.sums
    for slot in range(keys.shape[0]):
        if keys[slot] >= 0:
            pairs[0, n], pairs[1, n] = keys[slot] // n_clusters, keys[slot] % n_clusters
            sums[0, n], sums[1, n] = space.pair_sums[slot, 0], space.pair_sums[slot, 1]
            keys[slot] = -1
            n += 1


@kernel
def settle_hard(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    members: Any,  # IN/OUT (N, C′)
    labels: Any,  # IN/OUT (N,) the closest cluster
    n_moved: Any,  # OUT (runs,) rows whose label changes
    objectives: Any,  # OUT (runs,) Σ w d²
) -> None:
    """Only the closest member votes; the former one stays if float64 finds it as close. O(N · D)."""
    C_prime = members.shape[1]
    run = take_number(queue)
    while run < objectives.shape[0]:
        begin, end = run * length, min((run + 1) * length, labels.shape[0])
        objective, n = 0.0, 0
        for i in range(begin, end):
            scale = scales[i] if scales.shape[0] else 1.0
            closest = squared_distance(rows, i, scale, centers, members[i, 0], norms)
            if members[i, 0] != labels[i]:
                stay = squared_distance(rows, i, scale, centers, labels[i], norms)
                if stay <= closest:
                    closest = stay
                    place = C_prime - 1  # rounding may have put the former one out of K(n) altogether
                    for a in range(1, C_prime):
                        if members[i, a] == labels[i]:
                            place = a
                    members[i, place] = members[i, 0]
                    members[i, 0] = labels[i]
                else:
                    n += 1
                    labels[i] = members[i, 0]
            objective += closest * (weights[i] if weights.shape[0] else 1.0)
        objectives[run], n_moved[run] = objective, n
        run = take_number(queue)


@CpuShard.implements(Assign, Neighbors)
def assign_neighbors(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the neighbourhoods of its K(n)."""
    assert isinstance(work.among, Neighbors)
    centers, graph, search = work.centers, work.among.graph, work.among.search
    if search.n_candidates == 1:
        objective, n_distances, pairs, n_changed = closest_of_neighborhoods(shard, centers, graph, search)
    else:
        members = kept_members(shard, graph, search.n_candidates)
        n_distances, pairs = search_candidates_of(shard, centers, SquaredDistances(), graph, search, members)
        objective, n_changed = _settle_hard(shard, centers, members)
    sums = wanted_sums(shard, work, shard.recall(Grouping) if search.n_candidates == 1 else None)
    return HardStatistics(*sums, objective, n_changed, n_distances, pairs)


class SquaredDistances:
    """What a search compares: for k-means the squared distance, in the rows' dtype."""

    dtype: np.dtype | None = None
    search_precisions: F64 = np.empty((0, 0))
    search_biases: F64 = np.empty(0)
    by_distance = True


def kept_members(shard: CpuShard, graph: Graph, n_candidates: int) -> NDArray[np.int32]:
    """K(n); where it is new or does not fit the labels, the neighbourhood of the label."""
    members = cast(NDArray[np.int32], shard.state.get("members", np.int32, -1, width=n_candidates))
    on_runs(threads_for_runs(shard), renew_members, shard.labels, graph, members)
    return members


def search_candidates_of(
    shard: CpuShard, centers: F64, costs: SquaredDistances, graph: Graph, search: Search, members: NDArray[np.int32]
) -> tuple[int, PairStatistics]:
    """C′ > 1, or soft: K(n) becomes the best of the union of its members' neighbourhoods."""
    n, C = shard.n_rows, len(centers)
    dtype = shard.rows.dtype if costs.dtype is None else costs.dtype
    norms, _, quick = prepared(centers, 1.0, dtype, shard.n_threads)
    ground = Ground(
        graph, quick[:, :, 0], norms, costs.search_precisions.astype(dtype), costs.search_biases.astype(dtype),
        search.n_random, np.uint64(search.seed), shard.first_row, costs.by_distance,
    )  # fmt: skip
    _, order = group_by(shard.labels, C, shard.n_threads)
    tasks = np.append(np.arange(0, n, ROWS_PER_TASK), n)
    n_distances, found = np.zeros(len(tasks) - 1, dtype=np.int64), list[Triples]()

    def search_tasks(queue: NDArray[np.int64], part: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        space = NeighborWorkspace.make(C, members.shape[1], graph.shape[1], search, dtype)
        mine, pause = list[Triples](), np.full(2, -1, dtype=np.int64)
        while not mine or pause[0] >= 0:
            triples = Triples.make(len(space.keys))
            n_stretches = search_candidates(
                queue, tasks[part.start : part.stop + 1], rows, places, order, shard.weights, shard.scales, ground,
                members, n_distances[part], pause, space, triples,
            )  # fmt: skip
            mine.append(triples._replace(stretches=triples.stretches[:n_stretches]))
        found.extend(mine)

    on_tasks(shard.rows, order, tasks[:-1], shard.n_threads, search_tasks, one_call=False)
    return int(n_distances.sum()), _joined(found)


def _joined(found: list[Triples]) -> PairStatistics:
    """All triples in the order of their tasks, whoever has done these."""
    stretches = [(*stretch, triples) for triples in found for stretch in triples.stretches.tolist()]
    stretches.sort(key=lambda stretch: stretch[0])
    pairs = [np.empty((2, 0), dtype=np.int32), *(t.pairs[:, begin : begin + n] for _, begin, n, t in stretches)]
    sums = [np.empty((2, 0), dtype=np.float32), *(t.sums[:, begin : begin + n] for _, begin, n, t in stretches)]
    return PairStatistics(np.concatenate(pairs, axis=1), np.concatenate(sums, axis=1))


def _settle_hard(shard: CpuShard, centers: F64, members: NDArray[np.int32]) -> tuple[float, int]:
    """The objective, and how many rows moved."""
    norms, labels = np.einsum("ij,ij->i", centers, centers), shard.labels
    n_runs = -(-shard.n_rows // RUN)
    n_moved, objectives = np.empty(n_runs, dtype=np.int64), np.empty(n_runs)

    def settle(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        runs = runs_of(part)
        settle_hard(
            queue, RUN, rows, shard.scales[part], shard.weights[part], centers, norms, members[part],
            labels[part], n_moved[runs], objectives[runs],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), settle, calls_blas=False)
    return float(objectives.sum()), int(n_moved.sum())
