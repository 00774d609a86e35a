"""Truncated E-steps: each row looks at the neighbourhoods of its own clusters only.

Rows are handled in groups by the cluster they are closest to, so that the rows of a group share candidates, which stay
in the first-level cache. Candidates are compared in the rows' own precision; a row changes its cluster only if float64
agrees that this is an improvement, so rounding never raises the objective.

What Eq. 8 needs comes out as triples (c, c̃, Σ w d, Σ w): over rows closest to c, their distances to c̃. With C′ = 1
all rows of a group p share the candidates G_p, so a G × G table per group collects them; with C′ > 1 a small hash table
does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.prefetch import prefetch_row
from globular.kernels.rows import fetch, quick_distance, quick_mahalanobis, squared_distance

AHEAD = 4
"""How many rows ahead memory is asked for."""
HORIZON = 4.0
"""Squared: a random candidate twice as far as the farthest neighbour is no neighbour, and its pair is not listed."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@inline
def random_cluster(seed: Any, row: Any, draw: Any, n_clusters: int) -> int:
    """A cluster drawn by hashing (seed, row, draw): the same on any thread and in any split (splitmix64)."""
    z = seed + _GOLDEN * (np.uint64(row) * np.uint64(64) + np.uint64(draw) + np.uint64(1))
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    z = z ^ (z >> _S31)
    return np.int64(((z >> _S32) * np.uint64(n_clusters)) >> _S32)


@inline
def random_outside(seed: Any, row: int, draw: int, graph: Any, p: int) -> int:
    """A random cluster that is not in the neighbourhood of p; −1 if a few draws find none. O(G)."""
    n_clusters, G = graph.shape
    for attempt in range(4):
        other = random_cluster(seed, row, 4 * draw + attempt, n_clusters)
        known = False
        for g in range(G):
            known |= graph[p, g] == other
        if not known:
            return other
    return -1


@kernel
def random_labels(
    seed: Any,  # IN  uint64
    first_row: int,  # IN  global number of row 0
    n_clusters: int,  # IN
    labels: Any,  # OUT (n,)
) -> None:
    """A random cluster for every row. O(n)."""
    for i in range(labels.shape[0]):
        labels[i] = random_cluster(seed, first_row + i, 63, n_clusters)


@kernel
def search_neighborhoods(
    rows: Any,  # IN  all rows, or (gathered) those of order[starts[first]:starts[last]]
    gathered: bool,  # IN
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    order: Any,  # IN  (N,) rows grouped by their cluster
    starts: Any,  # IN  (C + 1,) where each group begins in `order`
    first: int,  # IN  this call handles the groups first … last − 1
    last: int,  # IN
    graph: Any,  # IN  (C, G) neighbours of every cluster, itself first
    quick: Any,  # IN  (C, D) centres in the rows' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    n_random: int,  # IN  random candidates per row
    seed: Any,  # IN  uint64 of this iteration
    first_row: int,  # IN  global number of row 0
    labels: Any,  # OUT (N,)
    pairs: Any,  # OUT (2, ·) int32: c and c̃ of the triples; width 0 when no estimates are wanted
    pair_sums: Any,  # OUT (2, ·) float32: Σ w d and Σ w
    d: Any,  # scratch (G,) rows' dtype
    table: Any,  # scratch (G, G + 1) float64: Σ w d by winner and candidate, Σ w by winner
) -> tuple[float, int, int]:
    """C′ = 1: the closest of the group's neighbours and of `n_random` others. O(rows · (G + n_random) · D).

    Returns Σ w d², the number of distances and the number of triples.
    """
    n_clusters, G = graph.shape
    objective, n_distances, n_pairs = 0.0, 0, 0
    estimate = pairs.shape[1] > 0
    base = starts[first]
    for p in range(first, last):
        table[:, :] = 0
        for k in range(starts[p], starts[p + 1]):
            i = order[k]
            r = k - base if gathered else i
            if k + AHEAD < order.shape[0]:
                ahead = order[k + AHEAD]
                if not gathered:
                    fetch(rows, ahead)
                if n_random:
                    prefetch_row(quick, random_cluster(seed, first_row + ahead, 0, n_clusters))
            scale = scales[i] if scales.shape[0] else 1.0
            weight = weights[i] if weights.shape[0] else 1.0
            winner, farthest = 0, 0
            for g in range(G):
                d[g] = quick_distance(rows, r, scale, quick, graph[p, g], norms)
                if d[g] < d[winner]:
                    winner = g
                if d[g] > d[farthest]:
                    farthest = g
            horizon = HORIZON * np.float64(d[farthest])
            closest = squared_distance(rows, r, scale, centers, graph[p, winner], norms)
            if winner != 0:  # only if float64 agrees
                stay = squared_distance(rows, r, scale, centers, p, norms)
                if stay <= closest:
                    closest, winner = stay, 0
            label = graph[p, winner]
            n_distances += G
            for t in range(n_random):
                other = random_outside(seed, first_row + i, t, graph, p)
                if other < 0:
                    continue
                n_distances += 1
                distance = np.float64(quick_distance(rows, r, scale, quick, other, norms))
                if distance < closest:
                    distance = squared_distance(rows, r, scale, centers, other, norms)
                if estimate and distance < horizon:
                    # the pair (closest, random); or, when the random one wins, (winner, former closest)
                    pairs[0, n_pairs] = other if distance < closest else label
                    pairs[1, n_pairs] = label if distance < closest else other
                    pair_sums[0, n_pairs] = weight * np.sqrt(max(distance, closest))
                    pair_sums[1, n_pairs] = weight
                    n_pairs += 1
                if distance < closest:
                    closest, label = distance, other
            labels[i] = label
            objective += weight * closest
            if estimate and label == graph[p, winner]:
                table[winner, G] += weight
                for g in range(G):
                    table[winner, g] += weight * np.sqrt(d[g])
        if estimate:
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
    return objective, n_distances, n_pairs


@kernel
def search_few_columns(
    rows: Any,  # IN  (array,): dense rows of few columns
    gathered: bool,  # IN  as in `search_neighborhoods`, like all that follows
    weights: Any,  # IN
    scales: Any,  # IN
    order: Any,  # IN
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
    pairs: Any,  # OUT
    pair_sums: Any,  # OUT
    table: Any,  # scratch (G, G + 1) float64
    x: Any,  # scratch (D, B) rows' dtype: B rows of a group, columns first
    d: Any,  # scratch (G·B,) rows' dtype
    best: Any,  # scratch (B,) rows' dtype
    farthest: Any,  # scratch (B,) rows' dtype
    winner: Any,  # scratch (B,) int32
) -> tuple[float, int, int]:
    """`search_neighborhoods` for few columns: vectorised over the rows of a group instead of over the columns."""
    matrix = rows[0]
    G = graph.shape[1]
    D, B = x.shape
    objective, n_distances, n_pairs = 0.0, 0, 0
    estimate = pairs.shape[1] > 0
    base = starts[first]
    for p in range(first, last):
        table[:, :] = 0
        for begin in range(starts[p], starts[p + 1], B):
            m = min(B, starts[p + 1] - begin)
            for k in range(m):
                i = order[begin + k]
                r = begin + k - base if gathered else i
                scale = matrix.dtype.type(scales[i] if scales.shape[0] else 1.0)
                for j in range(D):
                    x[j, k] = scale * matrix[r, j]
            distances_of_columns(x, m, quick, p, d, 0)
            for k in range(m):
                winner[k] = 0
                best[k] = d[k]
                farthest[k] = d[k]
            for g in range(1, G):
                at = g * m
                distances_of_columns(x, m, quick, graph[p, g], d, at)
                for k in range(m):
                    value = d[at + k]
                    winner[k] = g if value < best[k] else winner[k]
                    best[k] = value if value < best[k] else best[k]
                    farthest[k] = value if value > farthest[k] else farthest[k]
            n_distances += m * G
            if estimate:
                for q in range(G * m):
                    d[q] = np.sqrt(d[q])
            for k in range(m):
                i = order[begin + k]
                weight = weights[i] if weights.shape[0] else 1.0
                closest = column_distance(x, k, centers, graph[p, winner[k]])
                if winner[k] != 0:  # only if float64 agrees
                    stay = column_distance(x, k, centers, p)
                    if stay <= closest:
                        closest = stay
                        winner[k] = 0
                label = graph[p, winner[k]]
                for t in range(n_random):
                    other = random_outside(seed, first_row + i, t, graph, p)
                    if other < 0:
                        continue
                    n_distances += 1
                    distance = column_distance(x, k, centers, other)
                    if estimate and distance < HORIZON * farthest[k]:
                        pairs[0, n_pairs] = other if distance < closest else label
                        pairs[1, n_pairs] = label if distance < closest else other
                        pair_sums[0, n_pairs] = weight * np.sqrt(np.float32(max(distance, closest)))
                        pair_sums[1, n_pairs] = weight
                        n_pairs += 1
                    if distance < closest:
                        closest, label = distance, other
                labels[i] = label
                objective += weight * closest
                if estimate and label == graph[p, winner[k]]:
                    table[winner[k], G] += weight
                    for g in range(G):
                        table[winner[k], g] += weight * d[g * m + k]
        if estimate:
            n_pairs = flush_table(p, graph, table, pairs, pair_sums, n_pairs)
    return objective, n_distances, n_pairs


@inline
def distances_of_columns(x: Any, m: int, centers: Any, c: int, d: Any, at: int) -> None:
    """d[at + k] = ‖x[:, k] − m_c‖² for k < m, vectorised over k; the first two columns in one go. O(m · D)."""
    D = x.shape[0]
    if D == 1:
        a = centers[c, 0]
        for k in range(m):
            first = x[0, k] - a
            d[at + k] = first * first
        return
    a, b = centers[c, 0], centers[c, 1]
    for k in range(m):
        first, second = x[0, k] - a, x[1, k] - b
        d[at + k] = first * first + second * second
    for j in range(2, D):
        a = centers[c, j]
        for k in range(m):
            first = x[j, k] - a
            d[at + k] += first * first


@inline
def column_distance(x: Any, k: int, centers: Any, c: int) -> float:
    """‖x[:, k] − m_c‖² in float64. O(D)."""
    total = 0.0
    for j in range(x.shape[0]):
        difference = x[j, k] - centers[c, j]
        total += difference * difference
    return total


@inline
def flush_table(p: int, graph: Any, table: Any, pairs: Any, pair_sums: Any, n_pairs: int) -> int:
    """Write the table of group p as triples; returns their new number. O(G²)."""
    G = graph.shape[1]
    for a in range(G):
        if table[a, G] <= 0:
            continue
        for b in range(G):
            if b != a:
                pairs[0, n_pairs], pairs[1, n_pairs] = graph[p, a], graph[p, b]
                pair_sums[0, n_pairs], pair_sums[1, n_pairs] = table[a, b], table[a, G]
                n_pairs += 1
    return n_pairs


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
def search_candidates(
    rows: Any,  # IN  all rows, or (gathered) those of order[begin:end]
    gathered: bool,  # IN
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    order: Any,  # IN  (N,) rows grouped by their closest cluster
    begin: int,  # IN  this call handles order[begin:end] …
    end: int,  # IN
    graph: Any,  # IN  (C, G)
    quick: Any,  # IN  (C, D) centres in the rows' dtype
    norms: Any,  # IN  (C,) ‖m‖² float64
    precisions: Any,  # IN  rows' dtype: (0, 0) none, (C, 1) or (C, D)
    biases: Any,  # IN  (C,) rows' dtype: what log-weights and determinants add to a cost
    n_random: int,  # IN
    seed: Any,  # IN
    first_row: int,  # IN
    members: Any,  # IN/OUT (N, C′) K(n), closest first; −1 where there is none
    by_distance: bool,  # IN  whether Eq. 8 takes square roots of costs (distances) or costs
    keys: Any,  # IN/OUT (H,) int64 hash table of pairs, −1 where free; length 0 when no estimates are wanted
    pair_sums: Any,  # IN/OUT (H, 2) float64
    stamps: Any,  # scratch (C,) int64, last row that looked at each cluster (rows are stamped 1 … N)
    former: Any,  # scratch (C′,) int32
    costs: Any,  # scratch (C′,) rows' dtype
    seen: Any,  # scratch (C′·G + n_random,) int32: the search space G(n)
    seen_costs: Any,  # scratch (the same,) rows' dtype
) -> tuple[int, int, int]:
    """General C′: K(n) = the C′ best of ∪ G_c, c ∈ K(n), and of `n_random` others.

    Stops early when the hash table is almost full. Returns where it stopped, the number of distances and of pairs held.
    O(rows · C′ · G · D).
    """
    n_clusters, G = graph.shape
    C_prime = members.shape[1]
    n_distances, n_held = 0, 0
    H = keys.shape[0]
    for k in range(begin, end):
        if H and n_held + seen.shape[0] > H // 2:
            return k, n_distances, n_held
        i = order[k]
        r = k - begin if gathered else i
        scale = scales[i] if scales.shape[0] else 1.0
        stamp = np.int64(i) + 1
        n_seen = 0
        for a in range(C_prime):
            former[a] = members[i, a]
        for a in range(C_prime):
            if former[a] < 0:
                continue
            for g in range(G):
                c = graph[former[a], g]
                if stamps[c] != stamp:
                    stamps[c] = stamp
                    seen[n_seen] = c
                    n_seen += 1
        for t in range(n_random):
            for attempt in range(4):
                c = random_cluster(seed, first_row + i, 4 * t + attempt, n_clusters)
                if stamps[c] != stamp:
                    stamps[c] = stamp
                    seen[n_seen] = c
                    n_seen += 1
                    break
        n_kept = 0
        for s in range(n_seen):
            seen_costs[s] = cost_of(rows, r, scale, quick, seen[s], norms, precisions, biases)
            n_kept = insert(seen_costs[s], seen[s], costs, members, i, n_kept)
        for a in range(n_kept, C_prime):
            members[i, a] = -1
        n_distances += n_seen
        if H:
            weight = weights[i] if weights.shape[0] else 1.0
            closest = np.int64(members[i, 0])
            for s in range(n_seen):
                if seen[s] == closest or weight <= 0:
                    continue
                value = np.float64(seen_costs[s])
                value = np.sqrt(max(value, 0.0)) if by_distance else value
                key = closest * n_clusters + seen[s]
                slot = np.int64((np.uint64(key) * _GOLDEN) >> _S32) & (H - 1)
                while keys[slot] != key and keys[slot] >= 0:
                    slot = (slot + 1) & (H - 1)
                if keys[slot] < 0:
                    keys[slot] = key
                    pair_sums[slot, 0] = 0.0
                    pair_sums[slot, 1] = 0.0
                    n_held += 1
                pair_sums[slot, 0] += weight * value
                pair_sums[slot, 1] += weight
    return end, n_distances, n_held


@kernel
def drain_pairs(
    n_clusters: int,  # IN
    keys: Any,  # IN/OUT (H,) emptied
    pair_sums: Any,  # IN  (H, 2)
    pairs: Any,  # OUT (2, n)
    sums: Any,  # OUT (2, n)
) -> None:
    """Move the hash table's entries into triples, in table order. O(H)."""
    n = 0
    for slot in range(keys.shape[0]):
        if keys[slot] >= 0:
            pairs[0, n], pairs[1, n] = keys[slot] // n_clusters, keys[slot] % n_clusters
            sums[0, n], sums[1, n] = pair_sums[slot, 0], pair_sums[slot, 1]
            keys[slot] = -1
            n += 1


@kernel
def settle_hard(
    rows: Any,  # IN  rows begin … end of the shard
    scales: Any,  # IN  (n,) or empty
    weights: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    members: Any,  # IN/OUT (n, C′)
    labels: Any,  # IN  the former closest cluster, OUT the new one
) -> float:
    """Only the closest member votes; the former one stays if float64 finds it as close. Σ w d². O(n · D)."""
    objective = 0.0
    C_prime = members.shape[1]
    for i in range(labels.shape[0]):
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
        labels[i] = members[i, 0]
        objective += closest * (weights[i] if weights.shape[0] else 1.0)
    return objective


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
        norm = 0.0
        for a in range(C_prime):
            shares[i, a] = np.exp(shares[i, a] - largest)
            norm += shares[i, a]
        for a in range(C_prime):
            shares[i, a] *= weight / norm
        bounds[i] = largest + np.log(norm)


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
