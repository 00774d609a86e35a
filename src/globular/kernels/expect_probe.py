"""Probing for mixtures: the best components of a cell against the C′ that a row keeps, K(n).

A cost is −2 log p(c, x) up to what all components share, lower is better. Costs from a matrix product carry rounding
errors; here they come lowered by more than that, so that whatever could enter K(n) is looked at, and its cost in
float64 decides. K(n) only ever exchanges a component for a better one: the free energy does not fall.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel
from globular.kernels.neighborhoods import AHEAD
from globular.kernels.prefetch import prefetch_row
from globular.kernels.probe import HEAT, lowest_of_heat
from globular.kernels.rows import order_key


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
    rows: Any,  # IN  (array,): n rows
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (n, C′) K(n), sorted by cost; −1 where there is none
    costs: Any,  # OUT (n, C′) ascending; inf where there is no member
) -> int:
    """What K(n) costs at these parameters; returns the number of components looked at. O(n · C′ · D)."""
    n, C_prime = members.shape
    n_costs = 0
    for i in range(n):
        for a in range(C_prime):
            c = members[i, a]
            if c < 0:
                costs[i, a] = np.inf
                continue
            take_in(exact_cost(rows[0], i, means, c, precisions, biases), c, costs, members, i, a)
            n_costs += 1
    return n_costs


@kernel
def check_cell(
    rows: Any,  # IN  (array,): the rows of a task, gathered
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
                cost = exact_cost(rows[0], k, means, components[g], precisions, biases)
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
    costs: Any,  # IN  (n, C′) ascending
    unit: float,  # IN  −2 log p(c, x) = unit · cost + base
    base: float,  # IN
    weights: Any,  # IN  (n,) or empty
) -> float:
    """Σ w log Σ_{c∈K(n)} p(c, x), Eq. 10. O(n · C′)."""
    total = 0.0
    for i in range(costs.shape[0]):
        norm = 0.0
        for a in range(costs.shape[1]):
            norm += np.exp(-0.5 * unit * (costs[i, a] - costs[i, 0]))
        weight = weights[i] if weights.shape[0] else 1.0
        total += weight * (np.log(norm) - 0.5 * (unit * costs[i, 0] + base))
    return total


@kernel
def shares_of_costs(
    costs: Any,  # IN  (n, C′) ascending; OUT w q(c): Eq. 5, the posterior renormalised over K(n)
    unit: float,  # IN
    base: float,  # IN
    weights: Any,  # IN  (n,) or empty
) -> float:
    """Truncated responsibilities in the place of costs; returns the free energy. O(n · C′)."""
    total = 0.0
    for i in range(costs.shape[0]):
        lowest, norm = costs[i, 0], 0.0
        for a in range(costs.shape[1]):
            costs[i, a] = np.exp(-0.5 * unit * (costs[i, a] - lowest))
            norm += costs[i, a]
        weight = weights[i] if weights.shape[0] else 1.0
        for a in range(costs.shape[1]):
            costs[i, a] *= weight / norm
        total += weight * (np.log(norm) - 0.5 * (unit * lowest + base))
    return total
