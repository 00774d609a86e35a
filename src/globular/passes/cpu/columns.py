"""What is to be known of columns before a fit: moments, and the extremes; and entries seen through a root."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.kernels.moments import moments_of_csr, moments_of_runs
from globular.model.statistics import F64, ColumnMoments
from globular.passes.cpu.rows import CSRRows, KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, runs_of, threads_for_runs
from globular.seam.passes import Extremes, Moments, Roots


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


@CpuShard.implements(Roots)
def roots(shard: CpuShard, work: Roots) -> CpuShard:
    """A copy."""
    rows: NDArray[Any] | sparse.csr_array
    if isinstance(shard.rows, CSRRows):
        rows = shard.rows.block(0, shard.n_rows)
        rows.data = np.copysign(np.sqrt(np.abs(rows.data)), rows.data)
    else:
        rows = shard.rows.block(0, shard.n_rows)
        rows = np.copysign(np.sqrt(np.abs(rows)), rows)
    weights = shard.weights if len(shard.weights) else None
    return CpuShard(
        rows, weights, scales=np.sqrt(shard.scales), n_threads=shard.n_threads, state=shard.state,
        first_row=shard.first_row,
    )  # fmt: skip
