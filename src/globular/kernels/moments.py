"""First and second moments: of columns in one read of the rows, and squares added to packed scatters."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import inline, kernel
from globular.kernels.queue import take_number


@kernel
def add_moments(
    block: Any,  # IN  (n, D)
    scales: Any,  # IN  (n,) or empty
    weights: Any,  # IN  (n,) or empty
    shift: Any,  # IN  (D,) float64, near the mean: what is squared is small then and little cancels
    first: Any,  # IN/OUT (D,) float64: += Σ w (x − shift)
    second: Any,  # IN/OUT (D,) float64: += Σ w (x − shift)²
) -> None:
    """Weighted sums of differences to a shift and of their squares. O(n·D)."""
    n, n_columns = block.shape
    for i in range(n):
        weight = weights[i] if weights.shape[0] else 1.0
        scale = scales[i] if scales.shape[0] else 1.0
        for j in range(n_columns):
            difference = scale * block[i, j] - shift[j]
            first[j] += weight * difference
            second[j] += weight * difference * difference


@kernel
def moments_of_runs(
    queue: Any,  # IN/OUT runs
    length: int,  # IN  rows of a run
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    shift: Any,  # IN  (D,)
    out: Any,  # OUT (runs, 2, D) Σ w (x − shift) and Σ w (x − shift)²
) -> None:
    """`add_moments` for every run of rows. O(N·D)."""
    r = take_number(queue)
    while r < out.shape[0]:
        begin, end = r * length, (r + 1) * length
        out[r] = 0.0
        add_moments(x[begin:end], scales[begin:end], weights[begin:end], shift, out[r, 0], out[r, 1])
        r = take_number(queue)


@inline
def add_square(scatter: Any, c: int, share: float, difference: Any) -> None:
    """Add share · difference differenceᵀ to a packed scatter of whatever kind."""
    D, width = difference.shape[0], scatter.shape[1]
    if width == 1:
        total = 0.0
        for d in range(D):
            total += difference[d] * difference[d]
        scatter[c, 0] += share * total
    elif width == D:
        for d in range(D):
            scatter[c, d] += share * difference[d] * difference[d]
    else:
        place = 0
        for d in range(D):
            for e in range(d, D):
                scatter[c, place] += share * difference[d] * difference[e]
                place += 1
