"""Probing for mixtures: the best components of a cell against the C′ that a row keeps, K(n).

A cost is −2 log p(c, x) up to what all components share, lower is better. Costs from a matrix product carry rounding
errors; here they come lowered by more than that, so that whatever could enter K(n) is looked at, and its cost in
float64 decides. K(n) only ever exchanges a component for a better one: the free energy does not fall.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.blas import multiply_rows
from globular.jit.memory import as_matrix, order_key, prefetch_row
from globular.kernels.probe import HEAT, lowest_of_heat
from globular.kernels.rows import length as length_of
from globular.kernels.scores import copy_row
from globular.kernels.sums import AHEAD


@inline
def exact_cost(x: Any, r: int, means: Any, c: int, precisions: Any, biases: Any) -> float:
    """Σ_j precision_cj (x_j − μ_cj)² + bias_c in float64. O(D)."""
    total = 0.0
    if precisions.shape[1] == 1:
        for j in range(x.shape[1]):
            difference = x[r, j] - means[c, j]
            total += difference * difference
        return total * precisions[c, 0] + biases[c]
    for j in range(x.shape[1]):
        difference = x[r, j] - means[c, j]
        total += difference * difference * precisions[c, j]
    return total + biases[c]


@inline
def take_in(cost: float, c: int, costs: Any, members: Any, i: int, last: int) -> None:
    """Put a component into place last or before, where costs ascend; what was last is gone. O(C′)."""
    place = last
    while place > 0 and costs[i, place - 1] > cost:
        costs[i, place] = costs[i, place - 1]
        members[i, place] = members[i, place - 1]
        place -= 1
    costs[i, place] = cost
    members[i, place] = c


@kernel
def own_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN  (array,)
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′) K(n), sorted by cost; −1 where there is none
    costs: Any,  # OUT (N, C′) ascending; inf where there is no member
    n_costs: Any,  # OUT (runs,) components looked at
) -> None:
    """What K(n) costs at these parameters. O(N · C′ · D)."""
    run = take_number(queue)
    while run < n_costs.shape[0]:
        n_costs[run] = 0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(members.shape[1]):
                c = members[i, a]
                if c < 0:
                    costs[i, a] = np.inf
                    continue
                take_in(exact_cost(rows[0], i, means, c, precisions, biases), c, costs, members, i, a)
                n_costs[run] += 1
        run = take_number(queue)


@kernel
def visit_cells(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3) a cell, and its rows order[begin:end], which lie at places[begin:end]
    rows: Any,  # IN  (array,)
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (cells + 1,)
    components: Any,  # IN  (C,) in the order of their cells
    factors: Any,  # IN  (C, D) or (C, 2D) what a product takes of each, in that order
    norms: Any,  # IN  (C,) in that order, as all that `check_cell` takes of a cell
    curvatures: Any,  # IN  (C,)
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    seen: Scratch,  # scratch (B, D), or (B, 2D): the squares too
    scores: Scratch,  # scratch
    lengths: Scratch,  # scratch (B,)
    keys: Scratch,  # scratch (largest cell rounded up to a multiple of HEAT,) integers as wide as a score
) -> None:
    """Each row against the components of one cell. O(N · D · components)."""
    D = rows[0].shape[1]
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        B = min(lengths.shape[0], scores.shape[0] // (stop - first))
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            m = end - begin
            for k in range(m):
                if k + AHEAD < m:
                    prefetch_row(rows[0], places[begin + k + AHEAD])
                copy_row(rows[0], places[begin + k], offset, seen, k)
                if seen.shape[1] > D:
                    for j in range(D):
                        seen[k, D + j] = seen[k, j] * seen[k, j]
                lengths[k] = length_of(seen[k], 0, D) if seen.shape[1] == D else 0.0
            block = as_matrix(scores, m, stop - first)
            multiply_rows(seen, 0, m, factors, first, stop - first, block)
            check_cell(
                rows, places[begin:end], order[begin:end], lengths, block, norms[first:stop], curvatures[first:stop],
                components[first:stop], means, precisions, biases, members, costs,
                keys[: (stop - first + HEAT - 1) // HEAT * HEAT],
            )  # fmt: skip
        t = take_number(queue)


@kernel
def check_cell(
    rows: Any,  # IN  (array,)
    at: Any,  # IN  (n,) where the rows of a block lie
    chosen: Any,  # IN  (n,) their numbers in the shard
    lengths: Any,  # IN  (n,) ‖x − offset‖; 0 where costs do not need it
    scores: Any,  # IN  (n, components of the cell) the part of the costs that is a product
    norms: Any,  # IN  (components,) the part that is the same for all rows, lowered
    curvatures: Any,  # IN  (components,) what a cost has of ‖x − offset‖², lowered
    components: Any,  # IN  (components,) which they are
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    keys: Any,  # scratch (components rounded up to a multiple of HEAT,) integers as wide as a score
) -> None:
    """K(n) = the C′ best of K(n) and the cell. O(n · components), and O(D) for each that may beat the worst of K(n)."""
    n, n_components = scores.shape
    last = members.shape[1] - 1
    for g in range(n_components, keys.shape[0]):
        keys[g] = np.iinfo(keys.dtype).max
    for k in range(n):
        i = chosen[k]
        if k + AHEAD < n:
            prefetch_row(costs, chosen[k + AHEAD])
            prefetch_row(members, chosen[k + AHEAD])
        square = norms.dtype.type(lengths[k] * lengths[k])
        for g in range(n_components):
            keys[g] = order_key((norms[g] + curvatures[g] * square) + scores[k, g])
        limit = limit_key(costs[i, last], norms)
        for heat in range(keys.shape[0] // HEAT):
            if lowest_of_heat(keys, heat) > limit:
                continue
            for g in range(heat * HEAT, min((heat + 1) * HEAT, n_components)):
                if keys[g] > limit or is_member(components[g], members, i):
                    continue
                cost = exact_cost(rows[0], at[k], means, components[g], precisions, biases)
                if cost < costs[i, last]:
                    take_in(cost, components[g], costs, members, i, last)
                    limit = limit_key(costs[i, last], norms)


@inline
def limit_key(cost: float, like: Any) -> int:
    """The key of a cost, rounded up to the type of `like`."""
    return order_key(like.dtype.type(cost + 1e-6 * abs(cost)))


@inline
def is_member(c: int, members: Any, i: int) -> bool:
    """Whether K(n) of row i has this component. O(C′)."""
    known = False
    for a in range(members.shape[1]):
        known |= members[i, a] == c
    return known


@kernel
def free_energy(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, C′) ascending
    unit: float,  # IN  −2 log p(c, x) = unit · cost + base
    base: float,  # IN
    weights: Any,  # IN  (N,) or empty
    totals: Any,  # OUT (runs,) Σ w log Σ_{c∈K(n)} p(c, x), Eq. 10
) -> None:
    """O(N · C′)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            norm = 0.0
            for a in range(costs.shape[1]):
                norm += np.exp(-0.5 * unit * (costs[i, a] - costs[i, 0]))
            weight = weights[i] if weights.shape[0] else 1.0
            totals[run] += weight * (np.log(norm) - 0.5 * (unit * costs[i, 0] + base))
        run = take_number(queue)


@kernel
def shares_of_costs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, C′) ascending; OUT w q(c): Eq. 5, the posterior renormalised over K(n)
    unit: float,  # IN
    base: float,  # IN
    weights: Any,  # IN  (N,) or empty
    totals: Any,  # OUT (runs,) as in `free_energy`
) -> None:
    """Truncated responsibilities in the place of costs. O(N · C′)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            lowest, norm = costs[i, 0], 0.0
            for a in range(costs.shape[1]):
                costs[i, a] = np.exp(-0.5 * unit * (costs[i, a] - lowest))
                norm += costs[i, a]
            weight = weights[i] if weights.shape[0] else 1.0
            for a in range(costs.shape[1]):
                costs[i, a] *= weight / norm
            totals[run] += weight * (np.log(norm) - 0.5 * (unit * lowest + base))
        run = take_number(queue)
