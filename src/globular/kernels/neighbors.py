"""Truncated E-steps with several clusters per row: K(n), the best of the neighbourhoods of its own members.

Rows are handled in the order of their closest cluster, so that candidates are mostly in the cache. What Eq. 8 needs
comes out as triples (c, c̃, Σ w d, Σ w): over rows closest to c, their distances to c̃; a small hash table collects
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.neighborhoods import AHEAD
from globular.kernels.queue import take_number
from globular.kernels.random import random_cluster
from globular.kernels.rows import fetch, quick_distance, quick_mahalanobis, squared_distance

_GOLDEN, _S32 = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


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
    queue: Any,  # IN/OUT runs
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
    queue: Any,  # IN/OUT tasks
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
    stamps: Any,  # scratch (C,) int64, last row that looked at each cluster (rows are stamped 1 … N)
    former: Any,  # scratch (C′,) int32
    costs: Any,  # scratch (C′,) rows' dtype
    seen: Any,  # scratch (C′·G + n_random,) int32: the search space G(n)
    seen_costs: Any,  # scratch (the same,) rows' dtype
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


@inline
def collect_pairs(
    closest: Any, n_clusters: int, weight: float, by_distance: bool, seen: Any, seen_costs: Any, n_seen: int, keys: Any,
    pair_sums: Any,
) -> int:  # fmt: skip
    """Add what one row says about its closest cluster and the others it has seen; returns how many are new."""
    n_new = 0
    for s in range(n_seen):
        if seen[s] != closest:
            value = np.float64(seen_costs[s])
            value = np.sqrt(max(value, 0.0)) if by_distance else value
            n_new += collect_pair(np.int64(closest) * n_clusters + seen[s], weight, value, keys, pair_sums)
    return n_new


@inline
def collect_pair(key: Any, weight: float, value: float, keys: Any, pair_sums: Any) -> int:
    """Add to the sums of a pair in the hash table; returns 1 if it is a new one. O(1)."""
    last = keys.shape[0] - 1
    slot = np.int64((np.uint64(key) * _GOLDEN) >> _S32) & last
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
def drain_pairs(n_clusters: int, keys: Any, pair_sums: Any, pairs: Any, sums: Any, n: int) -> None:
    """Move the hash table's entries into triples, in table order, from triple n on. O(H)."""
    for slot in range(keys.shape[0]):
        if keys[slot] >= 0:
            pairs[0, n], pairs[1, n] = keys[slot] // n_clusters, keys[slot] % n_clusters
            sums[0, n], sums[1, n] = pair_sums[slot, 0], pair_sums[slot, 1]
            keys[slot] = -1
            n += 1


@kernel
def settle_hard(
    queue: Any,  # IN/OUT runs
    length: int,  # IN  rows of a run
    first: int,  # IN  the number of row 0 in the shard
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    members: Any,  # IN/OUT (N, C′)
    labels: Any,  # IN/OUT (N,) the closest cluster
    moved: Any,  # OUT (2, ·) from where each run begins in the shard, rows whose label changes, and the former one
    n_moved: Any,  # OUT (runs,)
    objectives: Any,  # OUT (runs,) Σ w d²
) -> None:
    """Only the closest member votes; the former one stays if float64 finds it as close. O(N · D)."""
    C_prime = members.shape[1]
    run = take_number(queue)
    while run < objectives.shape[0]:
        begin, end = run * length, min((run + 1) * length, labels.shape[0])
        objective, at = 0.0, first + begin
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
                    moved[0, at], moved[1, at] = first + i, labels[i]
                    at += 1
                    labels[i] = members[i, 0]
            objective += closest * (weights[i] if weights.shape[0] else 1.0)
        objectives[run], n_moved[run] = objective, at - first - begin
        run = take_number(queue)


@kernel
def settle_soft(
    rows: Any,  # IN  (array,): rows begin … end of the shard
    weights: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN  (n, C′)
    shares: Any,  # OUT (n, C′) w q(c): Eq. 5, the posterior renormalised over K(n)
    bounds: Any,  # OUT (n,) log Σ_{c∈K(n)} p(c, x), the terms of Eq. 10
) -> None:
    """Truncated responsibilities. O(n · C′ · D)."""
    x = rows[0]
    n, C_prime = members.shape
    isotropic = precisions.shape[1] == 1
    for i in range(n):
        weight = weights[i] if weights.shape[0] else 1.0
        largest = -np.inf
        for a in range(C_prime):
            c = members[i, a]
            if c < 0:
                shares[i, a] = -np.inf
                continue
            total = 0.0
            for j in range(x.shape[1]):
                difference = x[i, j] - centers[c, j]
                total += difference * difference * (1.0 if isotropic else precisions[c, j])
            joint = -0.5 * (total * (precisions[c, 0] if isotropic else 1.0) + biases[c])
            shares[i, a] = joint
            largest = max(largest, joint)
        bounds[i] = renormalise(shares, i, largest, weight)


@inline
def renormalise(shares: Any, i: int, largest: float, weight: float) -> float:
    """Shares of the weight from their logarithms; returns the logarithm of their sum. O(C′)."""
    norm = 0.0
    for a in range(shares.shape[1]):
        shares[i, a] = np.exp(shares[i, a] - largest)
        norm += shares[i, a]
    for a in range(shares.shape[1]):
        shares[i, a] *= weight / norm
    return largest + np.log(norm)


@kernel
def sum_shares(
    rows: Any,  # IN  (array,): all rows, or (gathered) those of entries begin … end
    gathered: bool,  # IN
    shares: Any,  # IN  (N·C′,) w q(c)
    C_prime: int,  # IN
    order: Any,  # IN  (N·C′,) entries n·C′ + a grouped by their cluster
    starts: Any,  # IN  (C + 2,)
    first: int,  # IN  clusters first … last − 1
    last: int,  # IN
    centers: Any,  # IN  (C, D) float64
    counts: Any,  # OUT (C,) Σ w q
    sums: Any,  # OUT (C, D) Σ w q (x − μ)
    scatter: Any,  # OUT (C, 1) Σ w q ‖x − μ‖² or (C, D) Σ w q (x − μ)²
) -> None:
    """Statistics of the truncated M-step, in cluster order, about the old means. O(entries · D)."""
    x = rows[0]
    base = starts[first]
    isotropic = scatter.shape[1] == 1
    for c in range(first, last):
        for k in range(starts[c], starts[c + 1]):
            share = shares[order[k]]
            if share <= 0:
                continue
            r = k - base if gathered else order[k] // C_prime
            counts[c] += share
            total = 0.0
            for j in range(x.shape[1]):
                difference = x[r, j] - centers[c, j]
                sums[c, j] += share * difference
                if isotropic:
                    total += difference * difference
                else:
                    scatter[c, j] += share * difference * difference
            if isotropic:
                scatter[c, 0] += share * total
