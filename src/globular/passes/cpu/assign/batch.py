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

from globular.jit import new_queue, share_kernel
from globular.kernels import batch as kernels
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, Bounds, Candidates, NestedStatistics
from globular.model.statistics import F64, I64
from globular.passes.cpu.assign.votes import Moves, add_votes, cast_ballots
from globular.passes.cpu.center_scores import (
    ROWS_PER_SEARCH,
    BatchRows,
    BoundState,
    DenseScores,
    RowProducts,
    center_scores,
    on_positions,
)
from globular.passes.cpu.grouped import packed
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import SEARCHED_AT_ONCE
from globular.seam.among import Down, Probe
from globular.seam.passes import Assign, AssignBatch, Labels
from globular.threads import SECONDS_PER_NUMBER, single_threaded_blas, worth_waking

DIRECT_SHARE = 1 / 6
"""Dense rows with at most this share of the centres as candidates compute those distances alone, others all: a
product takes less time for each, and all make better bounds. Measured with 50 to 500 clusters of 2 to 784 columns.
A sparse row always does: it finds the entries of one centre all over the memory, those of all centres side by side, so
that four of fifty take as long as all, and all make better bounds."""


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
    centers, origin, search = work.centers, work.origin, work.search
    if search.restart:
        shard.labels[:] = -1
    batch = _rows_of_batch(shard, work.rows.seen_from(shard.first_row))
    former, labels = _labels_of(shard, batch)
    if search.candidates is not None:
        assert not isinstance(centers, ColumnMeans)
        found = _by_cells(shard, centers, batch, labels, search.candidates)
    elif search.bounds is not None:
        found = _by_bounds(shard, centers, batch, labels, search.bounds)
    else:
        found = _by_products(shard, centers, batch, labels)
    moved = _write_labels(shard, batch, former, found.labels)
    joining = moved if search.remove_old else np.arange(len(batch))
    leaving = moved[former[moved] >= 0] if search.remove_old else moved[:0]
    positions = np.concatenate([joining, leaving])
    clusters = np.concatenate([found.labels[joining], former[leaving]])
    moves = Moves(batch[positions], positions, clusters, len(joining))
    statistics = NestedStatistics.none(centers.shape[0], 0 if found.products else centers.shape[1])
    statistics.n_rows, statistics.n_changed, statistics.n_distances = len(batch), len(moved), found.n_distances
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
        known = _BatchRows(batch, batch.rows(shard.n_rows, shard.n_threads))
        shard.keep(known)
    return known.rows


def _labels_of(shard: CpuShard, batch: I64) -> tuple[Labels, Labels]:
    """The labels of the batch, and a copy that a search may change."""
    former, new, queue = np.empty(len(batch), dtype=np.int32), np.empty(len(batch), dtype=np.int32), new_queue()
    labels, threads = shard.labels, worth_waking(shard.n_threads, SECONDS_PER_NUMBER * len(batch))
    share_kernel(
        lambda: kernels.copy_labels(queue, SEARCHED_AT_ONCE, batch, labels, former, new),
        queue,
        threads,
        calls_blas=False,
    )
    return former, new


def _write_labels(shard: CpuShard, batch: I64, former: Labels, new: Labels) -> I64:
    """Give the rows of the batch their labels; positions of those that changed."""
    begins, queue, labels = np.arange(0, len(batch), SEARCHED_AT_ONCE), new_queue(), shard.labels
    moved, n_moved = np.empty((1, len(batch)), dtype=np.int64), np.empty(len(begins), dtype=np.int64)
    share_kernel(
        lambda: kernels.write_labels(queue, SEARCHED_AT_ONCE, batch, former, new, labels, moved, n_moved), queue,
        worth_waking(shard.n_threads, SECONDS_PER_NUMBER * len(batch)), calls_blas=False,
    )  # fmt: skip
    return packed(moved, begins, n_moved, shard.n_threads)[0]


def _by_products(shard: CpuShard, centers: F64 | ColumnMeans, batch: I64, labels: Labels) -> _Found:
    product = center_scores(shard, centers, len(batch))
    product.label(batch, np.arange(len(batch)), labels, BoundState.none())
    return _Found(labels, len(batch) * centers.shape[0], product.kept)


def _by_bounds(shard: CpuShard, centers: F64 | ColumnMeans, batch: I64, labels: Labels, bounds: Bounds) -> _Found:
    """Alg. 1 for a batch. Rows that bounds do not settle search their candidates; what has many waits for a product."""
    product, state = center_scores(shard, centers, len(batch)), _state(shard, bounds)
    wide, n_distances = _unsettled(shard, batch, labels, state), 0
    if isinstance(product, DenseScores):
        wide, n_distances = _search_few(product, batch, wide, labels, bounds, state)
    product.label(batch, wide, labels, state)
    return _Found(labels, n_distances + len(wide) * centers.shape[0], product.kept)


def _state(shard: CpuShard, bounds: Bounds) -> BoundState:
    groups = bounds.groups
    group_of = np.empty(len(groups.order), dtype=np.int64)
    group_of[groups.order] = np.repeat(np.arange(groups.n_groups), np.diff(groups.starts))
    return BoundState(
        group_of, bounds.drift, bounds.group_drift,
        cast(NDArray[np.float32], shard.state.get("nested_upper", np.float32, 0.0)),
        cast(NDArray[np.float32], shard.state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)),
    )  # fmt: skip


def _unsettled(shard: CpuShard, batch: I64, labels: Labels, state: BoundState) -> I64:
    """Positions of rows that are new, or that their bounds do not settle."""
    begins, queue = np.arange(0, len(batch), SEARCHED_AT_ONCE), new_queue()
    found, n_found = np.empty((1, len(batch)), dtype=np.int64), np.empty(len(begins), dtype=np.int64)
    share_kernel(
        lambda: kernels.find_unsettled(queue, SEARCHED_AT_ONCE, batch, labels, *state[1:], found, n_found), queue,
        min(shard.n_threads, len(begins)), calls_blas=False,
    )  # fmt: skip
    return packed(found, begins, n_found, shard.n_threads)[0]


def _search_few(
    product: DenseScores, batch: I64, positions: I64, labels: Labels, bounds: Bounds, state: BoundState
) -> tuple[I64, int]:
    """Label dense rows that have few candidates; positions of the others, and the distances of those done."""
    shard, (C, _) = product.shard, product.centers.shape
    begins = np.arange(0, len(positions), ROWS_PER_SEARCH)
    wide, numbers = np.empty((1, len(positions)), dtype=np.int64), np.zeros((len(begins), 2), dtype=np.int64)

    def search(queue: NDArray[np.int64], some: BatchRows, part: slice) -> None:
        blocks = slice(part.start // ROWS_PER_SEARCH, -(-part.stop // ROWS_PER_SEARCH))
        kernels.search_few(
            queue, ROWS_PER_SEARCH, *some, shard.scales, batch, product.centers, product.norms, *product.rounded,
            bounds.groups.order, bounds.groups.starts, int(DIRECT_SHARE * C), *state, labels,
            np.empty((1, C), dtype=np.int64), np.empty(C, dtype=shard.dtype), wide[:, part], numbers[blocks],
        )  # fmt: skip

    on_positions(shard, batch, positions, search)
    n_wide, n_distances = np.ascontiguousarray(numbers.T)
    left = packed(wide, begins, n_wide, shard.n_threads)[0]
    return left, int(n_distances.sum())


def _by_cells(shard: CpuShard, centers: F64, batch: I64, labels: Labels, candidates: Candidates) -> _Found:
    cells = candidates.cells
    part = shard.subset(batch)
    part.labels[:] = labels
    n_distances = 0
    fresh = np.flatnonzero(labels < 0)
    if len(fresh):  # they have no cluster to compare with yet: down to the closest centre of their closest cell
        new, tree = shard.subset(batch[fresh]), cells.tree(centers)
        n_distances += new.run(Assign(tree.centers, Down(tree), "labels")).n_distances
        part.labels[fresh] = cells.order.astype(np.int32)[new.labels]
    n_distances += part.run(Assign(centers, Probe(cells, candidates.n_probes), "labels")).n_distances
    return _Found(part.labels, n_distances)
