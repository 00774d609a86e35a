"""The d² pass: how far every row is from its closest seed, and drawing rows in proportion to it.

Per-point state: `d2`, the squared distance to the closest seed since the restart, and `seeds`, that seed's number. One
new seed costs one read of the rows at memory speed; many go through the same nominating product as the hard pass, the
winner's distance being taken exactly. Sums over fixed runs of rows are kept, so that drawing a row reads one run only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from globular.backends.cpu.hard import CenterProduct
from globular.backends.cpu.rows import DenseRows
from globular.backends.protocol import Index, Labels
from globular.kernels import d2 as kernels
from globular.model.statistics import F64, PotentialStatistics
from globular.threads import even_ranges, map_all, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

Result = TypeVar("Result")

RUN = 4096
"""Rows whose sum of w d² is kept as one number."""
FEW = 3
"""Up to so many new seeds go one by one: reading the rows again is cheaper than a thin matrix product."""


def squared_distances(shard: CpuShard) -> F64:
    """Per-point state: squared distance to the closest seed (or, after a routed pass, to the row's own centre)."""
    return cast(F64, shard.state.get("d2", np.float64, np.inf))


def closest_seeds(shard: CpuShard) -> Labels:
    """Per-point state: number of the closest seed."""
    return cast(Labels, shard.state.get("seeds", np.int32, -1))


def zero_level(shard: CpuShard) -> float:
    """Squared distance to a new seed up to which a row counts as equal to it.

    The difference form is exact: 0. Unit rows of the same direction differ by the rounding of their own dtype.
    """
    return (4 * float(np.finfo(shard.rows.dtype).eps)) ** 2 if len(shard.scales) else 0.0


def d2_pass(shard: CpuShard, centers: F64, restart: bool) -> PotentialStatistics:
    """See `Shard.d2_pass`."""
    d2, seeds = squared_distances(shard), closest_seeds(shard)
    if restart:
        d2[:], seeds[:] = np.inf, -1
        shard.n_seeds, shard.potential_runs = 0, None
    centers = np.ascontiguousarray(centers, dtype=np.float64)
    if len(centers) <= FEW:
        for c in range(len(centers)):
            _lower_by_one(shard, centers[c : c + 1], d2, seeds)
    else:
        _lower_by_many(shard, centers, d2, seeds)
    return PotentialStatistics(float(run_sums(shard).sum()), shard.n_rows * len(centers))


def _lower_by_one(shard: CpuShard, center: F64, d2: F64, seeds: Labels) -> None:
    norms: F64 = np.einsum("ij,ij->i", center, center)
    zero, number = zero_level(shard), shard.n_seeds

    def lower(span: tuple[int, int]) -> float:
        part = slice(*span)
        rows = shard.rows.kernel_rows(*span)
        return kernels.lower_by_one(
            rows, shard.scales[part], shard.weights[part], center, norms, number, zero, d2[part], seeds[part]
        )

    shard.potential_runs = np.array(_for_runs(shard, lower))
    shard.n_seeds += 1


def _lower_by_many(shard: CpuShard, centers: F64, d2: F64, seeds: Labels) -> None:
    product = CenterProduct(shard, centers)
    zero, base = zero_level(shard), shard.n_seeds
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

    shard.potential_runs = np.array(_for_runs(shard, lower))
    shard.n_seeds += len(centers)


def trial_pass(shard: CpuShard, centers: F64) -> F64:
    """See `Shard.trial_pass`."""
    centers = np.ascontiguousarray(centers, dtype=np.float64)
    norms: F64 = np.einsum("ij,ij->i", centers, centers)
    d2 = squared_distances(shard)

    def trial(span: tuple[int, int]) -> F64:
        part, out = slice(*span), np.empty(len(centers))
        rows = shard.rows.kernel_rows(*span)
        kernels.trial_potentials(rows, shard.scales[part], shard.weights[part], centers, norms, d2[part], out)
        return out

    return np.sum(_for_runs(shard, trial), axis=0)


def _for_runs(shard: CpuShard, function: Callable[[tuple[int, int]], Result]) -> list[Result]:
    """Results for all runs of rows in order; a single run is not worth waking the threads for."""
    spans = even_ranges(shard.n_rows, RUN)
    return [function(spans[0])] if len(spans) == 1 else map_all(function, spans, shard.n_threads)


def run_sums(shard: CpuShard) -> F64:
    """Σ w d² of every run of rows, as kept by the last pass or taken from the state."""
    if shard.potential_runs is None:
        d2, weights = squared_distances(shard), shard.weights

        def add(span: tuple[int, int]) -> float:
            return kernels.weighted_sum(d2[slice(*span)], weights[slice(*span)])

        shard.potential_runs = np.array(_for_runs(shard, add))
    return shard.potential_runs


def locate(shard: CpuShard, masses: F64) -> Index:
    """See `Shard.locate`."""
    d2 = squared_distances(shard)

    def shares(span: slice) -> F64:
        return d2[span] * shard.weights[span] if len(shard.weights) else d2[span]

    return _locate_in_runs(masses, run_sums(shard), shares)


def locate_weight(shard: CpuShard, masses: F64) -> Index:
    """See `Shard.locate_weight`."""
    if not len(shard.weights):
        return np.clip(masses, 0, shard.n_rows - 1).astype(np.intp)
    if shard.weight_runs is None:
        shard.weight_runs = np.add.reduceat(shard.weights, np.arange(0, shard.n_rows, RUN))
    return _locate_in_runs(masses, shard.weight_runs, lambda span: shard.weights[span])


def _locate_in_runs(masses: F64, sums: F64, shares: Callable[[slice], F64]) -> Index:
    """Find the run of each mass from the runs' sums, then the row inside it. O(runs touched · RUN + m log m)."""
    ends = np.cumsum(sums)
    positive = np.flatnonzero(sums > 0)
    found = np.zeros(len(masses), dtype=np.intp)
    if not len(positive) or not len(masses):
        return found
    # a mass that rounding has pushed past the total belongs to the last row that can be drawn at all
    runs = np.minimum(np.searchsorted(ends, masses, side="right"), positive[-1])
    order = np.argsort(runs, kind="stable")
    for run, members in zip(*_groups(runs, order), strict=True):
        inside = np.cumsum(shares(slice(run * RUN, (run + 1) * RUN)))
        last = np.searchsorted(inside, inside[-1])  # the row at which the sum reaches its final value
        at = np.searchsorted(inside, masses[members] - (ends[run] - sums[run]), side="right")
        found[members] = run * RUN + np.minimum(at, last)
    return found


def _groups(runs: Index, order: Index) -> tuple[list[int], list[Index]]:
    """The distinct runs, and which masses fall into each."""
    sorted_runs = runs[order]
    firsts = np.flatnonzero(np.diff(sorted_runs, prepend=-1))
    return sorted_runs[firsts].tolist(), np.split(order, firsts[1:])


def seed_weights(shard: CpuShard, n_seeds: int) -> F64:
    """See `Shard.seed_weights`."""
    weights = shard.weights if len(shard.weights) else None
    return np.bincount(closest_seeds(shard), weights, minlength=n_seeds).astype(np.float64)


def label_errors(shard: CpuShard, n_clusters: int) -> F64:
    """See `Shard.label_errors`."""
    d2 = squared_distances(shard)
    potential = d2 * shard.weights if len(shard.weights) else d2
    return np.bincount(shard.labels, potential, minlength=n_clusters).astype(np.float64)


def take_potential(shard: CpuShard, indices: Index) -> F64:
    """See `Shard.take_potential`."""
    return squared_distances(shard)[indices] * shard.take_weights(indices)


def cell_seeds(shard: CpuShard, starts: Index, quotas: Index, uniforms: F64) -> Index:
    """See `LocalShard.cell_seeds`: the cells side by side on our threads."""
    if not isinstance(shard.rows, DenseRows):
        raise TypeError("cell_seeds works on local shards, whose rows are dense")
    ends = np.concatenate([[0], np.cumsum(quotas)])
    chosen = np.empty(ends[-1], dtype=np.int64)
    rows = shard.rows

    def seed(cell: int) -> None:
        begin, end = int(starts[cell]), int(starts[cell + 1])
        out = chosen[ends[cell] : ends[cell + 1]]
        x = rows.block(begin, end)
        scratch = np.empty(end - begin, dtype=x.dtype)
        kernels.seed_cell(x, shard.weights[begin:end], uniforms[ends[cell] : ends[cell + 1]], scratch, out)
        out[out >= 0] += begin

    run_all(seed, range(len(quotas)), shard.n_threads)
    return chosen.astype(np.intp)
