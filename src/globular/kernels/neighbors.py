"""Truncated E-steps with several clusters per row: K(n), the best of the neighbourhoods of its own members.

Rows are handled in the order of their closest cluster, so that candidates are mostly in the cache. What Eq. 8 needs
comes out as triples (c, c̃, Σ w d, Σ w): over rows closest to c, their distances to c̃; a small hash table collects
them (`pair_tables`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.pair_tables import collect_pairs, drain_pairs
from globular.model.random import random_cluster
from globular.passes.cpu.engine.rows import AHEAD, fetch, quick_distance, quick_mahalanobis


@inline
def insert(cost: Any, c: int, costs: Any, members: Any, i: int, n_kept: int) -> int:
    """Keep the C′ lowest costs in order; returns how many are kept. O(C′)."""
    C_prime = costs.shape[0]
    if n_kept == C_prime and cost >= costs[C_prime - 1]:
        return n_kept
    position = min(n_kept, C_prime - 1)
    while position > 0 and costs[position - 1] > cost:
        costs[position] = costs[position - 1]
        members[i, position] = members[i, position - 1]
        position -= 1
    costs[position] = cost
    members[i, position] = c
    return min(n_kept + 1, C_prime)


@inline
def cost_of(rows: Any, r: int, scale: float, quick: Any, c: int, norms: Any, precisions: Any, biases: Any) -> float:
    """−2 log p(c, x) up to a constant, in the rows' dtype; the squared distance where there are no precisions."""
    if precisions.shape[1] <= 1:
        squared = quick_distance(rows, r, scale, quick, c, norms)
        return squared if precisions.shape[0] == 0 else squared * precisions[c, 0] + biases[c]
    return quick_mahalanobis(rows, r, quick, c, precisions) + biases[c]


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
    graph: Any,  # IN  (C, G)
    quick: Any,  # IN  (C, D) centres in the rows' dtype
    norms: Any,  # IN  (C,) ‖m‖² float64
    precisions: Any,  # IN  rows' dtype: (0, 0) none, (C, 1) or (C, D)
    biases: Any,  # IN  (C,) rows' dtype: what log-weights and determinants add to a cost
    n_random: int,  # IN
    seed: Any,  # IN
    first_row: int,  # IN
    by_distance: bool,  # IN  whether Eq. 8 takes square roots of costs (distances) or costs
    members: Any,  # IN/OUT (N, C′) K(n), closest first; −1 where there is none
    n_distances: Any,  # IN/OUT (T,)
    pause: Any,  # IN/OUT (2,) where to go on: the task, −1 for the next one, and the place in the order
    keys: Any,  # IN/OUT (H,) int64 hash table of pairs, −1 where free; length 0 when no estimates are wanted
    pair_sums: Any,  # IN/OUT (H, 2) float64
    stamps: Scratch,  # scratch (C,) int64, last row that looked at each cluster (rows are stamped 1 … N)
    former: Scratch,  # scratch (C′,) int32
    costs: Scratch,  # scratch (C′,) rows' dtype
    seen: Scratch,  # scratch (C′·G + n_random,) int32: the search space G(n)
    seen_costs: Scratch,  # scratch (the same,) rows' dtype
    pairs: Any,  # OUT (2, P) int32: c and c̃ of the triples, P no less than H / 2
    sums: Any,  # OUT (2, P) float32: Σ w d and Σ w
    stretches: Any,  # OUT (S, 3) of triples: where their task begins in the order, where they begin, how many
) -> int:
    """General C′: K(n) = the C′ best of ∪ G_c, c ∈ K(n), and of `n_random` others. O(rows · C′ · G · D).

    The table is emptied at the end of a task, and before it is too full. Returns the number of stretches of triples,
    when all is done (`pause` is −1 then) or when there may be no room for the next ones.
    """
    H, n_stretches, n_triples = keys.shape[0], 0, 0
    task, k = pause[0], pause[1]
    if task < 0:
        task = take_number(queue)
        k = tasks[task] if task < tasks.shape[0] - 1 else 0
    while task < tasks.shape[0] - 1:
        end = tasks[task + 1]
        while k < end:
            if H and (n_triples + H // 2 > pairs.shape[1] or n_stretches == stretches.shape[0]):
                pause[0], pause[1] = task, k
                return n_stretches
            n_held = 0
            while k < end and (H == 0 or n_held + seen.shape[0] <= H // 2):
                i = order[k]
                if k + AHEAD < end:
                    fetch(rows, places[k + AHEAD])
                n_seen = search_row(
                    rows, places[k], scales[i] if scales.shape[0] else 1.0, graph, quick, norms, precisions, biases,
                    n_random, seed, first_row + i, i, members, stamps, former, costs, seen, seen_costs,
                )  # fmt: skip
                n_distances[task] += n_seen
                weight = weights[i] if weights.shape[0] else 1.0
                if H and weight > 0:
                    n_held += collect_pairs(
                        members[i, 0], graph.shape[0], weight, by_distance, seen, seen_costs, n_seen, keys, pair_sums
                    )
                k += 1
            if n_held:
                drain_pairs(graph.shape[0], keys, pair_sums, pairs, sums, n_triples)
                stretches[n_stretches, 0], stretches[n_stretches, 1] = tasks[task], n_triples
                stretches[n_stretches, 2] = n_held
                n_triples += n_held
                n_stretches += 1
        task = take_number(queue)
        k = tasks[task] if task < tasks.shape[0] - 1 else 0
    pause[0] = -1
    return n_stretches


@inline
def search_row(
    rows: Any, r: int, scale: float, graph: Any, quick: Any, norms: Any, precisions: Any, biases: Any, n_random: int,
    seed: Any, number: int, i: int, members: Any, stamps: Any, former: Any, costs: Any, seen: Any, seen_costs: Any,
) -> int:  # fmt: skip
    """K(n) of one row; returns how many clusters it has looked at. O(C′ · G · D)."""
    n_seen = search_space(members, i, graph, n_random, seed, number, stamps, former, seen)
    n_kept = 0
    for s in range(n_seen):
        seen_costs[s] = cost_of(rows, r, scale, quick, seen[s], norms, precisions, biases)
        n_kept = insert(seen_costs[s], seen[s], costs, members, i, n_kept)
    for a in range(n_kept, members.shape[1]):
        members[i, a] = -1
    return n_seen


@inline
def search_space(
    members: Any, i: int, graph: Any, n_random: int, seed: Any, number: int, stamps: Any, former: Any, seen: Any
) -> int:
    """G(n) = ∪ G_c, c ∈ K(n), and `n_random` others, each once; returns how many. `former` becomes K(n). O(C′ · G)."""
    stamp = np.int64(i) + 1
    n_seen = 0
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
