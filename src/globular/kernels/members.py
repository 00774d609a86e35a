"""What rows make of K(n), the few clusters that they keep: a label, or shares of each of them and their sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, inline, kernel, take_number
from globular.kernels.rows import squared_distance


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


@kernel
def settle_soft(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN  (array,)
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN  (N, C′)
    shares: Any,  # OUT (N, C′) w q(c): Eq. 5, the posterior renormalised over K(n)
    bounds: Any,  # OUT (N,) log Σ_{c∈K(n)} p(c, x), the terms of Eq. 10
    totals: Any,  # OUT (runs,) their sums, by weight
) -> None:
    """Truncated responsibilities. O(N · C′ · D)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            weight = weights[i] if weights.shape[0] else 1.0
            bounds[i] = share_row(rows[0], i, weight, centers, precisions, biases, members, shares)
            totals[run] += weight * bounds[i]
        run = take_number(queue)


@inline
def share_row(
    x: Any, i: int, weight: float, centers: Any, precisions: Any, biases: Any, members: Any, shares: Any
) -> float:
    """The shares of one row; returns log Σ_{c∈K(n)} p(c, x). O(C′ · D)."""
    isotropic, largest = precisions.shape[1] == 1, -np.inf
    for a in range(members.shape[1]):
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
    return renormalise(shares, i, largest, weight)


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
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T + 1,) task t has the clusters tasks[t] … tasks[t + 1] − 1
    rows: Any,  # IN  (array,): all rows, or (gathered) those of the entries of the only task
    gathered: bool,  # IN
    shares: Any,  # IN  (N·C′,) w q(c)
    C_prime: int,  # IN
    order: Any,  # IN  (N·C′,) entries n·C′ + a grouped by their cluster
    starts: Any,  # IN  (C + 2,)
    centers: Any,  # IN  (C, D) float64
    counts: Any,  # OUT (C,) Σ w q
    sums: Any,  # OUT (C, D) Σ w q (x − μ)
    scatter: Any,  # OUT (C, 1) Σ w q ‖x − μ‖² or (C, D) Σ w q (x − μ)²
) -> None:
    """Statistics of the truncated M-step, in cluster order, about the old means. O(entries · D)."""
    x = rows[0]
    isotropic = scatter.shape[1] == 1
    task = take_number(queue)
    while task < tasks.shape[0] - 1:
        base = starts[tasks[task]]
        for c in range(tasks[task], tasks[task + 1]):
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
        task = take_number(queue)


@kernel
def clusters_of_entries(
    queue: Queue,  # IN/OUT stretches
    length: int,  # IN  entries of a stretch
    members: Any,  # IN  (N·C′,)
    n_clusters: int,  # IN
    clusters: Any,  # OUT (N·C′,) the same, or `n_clusters` where there is none
) -> None:
    """Entries without a cluster go behind the last one. O(N · C′)."""
    begin = length * take_number(queue)
    while begin < members.shape[0]:
        for e in range(begin, min(begin + length, members.shape[0])):
            clusters[e] = members[e] if members[e] >= 0 else n_clusters
        begin = length * take_number(queue)
