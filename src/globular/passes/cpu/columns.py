"""What is to be known of columns before a fit: moments, and the extremes; and entries seen through a root."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, take_number
from globular.model.statistics import F64, ColumnMoments
from globular.passes.cpu.rows import CSRRows, KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NONE, RUN, runs_of, threads_for_runs
from globular.seam.passes import AsScaled, Extremes, Moments, Roots


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


# --- drivers ---------------------------------------------------------------------------------------------------------


@CpuShard.implements(Moments)
def moments(shard: CpuShard, work: Moments) -> ColumnMoments:
    """Zeros where nothing counts."""
    weight = shard.total_weight
    found = _column_moments(shard) if weight > 0 else (np.zeros(shard.n_columns), np.zeros(shard.n_columns))
    return ColumnMoments(((weight, *found),))


def _column_moments(shard: CpuShard) -> tuple[F64, F64]:
    """Weighted mean and variance per column, in one pass about a sample's mean, float64."""
    if isinstance(shard.rows, CSRRows):
        return _csr_moments(shard, shard.rows)
    sample = shard.take(np.arange(0, shard.n_rows, -(-shard.n_rows // 256)))
    # a constant column is to have the variance zero, not what rounding its mean leaves
    constant = np.logical_and.reduce(sample == sample[0], axis=0)
    shift = np.where(constant, sample[0], np.add.reduce(sample, axis=0) / len(sample))

    out = np.empty((-(-shard.n_rows // RUN), 2, shard.n_columns))

    def moments(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        moments_of_runs(queue, RUN, rows[0], shard.scales[part], shard.weights[part], shift, out[runs_of(part)])

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), moments, calls_blas=False)
    first, second = np.add.reduce(out, axis=0) / shard.total_weight
    with np.errstate(over="ignore", invalid="ignore"):  # callers see infinity or NaN and say so
        return shift + first, np.maximum(second - first**2, 0.0)


def _csr_moments(shard: CpuShard, rows: CSRRows) -> tuple[F64, F64]:
    """On one thread: it takes as long as to read the entries twice."""
    mean, variance, filled = np.empty((3, shard.n_columns))
    counts = np.empty(shard.n_columns, dtype=np.int64)
    entries = rows.data, rows.indices, rows.indptr
    moments_of_csr(entries, shard.scales, shard.weights, shard.total_weight, mean, variance, filled, counts)
    return mean, variance


@CpuShard.implements(Extremes)
def extremes(shard: CpuShard, work: Extremes) -> F64:
    rows = shard.dense_rows.array
    return np.stack([rows.min(axis=0), rows.max(axis=0)]).astype(np.float64)


@CpuShard.implements(AsScaled)
def as_scaled(shard: CpuShard, work: AsScaled) -> CpuShard:
    """A copy, unless the rows count as they are."""
    if not len(shard.scales):
        return shard
    rows = shard.dense_rows.block(0, shard.n_rows)
    return _copy(shard, np.multiply(rows, shard.scales[:, None], dtype=rows.dtype, casting="same_kind"), NONE)


@CpuShard.implements(Roots)
def roots(shard: CpuShard, work: Roots) -> CpuShard:
    """A copy."""
    rows: Any = shard.rows.block(0, shard.n_rows)
    if isinstance(rows, np.ndarray):
        rows = np.copysign(np.sqrt(np.abs(rows)), rows)
    else:
        rows.data = np.copysign(np.sqrt(np.abs(rows.data)), rows.data)
    return _copy(shard, rows, np.sqrt(shard.scales))


def _copy(shard: CpuShard, rows: Any, scales: F64) -> CpuShard:
    """Other rows with the same state."""
    return CpuShard(
        rows, shard.weights, scales=scales, n_threads=shard.n_threads, state=shard.state, first_row=shard.first_row
    )
