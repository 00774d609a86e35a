"""Per-row state in runs of rows: sums and counts, on all threads."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel
from globular.kernels.queue import take_number
from globular.kernels.seeds import weighted_sum


@kernel
def sum_runs(
    queue: Any,  # IN/OUT runs
    length: int,  # IN  rows of a run
    d2: Any,  # IN  (N,)
    weights: Any,  # IN  (N,) or empty
    sums: Any,  # OUT (runs,) Σ w d²
) -> None:
    """O(N)."""
    r = take_number(queue)
    while r < sums.shape[0]:
        begin, end = r * length, (r + 1) * length
        sums[r] = weighted_sum(d2[begin:end], weights[begin:end])
        r = take_number(queue)


@kernel
def count_changes(
    queue: Any,  # IN/OUT runs
    length: int,  # IN  rows of a run
    former: Any,  # IN  (N,)
    labels: Any,  # IN  (N,)
    changes: Any,  # OUT (runs,) rows whose labels differ
) -> None:
    """O(N)."""
    r = take_number(queue)
    while r < changes.shape[0]:
        n = 0
        for i in range(r * length, min((r + 1) * length, labels.shape[0])):
            n += former[i] != labels[i]
        changes[r] = n
        r = take_number(queue)
