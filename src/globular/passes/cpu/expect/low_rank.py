"""Passes of mixtures of factor analysers on rows in memory: pairs (row, component) sorted by component.

Densities first, in blocks that share the parameters of a component; then the responsibilities of every row; then the
statistics, by component again. Among all components rows come in blocks of bounded size. Where a mixture has
coordinates of its own, a copy of the rows in these is kept for the passes to come.

All rows that look at a component are its *pairs*, one after the other in `order`: they share its parameters, and their
products with its directions are products of matrices. A pair is a number n · width + a, the a-th component that row n
looks at; results go where the pair says, and sums are those of a component, which one thread takes from its first row
to its last: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.blas import add_product, multiply_rows
from globular.model.coordinates import Coordinates
from globular.model.low_rank import LowRankParameters, LowRankStatistics
from globular.model.statistics import F64, TruncatedPosterior
from globular.passes.cpu.expect.all import weighted_total
from globular.passes.cpu.expect.neighbors import Members, by_component, on_components, share_out
from globular.passes.cpu.expect.probe import noticeable, truncated_step
from globular.passes.cpu.project import project_as
from globular.passes.cpu.rows import DenseRows, KernelRows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import COSTS_AT_ONCE, GATHERED_AT_ONCE, NO_TABLE, NONE, RUN, SEARCHED_AT_ONCE, SPANS_AT_ONCE
from globular.seam.among import All, Probe, Within
from globular.seam.answers import Answer, LowRank
from globular.seam.mixture_passes import ExpectLowRank, ScatterWithin
from globular.seam.passes import Extremes
from globular.threads import even_ranges, map_all, run_all

FACTOR_TILE = 32  # rows that are brought together: with 784 columns a fifth of a megabyte
CANCELLED_QUADRATIC = 1e-5  # squared distances below this share of the squares that they come from are computed again


class FactorShape(NamedTuple):
    """A mixture as kernels take it."""

    means: Any  # (C, D)
    precisions: Any  # (C, D) of the noise
    directions: Any  # (C·q, D)
    biases: Any  # (C,)
    loadings: Any  # (C·q, D)
    triangles: Any  # (C·q, q)


class FactorWork(NamedTuple):
    """What the threads of a pass share."""

    tasks: Any  # (T + 1,) task t has the components tasks[t] … tasks[t + 1] − 1
    x: Any  # (N, D) all rows, or (gathered) those of the pairs of the only task
    gathered: bool
    pairs: Any  # `Grouped`
    shape: Any  # `FactorShape`


class FactorBlock(NamedTuple):
    """Some pairs of a component: scratch of a thread."""

    away: Any  # (FACTOR_TILE, D) x − μ
    inner: Any  # (FACTOR_TILE, q) u = V (x − μ)
    turned: Any  # (q, FACTOR_TILE) the same, weighted
    squares: Any  # (FACTOR_TILE,) Σ (x − μ)² / ψ
    factors: Any  # (q,)


@inline
def bring_together(work: Any, tile: Any, task: int, c: int, begin: int) -> int:
    """Differences from the mean and products with the directions of the next pairs; their number, m. O(m·D·q)."""
    x, pairs, shape, q = work.x, work.pairs, work.shape, tile.inner.shape[1]
    m, base = min(FACTOR_TILE, pairs.starts[c + 1] - begin), pairs.starts[work.tasks[task]]
    for k in range(m):
        r = begin + k - base if work.gathered else pairs.order[begin + k] // pairs.width
        total = 0.0
        for d in range(x.shape[1]):
            y = x[r, d] - shape.means[c, d]
            tile.away[k, d] = y
            total += y * y * shape.precisions[c, d]
        tile.squares[k] = total
    multiply_rows(tile.away, 0, m, shape.directions, c * q, q, tile.inner)
    return m


@inline
def squared_length(k: int, c: int, shape: Any, tile: Any) -> float:
    """(x − μ)ᵀ Σ⁻¹ (x − μ) = y·(y/ψ) − u·u of a pair; where that cancels, ‖z‖² + r·(r/ψ) with r = y − Λᵀ z. O(q)."""
    q, total = tile.inner.shape[1], tile.squares[k]
    for j in range(q):
        total -= tile.inner[k, j] * tile.inner[k, j]
    if total >= CANCELLED_QUADRATIC * tile.squares[k]:
        return total
    total = 0.0
    for j in range(q - 1, -1, -1):  # z = L⁻ᵀ u
        value = tile.inner[k, j]
        for i in range(j + 1, q):
            value -= shape.triangles[c * q + i, j] * tile.factors[i]
        tile.factors[j] = value / shape.triangles[c * q + j, j]
        total += tile.factors[j] * tile.factors[j]
    for d in range(tile.away.shape[1]):
        rest = tile.away[k, d]
        for j in range(q):
            rest -= shape.loadings[c * q + j, d] * tile.factors[j]
        total += rest * rest * shape.precisions[c, d]
    return total


@kernel
def pair_costs(
    queue: Queue,  # IN/OUT tasks
    work: Any,  # IN  `FactorWork`
    tile: Scratch,  # scratch `FactorBlock`
    costs: Any,  # OUT (N·width,) −2 log p(c, x)
    inner: Any,  # OUT (N·width, q) u, or (0, q)
) -> None:
    """Densities of the pairs. O(P · D · q)."""
    starts, task = work.pairs.starts, take_number(queue)
    while task < work.tasks.shape[0] - 1:
        for c in range(work.tasks[task], work.tasks[task + 1]):
            for begin in range(starts[c], starts[c + 1], FACTOR_TILE):
                for k in range(bring_together(work, tile, task, c, begin)):
                    pair = work.pairs.order[begin + k]
                    costs[pair] = work.shape.biases[c] + squared_length(k, c, work.shape, tile)
                    if inner.shape[0]:
                        for j in range(tile.inner.shape[1]):
                            inner[pair, j] = tile.inner[k, j]
        task = take_number(queue)


@kernel
def pair_sums(
    queue: Queue,  # IN/OUT tasks
    work: Any,  # IN  `FactorWork`
    tile: Scratch,  # scratch `FactorBlock`
    shares: Any,  # IN  (N·width,) w q(c)
    counts: Any,  # IN/OUT (C,) += Σ w q
    sums: Any,  # IN/OUT (C, D) += Σ w q (x − μ)
    squares: Any,  # IN/OUT (C, D) += Σ w q (x − μ)²
    cross: Any,  # IN/OUT (C, q, D) += Σ w q u (x − μ)ᵀ
) -> None:
    """Statistics of the M-step, about the old means. O(P · D · q)."""
    starts, task = work.pairs.starts, take_number(queue)
    while task < work.tasks.shape[0] - 1:
        for c in range(work.tasks[task], work.tasks[task + 1]):
            for begin in range(starts[c], starts[c + 1], FACTOR_TILE):
                m = bring_together(work, tile, task, c, begin)
                for k in range(m):
                    share = shares[work.pairs.order[begin + k]]
                    counts[c] += share
                    for j in range(tile.inner.shape[1]):
                        tile.turned[j, k] = share * tile.inner[k, j]
                    for d in range(sums.shape[1]):
                        y = tile.away[k, d]
                        sums[c, d] += share * y
                        squares[c, d] += share * y * y
                add_product(tile.turned, tile.away, 0, m, cross[c])
        task = take_number(queue)


@kernel
def pair_reconstructions(
    queue: Queue,  # IN/OUT tasks, for one thread
    work: Any,  # IN  `FactorWork`
    tile: Scratch,  # scratch `FactorBlock`
    shares: Any,  # IN  (N·width,) q(c)
    noise: Any,  # IN  (C, D) what of the variances is noise
    out: Any,  # IN/OUT (N, D) += q(c) (x − noise Σ⁻¹ (x − μ))
) -> None:
    """Expected rows without noise. O(P · D · q)."""
    x, pairs, shape, q = work.x, work.pairs, work.shape, tile.inner.shape[1]
    task = take_number(queue)
    while task < work.tasks.shape[0] - 1:
        for c in range(work.tasks[task], work.tasks[task + 1]):
            for begin in range(pairs.starts[c], pairs.starts[c + 1], FACTOR_TILE):
                for k in range(bring_together(work, tile, task, c, begin)):
                    r, share = pairs.order[begin + k] // pairs.width, shares[pairs.order[begin + k]]
                    for d in range(x.shape[1]):
                        tile.away[k, d] *= shape.precisions[c, d]
                    for j in range(q):
                        for d in range(x.shape[1]):
                            tile.away[k, d] -= tile.inner[k, j] * shape.directions[c * q + j, d]
                    for d in range(x.shape[1]):
                        out[r, d] += share * (x[r, d] - noise[c, d] * tile.away[k, d])
        task = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


MOST_ROUNDING = 1e-4
"""Largest rounding of a copy of the rows in other coordinates, as a share of the typical noise."""


@dataclass(frozen=True, slots=True)
class RowsIn:
    """Rows in other coordinates, with the state of those that they come from."""

    coordinates: Coordinates
    shard: CpuShard


def in_coordinates(shard: CpuShard, mixture: LowRankParameters) -> CpuShard:
    """The rows as the mixture sees them. N·D² the first time."""
    if mixture.coordinates is None:
        return shard
    kept = shard.recall(RowsIn)
    if kept is None or not kept.coordinates.is_same(mixture.coordinates):
        shard.forget(RowsIn)
        dtype = _precise_enough(shard, mixture.coordinates)
        kept = RowsIn(mixture.coordinates, project_as(dtype, shard, mixture.coordinates.subspace))
        shard.keep(kept)
    return kept.shard


def _precise_enough(shard: CpuShard, coordinates: Coordinates) -> np.dtype[Any]:
    """The dtype of the rows, unless one of them may be so far from the origin that the others lose their digits.

    A unit of the coordinates is the typical noise of their column.
    """
    farthest = np.abs(shard.run(Extremes()) - coordinates.origin).max(axis=0) @ np.abs(coordinates.forward)
    rounding = float(np.finfo(shard.dtype).eps) * float(farthest.max())
    return shard.dtype if rounding <= MOST_ROUNDING else np.dtype(np.float64)


class Sorted:
    """A mixture, and rows with the components that they look at, sorted by these."""

    def __init__(self, mixture: LowRankParameters, rows: DenseRows, candidates: Members, n_threads: int) -> None:
        self.mixture, self._rows, self._n_threads, self._size = mixture, rows, n_threads, candidates.shape
        C, q, D = mixture.loadings.shape
        self._pairs = by_component(candidates, C, n_threads)
        self._shape = FactorShape(
            np.ascontiguousarray(mixture.means), np.ascontiguousarray(mixture.precisions),
            mixture.directions.reshape(C * q, D), mixture.biases, mixture.loadings.reshape(C * q, D),
            mixture.triangles.reshape(C * q, q),
        )  # fmt: skip

    def _call(self, kernel: Callable[..., None], *outputs: Any) -> None:
        _, q, D = self.mixture.loadings.shape

        def work(queue: NDArray[np.int64], tasks: NDArray[np.int64], rows: KernelRows, gathered: bool) -> None:
            tile = FactorBlock(*map(np.empty, ((FACTOR_TILE, D), (FACTOR_TILE, q), (q, FACTOR_TILE), FACTOR_TILE, q)))
            kernel(queue, FactorWork(tasks, rows[0], gathered, self._pairs, self._shape), tile, *outputs)

        on_components(self._rows, self._pairs, SEARCHED_AT_ONCE, self._n_threads, work)

    def costs(self, inner: F64 = NO_TABLE) -> F64:
        """−2 log p(c, x) of all pairs, (N, W), inf where there is none; `inner` becomes their u, (N·W, q)."""
        found = np.full(self._size, np.inf)
        self._call(pair_costs, found.ravel(), inner)
        return found

    def add(self, shares: F64, total: LowRankStatistics) -> None:
        """Sums of all pairs, weighted by their shares, (N, W)."""
        self._call(pair_sums, shares.ravel(), total.counts, total.sums, total.scatter, total.cross)

    def reconstruct(self, shares: F64, noise: F64, out: F64) -> None:
        """Add the rows without noise, by one thread; rows are direct."""
        noise = np.ascontiguousarray(np.broadcast_to(noise, self.mixture.means.shape))
        self._call(pair_reconstructions, shares.ravel(), noise, out)


def _nothing(mixture: LowRankParameters, total_weight: float) -> LowRankStatistics:
    """Sums over no rows."""
    C, D = mixture.means.shape
    cross = np.zeros(mixture.loadings.shape)
    return LowRankStatistics(np.zeros(C), np.zeros((C, D)), np.zeros((C, D)), 0.0, total_weight, 0, cross=cross)


def _all_components(n_rows: int, C: int) -> Members:
    return np.broadcast_to(np.arange(C, dtype=np.int32), (n_rows, C)).copy()


def _blocks(shard: CpuShard, width: int) -> list[tuple[int, int]]:
    return even_ranges(shard.n_rows, max(1, min(RUN, COSTS_AT_ONCE // width)))


@CpuShard.implements(ExpectLowRank, All)
def expect_all(shard: CpuShard, work: ExpectLowRank) -> LowRankStatistics:
    """Exact E-step. N·C densities; memory: those of a block."""
    mixture, C = work.mixture, work.mixture.n_components
    shard = in_coordinates(shard, mixture)
    total = _nothing(mixture, shard.total_weight)
    total.n_distances = shard.n_rows * C
    for begin, end in _blocks(shard, C):
        rows = DenseRows(shard.dense_rows.block(begin, end))
        everyone = _all_components(end - begin, C)
        shares = Sorted(mixture, rows, everyone, shard.n_threads).costs()
        shard.labels[begin:end] = shares.argmin(axis=1)
        total.log_likelihood += share_out(shares, shard.weights[begin:end], shard.n_threads)[1]
        Sorted(mixture, rows, noticeable(everyone, shares), shard.n_threads).add(shares, total)
    return total


@CpuShard.implements(ExpectLowRank, Probe)
def expect_probe(shard: CpuShard, work: ExpectLowRank) -> LowRankStatistics:
    """Truncated E-step: K(n) becomes the best of K(n) and of what the closest cells nominate. O(N · (C′ + G) · D q)."""
    assert isinstance(work.among, Probe)
    mixture = work.mixture
    shard = in_coordinates(shard, mixture)

    def pairs_of(members: Members) -> Sorted:
        return Sorted(mixture, shard.dense_rows, members, shard.n_threads)

    return truncated_step(shard, mixture.columns, work.among, pairs_of, _nothing(mixture, shard.total_weight))


@CpuShard.implements(ExpectLowRank, Within)
def expect_within(shard: CpuShard, work: ExpectLowRank) -> LowRankStatistics:
    """E-step of every row among the parts of its label. O(N · parts · D q)."""
    assert isinstance(work.among, Within)
    shard, n = in_coordinates(shard, work.mixture), work.among.n_parts
    members = (shard.labels[:, None] * n + np.arange(n)).astype(np.int32)
    pairs, total = (
        Sorted(work.mixture, shard.dense_rows, members, shard.n_threads),
        _nothing(work.mixture, shard.total_weight),
    )
    shares = pairs.costs()
    total.n_distances, total.log_likelihood = members.size, share_out(shares, shard.weights, shard.n_threads)[1]
    pairs.add(shares, total)
    return total


@CpuShard.implements(ScatterWithin)
def scatter_within(shard: CpuShard, work: ScatterWithin) -> F64:
    """Products of blocks of rows, added in order. O(N · D²)."""

    def scatter(span: tuple[int, int]) -> F64:
        total = np.zeros((shard.n_columns, shard.n_columns))
        for begin in range(span[0], span[1], GATHERED_AT_ONCE):
            part = slice(begin, min(begin + GATHERED_AT_ONCE, span[1]))
            labels = shard.labels[part]
            roots = np.sqrt(work.scales[labels] * (shard.weights[part] if len(shard.weights) else 1.0))
            away = (shard.dense_rows.block(part.start, part.stop) - work.centers[labels]) * roots[:, None]
            total += away.T @ away
        return total

    spans = even_ranges(shard.n_rows, max(GATHERED_AT_ONCE, -(-shard.n_rows // SPANS_AT_ONCE)))
    return np.sum(map_all(scatter, spans, shard.n_threads), axis=0)


@CpuShard.implements(Answer, LowRankParameters)
@CpuShard.implements(Answer, LowRank)
def answer(shard: CpuShard, work: Answer) -> list[Any]:
    """What factor analysers say of every row.

    "log_densities": log p(x), (N,); "total": their weighted sum; "probabilities": p(c | x), (N, W); "components": the
    one of largest p(c | x), (N,); "posterior": a `TruncatedPosterior`; "factors": E[z | x] of that component, (N, q);
    "reconstruction": the row without `noise`, (N, D). W is the number of components looked at.
    """
    asked: LowRank = work.model if isinstance(work.model, LowRank) else LowRank(work.model)
    shard, coordinates = in_coordinates(shard, asked.mixture), asked.mixture.coordinates
    C, q, D = asked.mixture.loadings.shape
    width, want = asked.n_candidates or C, work.want
    members: Members | None = None
    if asked.n_candidates:
        members = cast(Members, shard.state.get("members", np.int32, -1, width=width))
    shapes = {"components": (), "factors": (q,), "reconstruction": (D,), "probabilities": (width,)}
    if want == "posterior":
        shapes["posterior"] = (width,)
    found = np.zeros((shard.n_rows, *shapes.get(want, ())), dtype=np.int64 if want == "components" else np.float64)
    densities = np.empty(shard.n_rows)

    def write(span: tuple[int, int]) -> None:
        part, rows, n = slice(*span), DenseRows(shard.dense_rows.block(*span)), span[1] - span[0]
        known = _all_components(n, C) if members is None else np.ascontiguousarray(members[part])
        inner = np.empty((n * width if want == "factors" else 0, q))
        costs = Sorted(asked.mixture, rows, known, 1).costs(inner)
        best = costs.argmin(axis=1)
        densities[part] = share_out(costs, NONE, 1)[0]
        components = known[np.arange(n), best].astype(np.int64)
        if want == "components":
            found[part] = components
        elif want == "factors":
            found[part] = asked.mixture.factors(inner.reshape(n, width, -1)[np.arange(n), best], components)
        elif want == "reconstruction":
            assert asked.noise is not None
            Sorted(asked.mixture, rows, noticeable(known, costs), 1).reconstruct(costs, asked.noise, found[part])
            if coordinates is not None:
                found[part] = coordinates.back(found[part])
        elif want in ("probabilities", "posterior"):
            found[part] = costs

    run_all(write, _blocks(shard, width), shard.n_threads)
    if want == "total":
        return [weighted_total(shard, densities)]
    if want == "posterior" and members is not None:
        return [TruncatedPosterior(members, found, densities)]
    return [densities if want == "log_densities" else found]
