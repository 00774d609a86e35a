"""The d² pass: how far every row is from its closest seed, and drawing rows in proportion to it.

Per-point state: `d2`, the squared distance to the closest seed since the restart, and `seeds`, that seed's number. One
new seed costs one read of the rows at memory speed; many go through the same nominating product as the hard pass, the
winner's distance being taken exactly. Sums over fixed runs of rows are kept, so that drawing a row reads one run only.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.products import CenterProduct
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import error_runs, for_runs
from globular.kernels import seeds as kernels
from globular.model.statistics import F64, PotentialStatistics
from globular.seam.passes import AddSeeds, CellSeeds, Index, TrySeeds
from globular.threads import even_ranges, run_all

FEW = 3
"""New seeds up to which each goes by itself: reading the rows again is cheaper than a thin matrix product."""


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
    d2, seeds = shard.squared_distances, shard.closest_seeds
    norms: F64 = np.einsum("ij,ij->i", center, center)
    zero = zero_level(shard)

    def lower(span: tuple[int, int]) -> float:
        part = slice(*span)
        rows = shard.rows.kernel_rows(*span)
        return kernels.lower_by_one(
            rows, shard.scales[part], shard.weights[part], center, norms, number, zero, d2[part], seeds[part]
        )

    shard.error_runs = np.array(for_runs(shard, lower))


def _lower_by_many(shard: CpuShard, centers: F64, base: int) -> None:
    d2, seeds = shard.squared_distances, shard.closest_seeds
    product, zero = CenterProduct(shard, centers), zero_level(shard)
    # with seeds already there, `len(centers)` stands for "none of the new ones"
    none_of_these = -1 if base == 0 else len(centers)

    def lower(span: tuple[int, int]) -> float:
        part = slice(*span)
        best = d2[part].copy()
        found = np.full(len(best), none_of_these, dtype=np.int32)
        for a, b in even_ranges(len(best), product.rows_per_block):
            rows, seen, scales = product.load(span[0] + a, span[0] + b)
            product.nearest(rows, seen, scales, best[a:b], found[a:b])
        return kernels.settle_seeds(best, found, zero, base, shard.weights[part], d2[part], seeds[part])

    shard.error_runs = np.array(for_runs(shard, lower))


@CpuShard.implements(TrySeeds)
def try_seeds(shard: CpuShard, work: TrySeeds) -> F64:
    centers = np.ascontiguousarray(work.seeds, dtype=np.float64)
    norms: F64 = np.einsum("ij,ij->i", centers, centers)
    d2 = shard.squared_distances

    def trial(span: tuple[int, int]) -> F64:
        part, out = slice(*span), np.empty(len(centers))
        rows = shard.rows.kernel_rows(*span)
        kernels.trial_potentials(rows, shard.scales[part], shard.weights[part], centers, norms, d2[part], out)
        return out

    found = for_runs(shard, trial)
    return found[0] if len(found) == 1 else np.sum(found, axis=0)


@CpuShard.implements(CellSeeds)
def cell_seeds(shard: CpuShard, work: CellSeeds) -> Index:
    """The cells side by side on our threads."""
    starts, quotas, uniforms = work.starts, work.quotas, work.uniforms
    ends = np.concatenate([[0], np.cumsum(quotas)])
    chosen = np.empty(ends[-1], dtype=np.int64)
    rows = shard.dense_rows

    def seed(cell: int) -> None:
        begin, end = int(starts[cell]), int(starts[cell + 1])
        out = chosen[ends[cell] : ends[cell + 1]]
        x = rows.block(begin, end)
        scratch = np.empty(end - begin, dtype=x.dtype)
        kernels.seed_cell(x, shard.weights[begin:end], uniforms[ends[cell] : ends[cell + 1]], scratch, out)
        out[out >= 0] += begin

    run_all(seed, range(len(quotas)), shard.n_threads)
    return chosen.astype(np.intp)
