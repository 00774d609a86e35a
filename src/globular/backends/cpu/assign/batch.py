"""The nested pass: label the rows of a batch, and say how their votes have changed.

Three ways to the label, all decided by exact distances in float64: matrix products with all centres (`_by_products`);
the same behind bounds that most rows pass without being read (`_by_bounds`); and, for very many centres, the closest of
the centres in a few cells (`_by_cells`), the only one that is not exact. Per-point state: the label; with bounds one
float32 and one more per group of centres, touched only for rows that have been in a batch.

Only rows that changed their cluster are summed, in cluster order; in each the rows that join before those that leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.assign.votes import Moves, add_votes, cast_ballots
from globular.backends.cpu.center_scores import (
    ColumnScores,
    DenseScores,
    RowProducts,
    Scored,
    center_scores,
    in_place,
    product_tasks,
    rows_at_once,
)
from globular.backends.cpu.shard import CpuShard
from globular.kernels import batch as kernels
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, Bounds, Candidates, NestedStatistics
from globular.model.statistics import F64, I64
from globular.seam.among import Down, Probe
from globular.seam.passes import Assign, AssignBatch, Labels
from globular.threads import even_ranges, map_all, run_all, single_threaded_blas

DIRECT_SHARE = 1 / 6
"""Dense rows with at most this share of the centres as candidates compute those distances alone, others all: a
product takes less time for each, and all make better bounds. Measured with 50 to 500 clusters of 2 to 784 columns.
A sparse row always does: it finds the entries of one centre all over the memory, those of all centres side by side, so
that four of fifty take as long as all, and all make better bounds."""

SEARCHES, SMALLEST_SEARCH, LARGEST_SEARCH = 4, 1024, 8192
"""Tasks that look at the bounds of a batch, and how many rows these may have."""


class _Found(NamedTuple):
    labels: Labels
    """New labels of the batch's rows."""
    n_distances: int
    products: RowProducts | None = None
    """Of rows that changed their cluster, if the centres are kept column by column."""


@CpuShard.implements(AssignBatch)
@single_threaded_blas  # once for all that follows: asking a BLAS takes its time too
def assign_batch(shard: CpuShard, work: AssignBatch) -> NestedStatistics:
    """The rows of a batch against all centres, those that bounds leave, or those of a few cells."""
    centers, origin, search, labels = work.centers, work.origin, work.search, shard.labels
    batch = work.rows.seen_from(shard.first_row)
    if search.restart:
        labels[:] = -1
    rows = _rows_of_batch(shard, batch)
    former = labels[rows]
    if search.candidates is not None:
        assert not isinstance(centers, ColumnMeans)
        found = _by_cells(shard, centers, rows, former, search.candidates)
    elif search.bounds is not None:
        found = _by_bounds(shard, centers, rows, former, search.bounds)
    else:
        found = _by_products(shard, centers, rows, former)
    labels[rows] = found.labels
    moved = np.flatnonzero(found.labels != former)
    joining = moved if search.remove_old else np.arange(len(rows))
    leaving = moved[former[moved] >= 0] if search.remove_old else moved[:0]
    positions = np.concatenate([joining, leaving])
    clusters = np.concatenate([found.labels[joining], former[leaving]])
    moves = Moves(rows[positions], positions, clusters, len(joining))
    statistics = NestedStatistics.none(centers.shape[0], 0 if found.products else centers.shape[1])
    statistics.n_rows, statistics.n_changed, statistics.n_distances = len(rows), len(moved), found.n_distances
    if found.products is not None:
        cast_ballots(shard, moves, found.products, statistics)
    else:
        add_votes(shard, moves, origin, statistics)
    return statistics


@dataclass(frozen=True, slots=True)
class _BatchRows:
    """The rows of the last batch: the next one is often the same."""

    batch: Batch
    rows: I64


def _rows_of_batch(shard: CpuShard, batch: Batch) -> I64:
    known = shard.recall(_BatchRows)
    if known is None or known.batch != batch:
        known = _BatchRows(batch, batch.rows(shard.n_rows))
        shard.keep(known)
    return known.rows


def _by_products(shard: CpuShard, centers: F64 | ColumnMeans, rows: I64, former: Labels) -> _Found:
    product = center_scores(shard, centers)
    labels = np.empty(len(rows), dtype=np.int32)
    kept = RowProducts.empty(len(rows)) if isinstance(centers, ColumnMeans) else None

    def assign(span: tuple[int, int]) -> None:
        part = slice(*span)
        scored = product.label(rows[part], labels[part])
        if kept is not None:
            kept.take(np.arange(*span), scored, labels[part], former[part])

    run_all(assign, product_tasks(shard, len(rows), centers.shape[0]), shard.n_threads)
    return _Found(labels, len(rows) * centers.shape[0], kept)


def _by_bounds(shard: CpuShard, centers: F64 | ColumnMeans, rows: I64, former: Labels, bounds: Bounds) -> _Found:
    """Alg. 1 for a batch. Rows that bounds do not settle search their candidates; what has many waits for a product."""
    search = _BoundedSearch.of(shard, centers, bounds)
    labels = former.copy()
    kept = RowProducts.empty(len(rows)) if isinstance(centers, ColumnMeans) else None

    def search_few(span: tuple[int, int]) -> tuple[I64, int]:
        wide, n = search.few(rows[slice(*span)], labels[slice(*span)])
        return span[0] + wide, n

    def multiply(span: tuple[int, int]) -> None:
        at = wide[slice(*span)]
        found = np.empty(len(at), dtype=np.int32)
        scored = search.all(rows[at], found)
        if kept is not None:
            kept.take(at, scored, found, labels[at])
        labels[at] = found

    left = map_all(search_few, even_ranges(len(rows), _rows_per_search(len(rows))), shard.n_threads)
    wide = np.concatenate([np.empty(0, dtype=np.int64), *(at for at, _ in left)])
    run_all(multiply, product_tasks(shard, len(wide), centers.shape[0]), shard.n_threads)
    return _Found(labels, sum(n for _, n in left) + len(wide) * centers.shape[0], kept)


def _rows_per_search(n_rows: int) -> int:
    """A few tasks for a small batch: waking a thread takes as long as the bounds of a thousand rows."""
    return min(LARGEST_SEARCH, max(SMALLEST_SEARCH, -(-n_rows // SEARCHES)))


@dataclass(frozen=True, slots=True)
class _BoundedSearch:
    """What the three parts of Alg. 1 share."""

    shard: CpuShard
    product: DenseScores | ColumnScores
    bounds: Bounds
    group_of: I64
    upper: NDArray[np.float32]
    lower: NDArray[np.float32]

    @classmethod
    def of(cls, shard: CpuShard, centers: F64 | ColumnMeans, bounds: Bounds) -> _BoundedSearch:
        groups = bounds.groups
        group_of = np.empty(len(groups.order), dtype=np.int64)
        group_of[groups.order] = np.repeat(np.arange(groups.n_groups), np.diff(groups.starts))
        return cls(
            shard, center_scores(shard, centers), bounds, group_of,
            cast(NDArray[np.float32], shard.state.get("nested_upper", np.float32, 0.0)),
            cast(NDArray[np.float32], shard.state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)),
        )  # fmt: skip

    def few(self, rows: I64, labels: Labels) -> tuple[I64, int]:
        """Label, in place, rows that are settled or have few candidates; positions of the others, and distances."""
        b, unsettled = self.bounds, np.empty(len(rows), dtype=np.int64)
        n_open, n_new = kernels.unsettled(rows, labels, self.upper, self.lower, b.drift, b.group_drift, unsettled)
        active, left, n_distances = unsettled[:n_open], [unsettled[len(rows) - n_new :]], 0
        if isinstance(self.product, ColumnScores):
            left.append(active)
        else:
            for begin, end in even_ranges(n_open, rows_at_once(self.shard)):
                wide, n = self._search(rows, labels, active[begin:end], self.product)
                left.append(wide)
                n_distances += n
        return np.sort(np.concatenate(left)), n_distances

    def _search(self, rows: I64, labels: Labels, active: I64, product: DenseScores) -> tuple[I64, int]:
        """Search the dense rows that have few candidates; returns the others, and the distances of those done."""
        b, C = self.bounds, len(product.centers)
        chosen, found, wide = rows[active], labels[active], np.empty(len(active), dtype=np.int64)
        block, at = in_place(self.shard.rows, chosen)
        n_wide, n_distances = kernels.search_few(
            block, at, self.shard.scales, chosen, product.centers, product.norms, *product.rounded, b.groups.order,
            b.groups.starts, self.group_of, b.drift, b.group_drift, int(DIRECT_SHARE * C), self.upper,
            self.lower, found, np.empty((1, C), dtype=np.int64), np.empty(C, dtype=block[0].dtype), wide,
        )  # fmt: skip
        labels[active] = found
        return active[wide[:n_wide]], n_distances

    def all(self, rows: I64, labels: Labels) -> Scored:
        """Compare these rows with all centres, and make all their bounds anew."""
        product, b = self.product, self.bounds
        scored = product.label(rows, labels)
        kernels.bound_by_scores(
            scored.block, scored.at, rows, scored.lengths, scored.scales, scored.scores, product.score_norms,
            product.longest, product.slack, self.group_of, b.drift, b.group_drift, product.n_terms, product.unit,
            product.tiny, scored.best, labels, self.upper, self.lower, np.empty(b.groups.n_groups),
        )  # fmt: skip
        return scored


def _by_cells(shard: CpuShard, centers: F64, rows: I64, former: Labels, candidates: Candidates) -> _Found:
    cells = candidates.cells
    part = shard.subset(rows)
    part.labels[:] = former
    n_distances = 0
    fresh = np.flatnonzero(former < 0)
    if len(fresh):  # they have no cluster to compare with yet: down to the closest centre of their closest cell
        new, tree = shard.subset(rows[fresh]), cells.tree(centers)
        n_distances += new.run(Assign(tree.centers, Down(tree), "labels")).n_distances
        part.labels[fresh] = cells.order.astype(np.int32)[new.labels]
    n_distances += part.run(Assign(centers, Probe(cells, candidates.n_probes), "labels")).n_distances
    return _Found(part.labels, n_distances)
