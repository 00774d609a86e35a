"""The d² pass: how far every row is from its closest seed, and drawing rows in proportion to it.

Per-point state: `d2`, the squared distance to the closest seed since the restart, and `seeds`, that seed's number. One
new seed costs one read of the rows at memory speed; many go through the same nominating product as the hard pass, the
winner's distance being taken exactly. Sums over fixed runs of rows are kept, so that drawing a row reads one run only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.model.statistics import F64, PotentialStatistics
from globular.passes.cpu.cells import CellProduct
from globular.passes.cpu.engine.rows import squared_distance
from globular.passes.cpu.rows import KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN, HostShard, error_runs, runs_of, threads_for_runs, weighted_sum
from globular.seam.center_passes import AcceptSeeds, CellSeeds, RunChains
from globular.seam.passes import AddSeeds, Index, TrySeeds


@kernel
def lower_by_one(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (1, D) the new seed, float64
    norms: Any,  # IN  (1,) ‖m‖²
    number: int,  # IN  its number since the restart
    zero: float,  # IN  squared distances up to this count as zero
    d2: Any,  # IN/OUT (N,) squared distance to the closest seed
    seeds: Any,  # IN/OUT (N,) its number
    sums: Any,  # OUT (runs,) Σ w d²
) -> None:
    """Lower all rows by one seed. O(N · D), one read of the rows."""
    r = take_number(queue)
    while r < sums.shape[0]:
        potential = 0.0
        for i in range(r * length, min((r + 1) * length, d2.shape[0])):
            scale = scales[i] if scales.shape[0] else 1.0
            distance = squared_distance(rows, i, scale, centers, 0, norms)
            if distance <= zero:
                distance = 0.0
            if distance < d2[i]:
                d2[i] = distance
                seeds[i] = number
            potential += d2[i] * (weights[i] if weights.shape[0] else 1.0)
        sums[r] = potential
        r = take_number(queue)


@kernel
def trial_potentials(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) row scales or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (T, D) float64
    norms: Any,  # IN  (T,) ‖m‖²
    d2: Any,  # IN  (N,)
    out: Any,  # OUT (runs, T) Σ w min(d², ‖x − m_t‖²)
) -> None:
    """What the potential of every run would be with each of the trial seeds alone. O(N · T · D)."""
    r = take_number(queue)
    while r < out.shape[0]:
        out[r] = 0.0
        for i in range(r * length, min((r + 1) * length, d2.shape[0])):
            weight = weights[i] if weights.shape[0] else 1.0
            if weight == 0.0 or d2[i] == 0.0:
                continue
            scale = scales[i] if scales.shape[0] else 1.0
            for t in range(centers.shape[0]):
                out[r, t] += weight * min(d2[i], squared_distance(rows, i, scale, centers, t, norms))
        r = take_number(queue)


@kernel
def draw_row(
    mass: float,  # IN  between 0 and Σ w d²
    d2: Any,  # IN  (n,)
    weights: Any,  # IN  (n,) or empty
) -> int:
    """First row at which the running sum of w d² exceeds the mass; −1 if all of them are zero. O(n)."""
    total, last = 0.0, -1
    for i in range(d2.shape[0]):
        share = d2[i] * (weights[i] if weights.shape[0] else 1.0)
        if share > 0.0:
            total += share
            last = i
            if total > mass:
                break
    return last


@kernel
def lower_cell(
    x: Any,  # IN  (n, D) rows of one cell
    weights: Any,  # IN  (n,) or empty
    chosen: int,  # IN  the row that became a seed
    d2: Any,  # IN/OUT (n,) in the rows' dtype
) -> float:
    """Lower a cell's distances by one of its own rows; return Σ w d². O(n · D) in the rows' precision."""
    potential = 0.0
    for i in range(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            difference = x[i, j] - x[chosen, j]
            total += difference * difference
        d2[i] = min(d2[i], total)
        potential += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return potential


@kernel
def seed_cell(
    x: Any,  # IN  (n, D) rows of one cell
    weights: Any,  # IN  (n,) or empty
    uniforms: Any,  # IN  (quota,) numbers in [0, 1), one for each seed
    d2: Any,  # scratch (n,) in the rows' dtype
    chosen: Any,  # OUT (quota,) rows that became seeds; −1 when no distinct row was left
) -> None:
    """k-means++ inside one cell: each seed drawn in proportion to w d². O(n · quota · D)."""
    chosen[:] = -1
    d2[:] = 1.0
    potential = weighted_sum(d2, weights)
    for s in range(chosen.shape[0]):
        row = draw_row(uniforms[s] * potential, d2, weights)
        if row < 0:
            return
        chosen[s] = row
        if s == 0:
            d2[:] = np.inf
        potential = lower_cell(x, weights, row, d2)


@kernel
def seed_cells(
    queue: Queue,  # IN/OUT cells
    x: Any,  # IN  (n, D) rows in the order of their cells
    weights: Any,  # IN  (n,) or empty
    starts: Any,  # IN  (cells + 1,)
    ends: Any,  # IN  (cells + 1,) where the seeds of each cell begin
    uniforms: Any,  # IN  (seeds,) numbers in [0, 1)
    d2: Scratch,  # scratch (largest cell,) in the rows' dtype
    chosen: Any,  # OUT (seeds,) rows that became seeds; −1 where no distinct row was left
) -> None:
    """`seed_cell` for all cells. O(n · quota · D)."""
    g = take_number(queue)
    while g < starts.shape[0] - 1:
        begin, end = starts[g], starts[g + 1]
        out = chosen[ends[g] : ends[g + 1]]
        seed_cell(x[begin:end], weights[begin:end], uniforms[ends[g] : ends[g + 1]], d2[: end - begin], out)
        for k in range(out.shape[0]):
            if out[k] >= 0:
                out[k] += begin
        g = take_number(queue)


FEW = 3
"""New seeds up to which each goes by itself: reading the rows again is cheaper than a thin matrix product."""


def zero_level(shard: CpuShard) -> float:
    """Squared distance to a new seed up to which a row counts as equal to it.

    The difference form is exact: 0. Unit rows of the same direction differ by the rounding of their own dtype.
    """
    return (4 * float(np.finfo(shard.rows.dtype).eps)) ** 2 if len(shard.scales) else 0.0


@inline
def lower_between(x: Any, first: int, stop: int, seed: int, d2: Any) -> None:
    """Lower the squared distances of rows first … stop − 1 by one of the rows. O(n · D)."""
    for i in range(first, stop):
        total = 0.0
        for j in range(x.shape[1]):
            difference = x[i, j] - x[seed, j]
            total += difference * difference
        d2[i] = min(d2[i], total)


@kernel
def accept_proposals(
    x: Any,  # IN  (n, D) float64
    tests: Any,  # IN  (n,) numbers in [0, 1)
    before: Any,  # IN  (n,) squared distances to the seeds before the first proposal
    d2: Any,  # IN/OUT (n,) the same; lowered by those that are accepted
    accepted: Any,  # OUT (n,) bool
) -> None:
    """Rejection: a proposal stays with the chance d² / d² before, given those accepted so far. O(n² · D)."""
    for i in range(x.shape[0]):
        accepted[i] = i == 0 or tests[i] * before[i] < d2[i]
        if accepted[i]:
            lower_between(x, i + 1, x.shape[0], i, d2)


@kernel
def run_chains(
    x: Any,  # IN  (n · m, D) float64, the proposals of n chains
    q: Any,  # IN  (n · m,) their chance of being proposed, by weight
    tests: Any,  # IN  (n, m) numbers in [0, 1)
    d2: Any,  # IN/OUT (n · m,) squared distances to the seeds so far; lowered by what the chains end at
    last: Any,  # OUT (n,) where each chain ends
) -> int:
    """Metropolis chains for d² / q, each given the ends of those before; how many until one ends on a seed.

    O(n² · m · D)
    """
    n, m = tests.shape
    for chain in range(n):
        state = chain * m
        for end in last[:chain]:  # when their turn comes: the proposals of one chain stay in the cache
            lower_between(x, state, state + m, end, d2)
        for t in range(1, m):
            here = chain * m + t
            if tests[chain, t] * (d2[state] / q[state]) < d2[here] / q[here]:
                state = here
        if d2[state] == 0.0:
            return chain
        last[chain] = state
    return n


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
        lower_by_one(
            queue, RUN, rows, shard.scales[part], shard.weights[part], center, norms, number, zero, d2[part],
            seeds[part], sums[runs_of(part)],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), lower, calls_blas=False)
    shard.error_runs = sums


def _lower_by_many(shard: CpuShard, centers: F64, base: int) -> None:
    d2, zero = shard.squared_distances, zero_level(shard)
    product = CellProduct(shard, centers, base=base)
    product.search_all(d2, shard.closest_seeds)
    if zero:
        d2[d2 <= zero] = 0.0
    shard.error_runs = None


@CpuShard.implements(TrySeeds)
def try_seeds(shard: CpuShard, work: TrySeeds) -> F64:
    centers = np.ascontiguousarray(work.seeds, dtype=np.float64)
    norms: F64 = np.einsum("ij,ij->i", centers, centers)
    d2, out = shard.squared_distances, np.empty((-(-shard.n_rows // RUN), len(centers)))

    def trial(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        trial_potentials(
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
        seed_cells(queue, x, shard.weights, work.starts, ends, work.uniforms, scratch, chosen)

    share_kernel(seed, queue, shard.n_threads)
    return chosen.astype(np.intp)


@HostShard.implements(AcceptSeeds)
def accept_seeds(shard: HostShard, work: AcceptSeeds) -> NDArray[np.bool_]:
    proposals, before = (np.asarray(each) for each in (shard.take(np.arange(shard.n_rows)), work.before))
    accepted = np.empty(len(proposals), dtype=np.bool_)
    accept_proposals(proposals, work.tests, before, before.copy(), accepted)
    return accepted


@HostShard.implements(RunChains)
def run_chains_of(shard: HostShard, work: RunChains) -> Index:
    everyone, last = np.arange(shard.n_rows), np.empty(len(work.tests), dtype=np.intp)
    proposals, squared = (np.asarray(shard.take(everyone, what)) for what in ("rows", "errors"))
    return last[: run_chains(proposals, np.asarray(work.q), work.tests, squared.copy(), last)]
