"""The d² pass: how far every row is from its closest seed, and drawing rows in proportion to it.

Per-point state: `d2`, the squared distance to the closest seed since the restart, and `seeds`, that seed's number. One
new seed costs one read of the rows at memory speed; many go through the same nominating product as the hard pass, the
winner's distance being taken exactly. Sums over fixed runs of rows are kept, so that drawing a row reads one run only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import seeds as kernels
from globular.kernels.nearest import TILE
from globular.model.statistics import F64, PotentialStatistics
from globular.passes.cpu.cells import CellProduct
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, error_runs, runs_of, threads_for_runs
from globular.seam.passes import AddSeeds, CellSeeds, Index, TrySeeds

FEW = 3
"""New seeds up to which each goes by itself: reading the rows again is cheaper than a thin matrix product."""
BLOCK = 256
"""Rows, and seeds, of a product: its scores stay in the second-level cache."""


def zero_level(shard: CpuShard) -> float:
    """Squared distance to a new seed up to which a row counts as equal to it.

    The difference form is exact: 0. Unit rows of the same direction differ by the rounding of their own dtype.
    """
    return (4 * float(np.finfo(shard.rows.dtype).eps)) ** 2 if len(shard.scales) else 0.0


@CpuShard.implements(AddSeeds)
def add_seeds(shard: CpuShard, work: AddSeeds) -> PotentialStatistics:
    if work.n_before == 0:
        shard.squared_distances[:], shard.closest_seeds[:] = np.inf, -1
    centers = np.ascontiguousarray(work.seeds, dtype=np.float64)
    if len(centers) <= FEW:
        for c in range(len(centers)):
            _lower_by_one(shard, centers[c : c + 1], work.n_before + c)
    else:
        _lower_by_many(shard, centers, work.n_before)
    return PotentialStatistics(float(error_runs(shard).sum()), shard.n_rows * len(centers))


def _lower_by_one(shard: CpuShard, center: F64, number: int) -> None:
    d2, seeds, sums = shard.squared_distances, shard.closest_seeds, np.empty(-(-shard.n_rows // RUN))
    norms: F64 = np.einsum("ij,ij->i", center, center)
    zero = zero_level(shard)

    def lower(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        kernels.lower_runs_by_one(
            queue, RUN, rows, shard.scales[part], shard.weights[part], center, norms, number, zero, d2[part],
            seeds[part], sums[runs_of(part)],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), lower, calls_blas=False)
    shard.error_runs = sums


def _lower_by_many(shard: CpuShard, centers: F64, base: int) -> None:
    d2, seeds, zero, dtype = shard.squared_distances, shard.closest_seeds, zero_level(shard), shard.dtype
    product = CellProduct(shard, centers, np.arange(len(centers)), np.array([0, len(centers)]))
    unit, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
    in_turn = np.empty(0, dtype=np.int64) if product.is_thin else np.arange(shard.n_rows)  # once, not on each thread

    def lower(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        given = (
            queue, rows, shard.scales[part], product.offset, product.factors, product.score_norms, product.centers,
            product.norms, unit, tiny, zero, base,
        )  # fmt: skip
        seen, scores = np.empty((BLOCK, shard.n_columns), dtype=dtype), np.empty(BLOCK * BLOCK, dtype=dtype)
        lengths, best, found = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, dtype=np.int32)
        if product.is_thin:
            kernels.lower_thin_by_many(*given, d2[part], seeds[part], seen, lengths, best, found, *product.lanes())
            return
        keys, everyone = product.keys(BLOCK // TILE), in_turn[: part.stop - part.start]
        kernels.lower_by_many(*given, everyone, d2[part], seeds[part], seen, scores, lengths, keys, best, found)

    on_rows(shard.rows, shard.n_threads, lower)
    shard.error_runs = None


@CpuShard.implements(TrySeeds)
def try_seeds(shard: CpuShard, work: TrySeeds) -> F64:
    centers = np.ascontiguousarray(work.seeds, dtype=np.float64)
    norms: F64 = np.einsum("ij,ij->i", centers, centers)
    d2, out = shard.squared_distances, np.empty((-(-shard.n_rows // RUN), len(centers)))

    def trial(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        kernels.trial_potentials(
            queue, RUN, rows, shard.scales[part], shard.weights[part], centers, norms, d2[part], out[runs_of(part)]
        )

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), trial, calls_blas=False)
    return out[0] if len(out) == 1 else out.sum(axis=0)


@CpuShard.implements(CellSeeds)
def cell_seeds(shard: CpuShard, work: CellSeeds) -> Index:
    """The cells side by side on our threads."""
    ends = np.concatenate([[0], np.cumsum(work.quotas)])
    chosen, queue = np.empty(ends[-1], dtype=np.int64), new_queue()
    x = shard.dense_rows.block(0, shard.n_rows)
    largest = int(np.diff(work.starts).max(initial=0))

    def seed() -> None:
        scratch = np.empty(largest, dtype=x.dtype)
        kernels.seed_cells(queue, x, shard.weights, work.starts, ends, work.uniforms, scratch, chosen)

    share_kernel(seed, queue, shard.n_threads)
    return chosen.astype(np.intp)
