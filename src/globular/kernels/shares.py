"""E-steps of many small mixtures, each on chunks of its own: trials of splits ask for hundreds of them at a time.

All components lie in one form, one mixture behind the other, and all chunks in one list. What one thread does at once
is a *stretch*: some chunks under one mixture (`kernels.expect`). Stretches do not depend on the number of threads, and
the sums of a mixture are added in the order of its stretches.
"""

from __future__ import annotations

from typing import Any

from globular.jit import kernel


@kernel
def cut_stretches(
    starts: Any,  # IN  (shares + 1,) chunks of share i are starts[i] … starts[i + 1] − 1
    seen: Any,  # IN  (G, n) shares that each mixture sees
    bounds: Any,  # IN  (G + 1,) its components
    most: int,  # IN  chunks of a stretch
    stretches: Any,  # OUT as many as there is room for
) -> tuple[int, int]:
    """Chunks of the shares that every mixture sees, cut where they are many; how many stretches and sums. O(both)."""
    item = place = 0
    for g in range(seen.shape[0]):
        for i in seen[g]:
            for first in range(starts[i], starts[i + 1], most):
                if item < stretches.first.shape[0]:
                    stretches.mixture[item], stretches.place[item] = g, place
                    stretches.first[item], stretches.end[item] = first, min(first + most, starts[i + 1])
                item += 1
                place += bounds[g + 1] - bounds[g]
    return item, place


@kernel
def add_stretches(
    stretches: Any,  # IN
    bounds: Any,  # IN
    found: Any,  # IN  a `kernels.expect.Tally` of stretches
    total: Any,  # IN/OUT of mixtures
) -> None:
    """Sums of mixtures, in the order of their stretches. O(numbers)."""
    for item in range(stretches.first.shape[0]):
        g = stretches.mixture[item]
        for c in range(bounds[g], bounds[g + 1]):
            from_ = stretches.place[item] + c - bounds[g]
            total.raw[c, 0] += found.raw[from_, 0]
            for d in range(total.tight_sums.shape[1]):
                total.tight_sums[c, d] += found.tight_sums[from_, d]
            for s in range(total.tight_scatter.shape[1]):
                total.tight_scatter[c, s] += found.tight_scatter[from_, s]
        for k in range(2):
            total.totals[g, k] += found.totals[item, k]
