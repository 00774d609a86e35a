"""First and second moments: of columns in one read of the rows, and squares added to packed scatters."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, inline, kernel, take_number


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
    queue: Queue,  # IN/OUT runs
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


@kernel
def moments_of_csr(
    rows: Any,  # IN  (data, indices, indptr)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    total: float,  # IN  Σ w
    mean: Any,  # OUT (D,) float64
    variance: Any,  # OUT (D,) float64
    filled: Any,  # scratch (D,) float64: the share of the weight that has an entry
    counts: Any,  # scratch (D,) int64: entries
) -> None:
    """Weighted moments of columns about the mean, the zeros of a column together: a large offset must not cancel.

    O(nnz + D)
    """
    data, indices, indptr = rows
    n, n_columns = indptr.shape[0] - 1, mean.shape[0]
    for j in range(n_columns):
        mean[j], variance[j], filled[j], counts[j] = 0.0, 0.0, 0.0, 0
    for i in range(n):
        weight = weights[i] if weights.shape[0] else 1.0
        scale = scales[i] if scales.shape[0] else 1.0
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            mean[j] += weight * (scale * data[k])
            filled[j] += weight
            counts[j] += 1
    for j in range(n_columns):
        mean[j] /= total
        filled[j] = 1.0 if counts[j] == n else filled[j] / total
    for i in range(n):
        weight = weights[i] if weights.shape[0] else 1.0
        scale = scales[i] if scales.shape[0] else 1.0
        for k in range(indptr[i], indptr[i + 1]):
            difference = scale * data[k] - mean[indices[k]]
            variance[indices[k]] += weight * difference * difference
    for j in range(n_columns):
        variance[j] = variance[j] / total + max(1.0 - filled[j], 0.0) * mean[j] * mean[j]


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
