"""Rejection, chains and swaps among rows at the algorithm's side, one after the other."""

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64


def accepted_proposals(proposals: F64, before: F64, tests: F64) -> list[bool]:
    """A proposal is accepted with the chance d(y, S′)² / d(y, S)², S′ the seeds at its turn; the first one always."""
    accepted: list[bool] = []
    for i, row in enumerate(proposals):
        seeds = proposals[:i][np.array(accepted, dtype=bool)]
        closest = min([before[i], *((row - seed) @ (row - seed) for seed in seeds)])
        accepted.append(i == 0 or tests[i] * before[i] < closest)
    return accepted


def ends_of_chains(proposals: F64, q: F64, tests: F64, squared: F64) -> list[int]:
    """Metropolis chains for d² / q; the seeds of those before lower d², and one that ends on a seed ends them all."""
    m, ends = tests.shape[1], list[int]()
    for chain in range(len(tests)):
        d2 = np.min([squared, *(np.sum((proposals - proposals[end]) ** 2, axis=1) for end in ends)], axis=0)
        state = chain * m
        for t in range(1, m):
            if tests[chain, t] * d2[state] / q[state] < d2[chain * m + t] / q[chain * m + t]:
                state = chain * m + t
        if d2[state] == 0:
            break
        ends.append(state)
    return ends


def matched_swaps(
    losses: F64, nearest: NDArray[np.int32], gains: F64, owners: NDArray[np.int32], safety: float
) -> tuple[list[int], list[int]]:
    """The best splits get the centres that are least missed: who has the rows of each cluster, and what splits get."""
    names, seats = list(range(len(losses))), [-1] * len(owners)
    settled: set[int] = set()
    spares = sorted(range(len(losses)), key=lambda c: (losses[c], c))
    for k in sorted(range(len(owners)), key=lambda k: (-gains[k], k)):
        spares = [c for c in spares if c not in settled and names[nearest[c]] == nearest[c]]
        owner = int(owners[k])
        if not spares or spares[0] == owner or names[owner] != owner or gains[k] <= safety * losses[spares[0]]:
            continue
        spare = spares[0]
        names[spare], seats[k] = int(nearest[spare]), spare
        settled |= {spare, int(nearest[spare]), owner}
    return names, seats
