"""Draws and swaps that C-sized tables decide among themselves (`kernels.draws`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.kernels.draws import accept_proposals, match_swaps, run_chains
from globular.model.statistics import F64


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
