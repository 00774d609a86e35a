"""The nested pass: label the rows of a batch, and say how their votes have changed.

Three ways to the label, all decided by exact distances in float64: matrix products with all centres (`_by_products`);
the same behind bounds that most rows pass without being read (`_by_bounds`); and, for very many centres, the closest of
the centres in a few cells (`_by_cells`), the only one that is not exact. Per-point state: the label; with bounds one
float32 and one more per group of centres, touched only for rows that have been in a batch.

Only rows that changed their cluster are summed, in cluster order: first the rows that join, then those that leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import CSRRows, DenseRows, Floats, KernelRows, Rows, load_rows, read_only
from globular.backends.protocol import Index, Labels
from globular.kernels import hard as hard_kernels
from globular.kernels import nested as kernels
from globular.model.groups import group_by
from globular.model.nested import Batch, Bounds, Candidates, NestedSearch, NestedStatistics
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, ordered_map, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

ROWS_PER_BLOCK = 1024
SCORES_PER_BLOCK = 2**20
COLUMNS_PER_TASK = 4096
VECTOR = 16
"""Scores of sparse rows are computed in whole vectors of so many."""
ROWS_PER_SUM = 1024
DIRECT_SHARE = {"dense": 1 / 4, "sparse": 1 / 64}
"""Rows with at most this share of the centres as candidates compute those distances alone; others multiply by all.
A sparse row finds the entries of one centre all over the memory, those of all centres side by side."""


class _Found(NamedTuple):
    labels: Labels
    """New labels of the batch's rows."""
    n_distances: int


def nested_pass(shard: CpuShard, centers: F64, origin: F64, batch: Batch, search: NestedSearch) -> NestedStatistics:
    """See `Shard.nested_pass`."""
    labels = shard.labels
    if search.restart:
        labels[:] = -1
    if shard.batch_rows is None or shard.batch_rows[0] != batch:
        shard.batch_rows = batch, batch.rows(shard.n_rows)
    rows = shard.batch_rows[1]
    former = labels[rows]
    if search.candidates is not None:
        found = _by_cells(shard, centers, rows, former, search.candidates)
    elif search.bounds is not None:
        found = _by_bounds(shard, centers, rows, former, search.bounds)
    else:
        found = _by_products(shard, centers, rows)
    labels[rows] = found.labels
    moved = np.flatnonzero(found.labels != former)
    statistics = NestedStatistics.none(*centers.shape)
    statistics.n_rows, statistics.n_changed, statistics.n_distances = len(rows), len(moved), found.n_distances
    joining = moved if search.remove_old else np.arange(len(rows))
    _add_votes(shard, rows[joining], found.labels[joining], 1.0, origin, statistics)
    if search.remove_old:
        leaving = moved[former[moved] >= 0]
        _add_votes(shard, rows[leaving], former[leaving], -1.0, origin, statistics)
    return statistics


# ------------------------------------------------------------------------------------------------- labels


class CenterScores:
    """Centres prepared for products with blocks of rows.

    All of them at once, in blocks of rows that suit the cache, where `hard.CenterProduct` has chunks of centres; and
    made for few rows at a time: where rows are sparse and columns many, preparing the centres is most of the work.
    """

    def __init__(self, shard: CpuShard, centers: F64) -> None:
        self.rows, self.scales, self.offset = shard.rows, shard.scales, shard.offset
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        C, D = self.centers.shape
        dtype = self.rows.dtype
        self.unit, self.tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
        with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
            if isinstance(self.rows, CSRRows):
                # kept from pass to pass: making so much memory anew would cost more than filling it
                width = -(-C // VECTOR) * VECTOR
                if shard.factors is None or shard.factors.shape != (D, width):
                    shard.factors = np.zeros((D, width), dtype=dtype)
                self.factors: Floats = shard.factors
                norms = self._transpose(shard.n_threads)
                self.norms: F64 = norms
            else:
                self.norms = np.einsum("ij,ij->i", self.centers, self.centers)
                shifted = self.centers if self.offset is None else self.centers - self.offset
                self.factors = (-2.0 * shifted).astype(dtype).T
                norms = self.norms if self.offset is None else np.einsum("ij,ij->i", shifted, shifted)
            self.score_norms: Floats = norms.astype(dtype)
        self.longest = float(np.sqrt(norms.max()))

    def _transpose(self, n_threads: int) -> F64:
        """Fill in the factors of sparse rows; returns ‖m‖²."""

        def some(span: tuple[int, int]) -> F64:
            norms = np.empty(len(self.centers))
            kernels.transposed_factors(self.centers, *span, self.factors, norms)
            return norms

        spans = even_ranges(len(self.factors), COLUMNS_PER_TASK)
        return sum(ordered_map(some, spans, n_threads), np.zeros(len(self.centers)))

    @property
    def rows_per_block(self) -> int:
        """From the number of centres alone: blocks never depend on threads."""
        return min(ROWS_PER_BLOCK, max(64, SCORES_PER_BLOCK // len(self.centers)))

    def label(self, chosen: I64, labels: Labels) -> _Scored:
        """Write the closest centre of these rows to `labels`; returns what bounds can be made from."""
        scales = _of(self.scales, chosen)
        lengths, best = np.empty(len(chosen)), np.empty(len(chosen))
        scores = np.empty((len(chosen), self.factors.shape[1]), dtype=self.rows.dtype)
        if isinstance(self.rows, CSRRows):
            block, at = _in_place(self.rows, chosen)
            kernels.csr_products(block, at, self.factors, scores, lengths)
        else:
            block, at = _gather(self.rows, chosen), np.arange(len(chosen))
            seen = block
            if self.offset is not None:
                seen = (read_only((block[0] - self.offset).astype(block[0].dtype, copy=False)),)
            hard_kernels.row_lengths(seen, lengths)
            with np.errstate(over="ignore", invalid="ignore"):
                np.matmul(seen[0], self.factors, out=scores)
        kernels.decide(
            block, at, lengths, scales, scores, self.score_norms, self.centers, self.norms, self.unit, self.tiny,
            best, labels,
        )  # fmt: skip
        return _Scored(block, at, lengths, scales, scores, best)


class _Scored(NamedTuple):
    block: KernelRows
    at: I64
    lengths: F64
    scales: F64
    scores: Floats
    best: F64


def _by_products(shard: CpuShard, centers: F64, rows: I64) -> _Found:
    product = CenterScores(shard, centers)
    labels = np.empty(len(rows), dtype=np.int32)

    def assign(span: tuple[int, int]) -> None:
        product.label(rows[slice(*span)], labels[slice(*span)])

    run_all(assign, even_ranges(len(rows), product.rows_per_block), shard.n_threads)
    return _Found(labels, len(rows) * len(centers))


def _by_bounds(shard: CpuShard, centers: F64, rows: I64, former: Labels, bounds: Bounds) -> _Found:
    search = _BoundedSearch.of(shard, centers, bounds)
    labels = former.copy()

    def assign(span: tuple[int, int]) -> int:
        return search.block(rows[slice(*span)], labels[slice(*span)])

    spans = even_ranges(len(rows), search.product.rows_per_block)
    n_distances = sum(ordered_map(assign, spans, shard.n_threads))
    return _Found(labels, n_distances)


@dataclass(frozen=True, slots=True)
class _BoundedSearch:
    """Alg. 1 for blocks of rows."""

    shard: CpuShard
    product: CenterScores
    bounds: Bounds
    group_of: I64
    upper: NDArray[np.float32]
    lower: NDArray[np.float32]
    most: int
    """Candidates up to which a row is worth searching alone."""
    share: float
    """Rounding error of sparse distances; 0 for dense ones."""

    @classmethod
    def of(cls, shard: CpuShard, centers: F64, bounds: Bounds) -> _BoundedSearch:
        groups = bounds.groups
        group_of = np.empty(len(centers), dtype=np.int64)
        group_of[groups.order] = np.repeat(np.arange(groups.n_groups), np.diff(groups.starts))
        sparse = isinstance(shard.rows, CSRRows)
        return cls(
            shard, CenterScores(shard, centers), bounds, group_of,
            cast(NDArray[np.float32], shard.state.get("nested_upper", np.float32, 0.0)),
            cast(NDArray[np.float32], shard.state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)),
            int(DIRECT_SHARE["sparse" if sparse else "dense"] * len(centers)),
            (shard.n_columns + 8) * 2.0**-52 if sparse else 0.0,
        )  # fmt: skip

    def block(self, rows: I64, labels: Labels) -> int:
        """Label one block in place; returns the distances it took, those to a row's own centre once."""
        b = self.bounds
        active = np.empty(len(rows), dtype=np.int64)
        n_active = kernels.unsettled(rows, labels, self.upper, self.lower, b.drift, b.group_drift, active)
        if n_active == 0:
            return 0
        wide, n_distances = active[:n_active], 0
        if self.most > 0:
            wide, n_distances = self._search_few(rows, labels, wide)
        if len(wide):
            found = np.empty(len(wide), dtype=np.int32)
            self._make_bounds(rows[wide], found)
            labels[wide] = found
        return n_distances + len(wide) * len(self.product.centers)

    def _search_few(self, rows: I64, labels: Labels, active: I64) -> tuple[I64, int]:
        """Search the rows that have few candidates; returns the others, and the distances of those done."""
        b, product = self.bounds, self.product
        wide = np.empty(len(active), dtype=np.int64)
        block, at = _in_place(self.shard.rows, rows)
        n_wide, n_distances = kernels.search_few(
            block, at, self.shard.scales, rows, active, product.centers, product.norms, b.groups.order,
            b.groups.starts, self.group_of, b.drift, b.group_drift, self.most, self.share, self.upper, self.lower,
            np.empty(len(rows)), labels, wide,
        )  # fmt: skip
        wide = wide[:n_wide]
        return wide, n_distances - int(np.count_nonzero(labels[wide] >= 0))  # their own centre is multiplied again

    def _make_bounds(self, rows: I64, labels: Labels) -> None:
        """Compare these rows with all centres, and make all their bounds anew."""
        product, b = self.product, self.bounds
        scored = product.label(rows, labels)
        kernels.bound_by_scores(
            scored.block, scored.at, rows, scored.lengths, scored.scales, scored.scores, product.score_norms,
            product.longest, self.group_of, b.drift, b.group_drift, self.shard.n_columns, product.unit, product.tiny,
            scored.best, labels, self.upper, self.lower, np.empty(b.groups.n_groups),
        )  # fmt: skip


def _by_cells(shard: CpuShard, centers: F64, rows: I64, former: Labels, candidates: Candidates) -> _Found:
    cells = candidates.cells
    part = pick(shard, rows)
    part.labels[:] = former
    n_distances = 0
    fresh = np.flatnonzero(former < 0)
    if len(fresh):  # they have no cluster to compare with yet: down to the closest centre of their closest cell
        new = pick(shard, rows[fresh])
        n_distances += new.routed_pass(cells.tree(centers), accumulate=False).n_distances
        part.labels[fresh] = cells.order.astype(np.int32)[new.labels]
    n_distances += part.probing_pass(centers, cells, candidates.n_probes, accumulate=False).n_distances
    return _Found(part.labels, n_distances)


# -------------------------------------------------------------------------------------------------- votes


def _add_votes(
    shard: CpuShard, rows: I64, labels: Labels, sign: float, origin: F64, statistics: NestedStatistics
) -> None:
    """Let rows join (1) or leave (−1) their clusters. Whole clusters at a time, large ones in pieces added in order."""
    if len(rows) == 0:
        return
    D = shard.n_columns
    direct = not isinstance(shard.rows, CSRRows) and len(shard.scales) == 0
    shift = origin if direct else np.zeros(D)
    about, about_norm = origin[None, :].copy(), np.array([origin @ origin])
    starts, order = group_by(labels, len(statistics.counts))
    counts = np.zeros_like(statistics.counts)

    def add(begin: int, end: int, base: int, sums: F64, totals: F64, squares: F64, sizes: I64) -> None:
        positions = order[begin:end]
        chosen = rows[positions]
        block, at = _in_place(shard.rows, chosen)
        kernels.sum_votes(
            block, at, chosen, shard.weights, shard.scales, shift, about, about_norm, labels[positions],
            sign, base, sums, totals, squares, sizes,
        )  # fmt: skip

    def task(run: _Run) -> Callable[[], None]:
        if run.cluster < 0:
            add(run.begin, run.end, 0, statistics.sums, counts, statistics.squares, statistics.sizes)
            return lambda: None
        sums, totals, squares, sizes = np.zeros((1, D)), np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64)
        add(run.begin, run.end, run.cluster, sums, totals, squares, sizes)

        def join() -> None:
            statistics.sums[run.cluster] += sums[0]
            counts[run.cluster] += totals[0]
            statistics.squares[run.cluster] += squares[0]
            statistics.sizes[run.cluster] += sizes[0]

        return join

    for join in ordered_map(task, _runs(starts), shard.n_threads):
        join()
    statistics.counts += counts
    if not direct and origin.any():
        statistics.sums -= counts[:, None] * origin


class _Run(NamedTuple):
    begin: int
    end: int
    cluster: int
    """The cluster of which this is a piece; −1 for a run of whole clusters."""


def _runs(starts: I64) -> list[_Run]:
    """Cut rows grouped by cluster into runs of whole clusters and pieces of those too large for a run."""
    runs = []
    cluster, n_clusters = 0, len(starts) - 1
    while cluster < n_clusters:
        begin = int(starts[cluster])
        # the last cluster that still ends within the run
        last = int(np.searchsorted(starts, begin + ROWS_PER_SUM, side="right")) - 1
        if last > cluster:
            if starts[last] > begin:
                runs.append(_Run(begin, int(starts[last]), -1))
            cluster = last
        else:
            spans = even_ranges(int(starts[cluster + 1]) - begin, ROWS_PER_SUM)
            runs += [_Run(begin + a, begin + b, cluster) for a, b in spans]
            cluster += 1
    return runs


# --------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class PickedRows(DenseRows):
    """Some rows of an array, gathered block by block."""

    chosen: Index

    def block(self, start: int, stop: int) -> Floats:
        return DenseRows.gather(self, self.chosen[start:stop])

    def gather(self, indices: NDArray[np.integer]) -> Floats:
        return DenseRows.gather(self, self.chosen[indices])

    def is_direct(self) -> bool:
        return False


def pick(shard: CpuShard, indices: Index) -> CpuShard:
    """See `Shard.pick`; dense rows are not copied."""
    part = type(shard)(np.empty((len(indices), 0), dtype=np.float32), n_threads=shard.n_threads)
    if np.array_equal(indices, np.arange(shard.n_rows)):
        part.rows = shard.rows
    elif isinstance(shard.rows, CSRRows):
        part.rows = _picked_csr(shard.rows, indices)
    else:
        part.rows = PickedRows(shard.rows.array, indices)
    part.n_columns = shard.n_columns
    part.weights = _of(shard.weights, indices)
    part.scales = _of(shard.scales, indices)
    return part


def _of(values: F64, rows: NDArray[np.integer]) -> F64:
    """The entries of these rows, where there are any entries."""
    return values[rows] if len(values) else values


def _in_place(rows: Rows, chosen: I64) -> tuple[KernelRows, I64]:
    """Rows as kernels take them, copied only if they must be converted, and where the chosen ones lie in them."""
    loaded, gathered = load_rows(rows, chosen)
    return loaded, np.arange(len(chosen)) if gathered else chosen


def _gather(rows: DenseRows, chosen: I64) -> KernelRows:
    """Those rows one after the other; a view where they lie like that already."""
    if len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen):
        return rows.kernel_rows(int(chosen[0]), int(chosen[-1]) + 1)
    return (rows.gather(chosen),)


def _picked_csr(rows: CSRRows, chosen: I64) -> CSRRows:
    lengths = rows.indptr[chosen + 1] - rows.indptr[chosen]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data, indices = np.empty(indptr[-1], dtype=rows.dtype), np.empty(indptr[-1], dtype=np.int32)
    kernels.copy_csr((rows.data, rows.indices, rows.indptr), chosen, data, indices, indptr)
    picked = CSRRows.__new__(CSRRows)
    picked.shape = (len(chosen), rows.shape[1])
    picked.data, picked.indices, picked.indptr = read_only(data), read_only(indices), read_only(indptr)
    return picked
