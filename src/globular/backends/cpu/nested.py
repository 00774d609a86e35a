"""The nested pass: label the rows of a batch, and say how their votes have changed.

Three ways to the label, all decided by exact distances in float64: matrix products with all centres (`_by_products`);
the same behind bounds that most rows pass without being read (`_by_bounds`); and, for very many centres, the closest of
the centres in a few cells (`_by_cells`), the only one that is not exact. Per-point state: the label; with bounds one
float32 and one more per group of centres, touched only for rows that have been in a batch.

Only rows that changed their cluster are summed, in cluster order: first the rows that join, then those that leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.center_scores import (
    ColumnScores,
    DenseScores,
    RowProducts,
    Scored,
    center_scores,
    in_place,
    rows_per_block,
)
from globular.backends.cpu.picked import pick
from globular.backends.cpu.votes import Moves, add_votes, cast_ballots
from globular.backends.protocol import Labels
from globular.kernels import columns as column_kernels
from globular.kernels import nested as kernels
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, Bounds, Candidates, NestedSearch, NestedStatistics
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, ordered_map, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

DIRECT_SHARE = {"dense": 1 / 4, "sparse": 1 / 12}
"""Rows with at most this share of the centres as candidates compute those distances alone; others multiply by all.
A sparse row finds the entries of one centre all over the memory, those of all centres side by side."""


class _Found(NamedTuple):
    labels: Labels
    """New labels of the batch's rows."""
    n_distances: int
    products: RowProducts | None = None
    """Of rows that changed their cluster, if the centres are kept column by column."""


def nested_pass(
    shard: CpuShard, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch
) -> NestedStatistics:
    """See `Shard.nested_pass`."""
    labels = shard.labels
    if search.restart:
        labels[:] = -1
    if shard.batch_rows is None or shard.batch_rows[0] != batch:
        shard.batch_rows = batch, batch.rows(shard.n_rows)
    rows = shard.batch_rows[1]
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


def _by_products(shard: CpuShard, centers: F64 | ColumnMeans, rows: I64, former: Labels) -> _Found:
    product = center_scores(shard, centers)
    labels = np.empty(len(rows), dtype=np.int32)
    kept = RowProducts.empty(len(rows)) if isinstance(centers, ColumnMeans) else None

    def assign(span: tuple[int, int]) -> None:
        part = slice(*span)
        scored = product.label(rows[part], labels[part])
        if kept is not None:
            kept.take(part, scored, labels[part], former[part])

    run_all(assign, even_ranges(len(rows), rows_per_block(centers.shape[0])), shard.n_threads)
    return _Found(labels, len(rows) * centers.shape[0], kept)


def _by_bounds(shard: CpuShard, centers: F64 | ColumnMeans, rows: I64, former: Labels, bounds: Bounds) -> _Found:
    search = _BoundedSearch.of(shard, centers, bounds)
    labels = former.copy()
    kept = RowProducts.empty(len(rows)) if isinstance(centers, ColumnMeans) else None

    def assign(span: tuple[int, int]) -> int:
        part = slice(*span)
        return search.block(rows[part], labels[part], None if kept is None else kept.part(part))

    n_distances = sum(ordered_map(assign, even_ranges(len(rows), rows_per_block(centers.shape[0])), shard.n_threads))
    return _Found(labels, n_distances, kept)


@dataclass(frozen=True, slots=True)
class _BoundedSearch:
    """Alg. 1 for blocks of rows."""

    shard: CpuShard
    product: DenseScores | ColumnScores
    bounds: Bounds
    group_of: I64
    upper: NDArray[np.float32]
    lower: NDArray[np.float32]
    n_clusters: int

    @classmethod
    def of(cls, shard: CpuShard, centers: F64 | ColumnMeans, bounds: Bounds) -> _BoundedSearch:
        groups, C = bounds.groups, centers.shape[0]
        group_of = np.empty(C, dtype=np.int64)
        group_of[groups.order] = np.repeat(np.arange(groups.n_groups), np.diff(groups.starts))
        return cls(
            shard, center_scores(shard, centers), bounds, group_of,
            cast(NDArray[np.float32], shard.state.get("nested_upper", np.float32, 0.0)),
            cast(NDArray[np.float32], shard.state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)), C,
        )  # fmt: skip

    def block(self, rows: I64, labels: Labels, kept: RowProducts | None) -> int:
        """Label one block in place; returns the distances it took, those to a row's own centre once."""
        b = self.bounds
        active = np.empty(len(rows), dtype=np.int64)
        n_active = kernels.unsettled(rows, labels, self.upper, self.lower, b.drift, b.group_drift, active)
        if n_active == 0:
            return 0
        narrow = self._search_few if isinstance(self.product, DenseScores) else self._keep_by_columns
        wide, n_distances = narrow(rows, labels, active[:n_active])
        if len(wide):
            found = np.empty(len(wide), dtype=np.int32)
            scored = self._make_bounds(rows[wide], found)
            if kept is not None:
                kept.take(wide, scored, found, labels[wide])
            labels[wide] = found
        return n_distances + len(wide) * self.n_clusters

    def _search_few(self, rows: I64, labels: Labels, active: I64) -> tuple[I64, int]:
        """Search the dense rows that have few candidates; returns the others, and the distances of those done."""
        b, product = self.bounds, self.product
        assert isinstance(product, DenseScores)
        most = int(DIRECT_SHARE["dense"] * self.n_clusters)
        if most == 0:
            return active, 0
        wide = np.empty(len(active), dtype=np.int64)
        block, at = in_place(self.shard.rows, rows)
        n_wide, n_distances = kernels.search_few(
            block, at, self.shard.scales, rows, active, product.centers, product.norms, b.groups.order,
            b.groups.starts, self.group_of, b.drift, b.group_drift, most, self.upper, self.lower,
            np.empty(len(rows)), labels, wide,
        )  # fmt: skip
        wide = wide[:n_wide]
        return wide, n_distances - int(np.count_nonzero(labels[wide] >= 0))  # their own centre is multiplied again

    def _keep_by_columns(self, rows: I64, labels: Labels, active: I64) -> tuple[I64, int]:
        """The same for sparse rows, of which only those are done that keep their centre."""
        b, product = self.bounds, self.product
        assert isinstance(product, ColumnScores)
        wide = np.empty(len(active), dtype=np.int64)
        block, at = in_place(self.shard.rows, rows)
        n_wide, n_distances = column_kernels.keep_by_columns(
            block, at, self.shard.scales, rows, labels, active, product.means.places, product.means.factors,
            product.score_norms, product.slack, b.groups.order, b.groups.starts, b.drift, b.group_drift,
            int(DIRECT_SHARE["sparse"] * self.n_clusters), self.upper, self.lower, wide,
        )  # fmt: skip
        return wide[:n_wide], n_distances

    def _make_bounds(self, rows: I64, labels: Labels) -> Scored:
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
