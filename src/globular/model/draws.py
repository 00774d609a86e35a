"""What rows taken to the algorithm's side decide among themselves: rejection, chains, and who swaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import inline, kernel
from globular.model.statistics import F64


@kernel
def match_swaps(
    losses: Any,  # IN  (C,) what giving each centre up costs
    nearest: Any,  # IN  (C,) who takes over its rows
    spares: Any,  # IN  (C,) centres by their losses, least first
    gains: Any,  # IN  (S,) what each split gains
    best: Any,  # IN  (S,) splits by their gains, most first
    owners: Any,  # IN  (S,) the cluster of each split
    safety: float,  # IN  a gain must exceed the loss by this factor
    settled: Any,  # scratch (C,) bool, False
    names: Any,  # IN/OUT (C,) 0, 1, …; out: who has the rows of each cluster
    seats: Any,  # IN/OUT (S,) −1; out: the centre that each split gets
) -> None:
    """The best splits get the centres that are least missed. O(C + S)."""
    at = 0
    for k in best:
        # settled: has moved, has taken over the rows of one that moved, or has been split
        while at < spares.shape[0] and (settled[spares[at]] or names[nearest[spares[at]]] != nearest[spares[at]]):
            at += 1
        if at == spares.shape[0]:
            return
        spare, owner = spares[at], owners[k]
        if spare == owner or names[owner] != owner or gains[k] <= safety * losses[spare]:
            continue
        names[spare], seats[k] = nearest[spare], spare
        settled[spare] = settled[nearest[spare]] = settled[owner] = True


@inline
def lower_between(x: Any, first: int, stop: int, seed: int, d2: Any) -> None:
    """Lower the squared distances of rows first … stop − 1 by one of the rows. O(n · D)."""
    for i in range(first, stop):
        total = 0.0
        for j in range(x.shape[1]):
            difference = x[i, j] - x[seed, j]
            total += difference * difference
        d2[i] = min(d2[i], total)


@kernel
def accept_proposals(
    x: Any,  # IN  (n, D) float64
    tests: Any,  # IN  (n,) numbers in [0, 1)
    before: Any,  # IN  (n,) squared distances to the seeds before the first proposal
    d2: Any,  # IN/OUT (n,) the same; lowered by those that are accepted
    accepted: Any,  # OUT (n,) bool
) -> None:
    """Rejection: a proposal stays with the chance d² / d² before, given those accepted so far. O(n² · D)."""
    for i in range(x.shape[0]):
        accepted[i] = i == 0 or tests[i] * before[i] < d2[i]
        if accepted[i]:
            lower_between(x, i + 1, x.shape[0], i, d2)


@kernel
def run_chains(
    x: Any,  # IN  (n · m, D) float64, the proposals of n chains
    q: Any,  # IN  (n · m,) their chance of being proposed, by weight
    tests: Any,  # IN  (n, m) numbers in [0, 1)
    d2: Any,  # IN/OUT (n · m,) squared distances to the seeds so far; lowered by what the chains end at
    last: Any,  # OUT (n,) where each chain ends
) -> int:
    """Metropolis chains for d² / q, each given the ends of those before; how many until one ends on a seed.

    O(n² · m · D)
    """
    n, m = tests.shape
    for chain in range(n):
        state = chain * m
        for end in last[:chain]:  # when their turn comes: the proposals of one chain stay in the cache
            lower_between(x, state, state + m, end, d2)
        for t in range(1, m):
            here = chain * m + t
            if tests[chain, t] * (d2[state] / q[state]) < d2[here] / q[here]:
                state = here
        if d2[state] == 0.0:
            return chain
        last[chain] = state
    return n


def accepted_proposals(proposals: F64, before: F64, tests: F64) -> NDArray[np.bool_]:
    """Which proposals of D² sampling stay by rejection, each given those before it; the first one always does.

    `before` are their squared distances to the seeds that they were drawn with. O(n² D).
    """
    accepted = np.empty(len(proposals), dtype=np.bool_)
    proposals, before = np.asarray(proposals), np.asarray(before)
    accept_proposals(proposals, tests, before, before.copy(), accepted)
    return accepted


def ends_of_chains(proposals: F64, q: F64, tests: F64, squared: F64) -> NDArray[np.intp]:
    """Where Metropolis chains end that go over their proposals one after the other, π/q = d²/q.

    There are as many chains as rows of `tests`, and each lowers d² for those behind it. The first chain that ends on a
    seed is the last one.
    """
    last = np.empty(len(tests), dtype=np.intp)
    proposals, q, squared = map(np.asarray, (proposals, q, squared))
    return last[: run_chains(proposals, q, tests, squared.copy(), last)]


def matched_swaps(
    losses: F64, nearest: NDArray[np.int32], gains: F64, owners: NDArray[np.int32], safety: float
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The best splits get the centres that are least missed: new names of the clusters, and for each split the centre
    it gets or −1."""
    names, seats = np.arange(len(losses), dtype=np.int32), np.full(len(owners), -1, dtype=np.int32)
    spares, best = np.argsort(losses, kind="stable"), np.argsort(-gains, kind="stable")
    losses, nearest, gains, owners, spares, best = map(np.asarray, (losses, nearest, gains, owners, spares, best))
    settled = np.zeros(len(losses), dtype=np.bool_)
    match_swaps(losses, np.ascontiguousarray(nearest), spares, gains, best, owners, safety, settled, names, seats)
    return names, seats
