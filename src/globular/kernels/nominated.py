"""What rows look at beside K(n), and what they keep of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, kernel, take_number
from globular.kernels.expect_probe import is_member, take_in


@kernel
def add_nominees(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    members: Any,  # IN  (N, C′) K(n); −1 where there is none
    nominees: Any,  # IN  (N, G); −1 where there is none
    candidates: Any,  # OUT (N, C′ + G) both, each component once; −1 where there is none
    n_candidates: Any,  # OUT (runs,) how many they are
) -> None:
    """What rows look at. O(N · G · C′)."""
    C_prime = members.shape[1]
    run = take_number(queue)
    while run < n_candidates.shape[0]:
        n_candidates[run] = 0
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(C_prime):
                candidates[i, a] = members[i, a]
                n_candidates[run] += members[i, a] >= 0
            for a in range(nominees.shape[1]):
                new = nominees[i, a] >= 0 and not is_member(nominees[i, a], members, i)
                candidates[i, C_prime + a] = nominees[i, a] if new else -1
                n_candidates[run] += new
        run = take_number(queue)


@kernel
def keep_best(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    candidates: Any,  # IN  (N, W)
    costs: Any,  # IN  (N, W) inf where there is no candidate
    n_runs: int,  # IN
    members: Any,  # OUT (N, C′) the candidates of lowest cost, lowest first; −1 where there are fewer
    kept: Any,  # OUT (N, C′) their costs; inf where there is none
) -> None:
    """K(n), of which the earlier candidate wins a tie. O(N · W · C′) at most."""
    last = members.shape[1] - 1
    run = take_number(queue)
    while run < n_runs:
        for i in range(run * length, min((run + 1) * length, members.shape[0])):
            for a in range(last + 1):
                members[i, a] = -1
                kept[i, a] = np.inf
            for a in range(candidates.shape[1]):
                if candidates[i, a] >= 0 and costs[i, a] < kept[i, last]:
                    take_in(costs[i, a], candidates[i, a], kept, members, i, last)
        run = take_number(queue)


@kernel
def share_out(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    costs: Any,  # IN  (N, W) −2 log p(c, x), inf where there is none; OUT w q(c)
    weights: Any,  # IN  (N,) or empty
    densities: Any,  # OUT (N,) log Σ p(c, x)
    totals: Any,  # OUT (runs,) their sums, by weight
) -> None:
    """Responsibilities in the place of costs. O(N · W)."""
    run = take_number(queue)
    while run < totals.shape[0]:
        totals[run] = 0.0
        for i in range(run * length, min((run + 1) * length, costs.shape[0])):
            lowest, norm = np.inf, 0.0
            for a in range(costs.shape[1]):
                lowest = min(lowest, costs[i, a])
            for a in range(costs.shape[1]):
                costs[i, a] = np.exp(-0.5 * (costs[i, a] - lowest))
                norm += costs[i, a]
            weight = weights[i] if weights.shape[0] else 1.0
            for a in range(costs.shape[1]):
                costs[i, a] *= weight / norm
            densities[i] = np.log(norm) - 0.5 * lowest
            totals[run] += weight * densities[i]
        run = take_number(queue)
