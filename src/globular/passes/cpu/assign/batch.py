"""The nested pass: label the rows of a batch, and say how their votes have changed.

Three ways to the label, all decided by exact distances in float64: matrix products with all centres (`_by_products`);
the same behind bounds that most rows pass without being read (`_by_bounds`); and, for very many centres, the closest of
the centres in a few cells (`_by_cells`), the only one that is not exact. Per-point state: the label; with bounds one
float32 and one more per group of centres, touched only for rows that have been in a batch.

Of every row of the batch we keep an upper bound on the distance to its own centre, and per group of centres a lower
bound on the distance to every centre of the group but its own; with groups of one centre these are Elkan's, with larger
ones yinyang's. Bounds are not loosened in every pass. They are kept relative to the *drift*, the length of the path
that a centre has gone since the start (for a group: the sum of its largest steps), so that one subtraction brings them
up to date, and a row whose bounds settle it costs no look at the row itself.

Only rows that changed their cluster are summed, in cluster order; in each the rows that join before those that leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, Bounds, Candidates, NestedStatistics
from globular.model.statistics import F64, I64
from globular.passes.cpu.assign.votes import Moves, add_votes, cast_ballots
from globular.passes.cpu.center_scores import (
    LARGEST,
    ROWS_PER_SEARCH,
    SAFETY,
    BatchRows,
    BoundState,
    CenterScores,
    RowProducts,
    center_scores,
    on_positions,
    place_of,
    stored_lower,
    stored_upper,
)
from globular.passes.cpu.engine.rows import AHEAD, fetch, quick_distance, quick_distances, squared_distance
from globular.passes.cpu.grouped import packed
from globular.passes.cpu.rows import CSRRows, look_up
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE, SEARCHED_AT_ONCE
from globular.seam.among import Down, Probe
from globular.seam.passes import Assign, AssignBatch, Labels
from globular.threads import SECONDS_PER_NUMBER, even_ranges, map_all, run_all, single_threaded_blas, worth_waking

DIRECT_SHARE = 1 / 6
"""Dense rows with at most this share of the centres as candidates compute those distances alone, others all: a
product takes less time for each, and all make better bounds. Measured with 50 to 500 clusters of 2 to 784 columns.
A sparse row always does: it finds the entries of one centre all over the memory, those of all centres side by side, so
that four of fifty take as long as all, and all make better bounds."""


class CloseCenters(NamedTuple):
    """Centres for distances in the rows' own precision, and what may be wrong with these."""

    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖²
    rounded: Any  # (C, D) the centres in the rows' dtype
    errors: Any  # (C,) by how much rounding its centre can change a distance, with what is lost to underflow
    share: float  # what share of a distance its own rounding can be


class Looked(NamedTuple):
    """Scratch of a thread that searches."""

    among: Any  # (1, C) the row's own centre and its candidates
    squares: Any  # (C,) squared distances in the rows' dtype


# --- kernels ---------------------------------------------------------------------------------------------------------


@kernel
def find_unsettled(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    batch: Any,  # IN  (b,) rows of the shard
    labels: Any,  # IN  (b,) their clusters; −1: not seen before
    bounds: Any,  # IN
    found: Any,  # OUT (1, b) positions of rows that are new or not settled by their bounds, from where a block begins
    n_found: Any,  # OUT (blocks,)
) -> None:
    """Rows that must be looked at. O(b · groups), and no row is read."""
    n_groups = bounds.group_drift.shape[0]
    block = take_number(queue)
    while block < n_found.shape[0]:
        begin = block * size
        n = 0
        for i in range(begin, min(begin + size, batch.shape[0])):
            r, c = batch[i], labels[i]
            within = 1 if c < 0 else 0
            if c >= 0:
                limit = bounds.upper[r] + bounds.drift[c]
                for g in range(n_groups):
                    within += bounds.lower[r, g] - bounds.group_drift[g] <= limit
            if within > 0:
                found[0, begin + n] = i
                n += 1
        n_found[block] = n
        block = take_number(queue)


@inline
def count_close(bounds: Any, r: int, limit: float) -> int:
    """Centres that bounds do not rule out for a row whose own one is at most so far. O(groups)."""
    n, starts = 0, bounds.starts
    for g in range(bounds.group_drift.shape[0]):
        n += starts[g + 1] - starts[g] if bounds.lower[r, g] - bounds.group_drift[g] <= limit else 0
    return n


@inline
def collect_close(bounds: Any, r: int, limit: float, own: int, among: Any) -> int:
    """The row's own centre, and then those that bounds do not rule out; how many. O(groups + candidates)."""
    among[0, 0] = own
    n, order, starts = 1, bounds.order, bounds.starts
    for g in range(bounds.group_drift.shape[0]):
        if bounds.lower[r, g] - bounds.group_drift[g] <= limit:
            for position in range(starts[g], starts[g + 1]):
                if order[position] != own:
                    among[0, n] = order[position]
                    n += 1
    return n


@inline
def closest_among(rows: Any, row: int, scale: float, close: Any, looked: Any, n: int) -> int:
    """The closest of the first n centres, the lowest index on ties. O(n), and O(D) where rounding leaves it open."""
    among, squares, errors, share = looked.among, looked.squares, close.errors, close.share
    nearest = np.inf
    for k in range(n):
        nearest = min(nearest, np.sqrt(np.float64(squares[k])) * (1.0 + share) + errors[among[0, k]])
    n_close, label, best = 0, -1, np.inf
    for k in range(n):
        if np.sqrt(np.float64(squares[k])) * (1.0 - share) - errors[among[0, k]] <= nearest:
            n_close += 1
            label = among[0, k]
    if n_close == 1:
        return label
    label = -1
    for k in range(n):
        c = among[0, k]
        if np.sqrt(np.float64(squares[k])) * (1.0 - share) - errors[c] <= nearest:
            squared = squared_distance(rows, row, scale, close.centers, c, close.norms)
            if label < 0 or squared < best or (squared == best and c < label):
                label, best = c, squared
    return label


@inline
def keep_bounds(looked: Any, n: int, close: Any, bounds: Any, r: int, label: int) -> None:
    """Bounds of a row from its distances to its candidates, the first of which was its own centre. O(n)."""
    for k in range(1, n):
        bounds.lower[r, bounds.group_of[looked.among[0, k]]] = LARGEST
    for k in range(n):
        c = looked.among[0, k]
        distance = np.sqrt(np.float64(looked.squares[k]))
        if c == label:
            bounds.upper[r] = stored_upper(distance * (1.0 + close.share) + close.errors[c], bounds.drift[c])
        else:
            g = bounds.group_of[c]
            below = max(distance * (1.0 - close.share) - close.errors[c], 0.0)
            bounds.lower[r, g] = min(bounds.lower[r, g], stored_lower(below, bounds.group_drift[g]))


@kernel
def search_few(
    queue: Queue,  # IN/OUT blocks
    size: int,  # IN  rows of a block
    some: Any,  # IN  a `BatchRows`, whose labels are IN/OUT
    close: Any,  # IN
    bounds: Any,  # IN/OUT
    most: int,  # IN  rows with more candidates than this are left to the product
    looked: Scratch,  # scratch
    wide: Any,  # OUT (1, n) positions left to the product, from where each block begins
    numbers: Any,  # OUT (blocks, 2) how many those are, and distances computed
) -> None:
    """Alg. 1 for dense rows with few candidates. O(D) a distance.

    Distances are taken in the rows' own precision, and exact ones only of centres between which rounding might decide.
    """
    rows, positions, batch = some.rows, some.positions, some.batch
    block = take_number(queue)
    while block < numbers.shape[0]:
        begin, end = block * size, min((block + 1) * size, positions.shape[0])
        n_wide, n_distances = 0, 0
        for k in range(begin, end):
            if k + AHEAD < end:
                fetch(rows, place_of(k + AHEAD, batch[positions[k + AHEAD]], some.places))
            i = positions[k]
            r, c = batch[i], some.labels[i]
            at = place_of(k, r, some.places)
            scale = some.scales[r] if some.scales.shape[0] else 1.0
            left = c < 0
            if not left:
                looked.squares[0] = quick_distance(rows, at, scale, close.rounded, c, close.norms)
                own = np.sqrt(np.float64(looked.squares[0])) * (1.0 + close.share) + close.errors[c]
                # infinity and NaN say nothing, and scales beyond these lose their precision in float32
                left = not (own < LARGEST and 2.0**-100 < scale < 2.0**100)
                if not left:
                    bounds.upper[r] = stored_upper(own, bounds.drift[c])
                    left = count_close(bounds, r, own) > most
            if left:
                wide[0, begin + n_wide] = i
                n_wide += 1
                continue
            n = collect_close(bounds, r, own, c, looked.among)
            n_distances += n
            if n > 1:
                quick_distances(rows, at, scale, close.rounded, looked.among[:, :n], 0, close.norms, looked.squares)
                some.labels[i] = closest_among(rows, at, scale, close, looked, n)
                keep_bounds(looked, n, close, bounds, r, some.labels[i])
        numbers[block, 0], numbers[block, 1] = n_wide, n_distances
        block = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    labels: Labels
    """New labels of the batch's rows."""
    n_distances: int
    products: RowProducts | None = None
    """Products of rows that changed their cluster, if the centres are kept column by column."""


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
        known = _BatchRows(batch, batch.rows(shard.n_rows, partial(map_all, n_threads=shard.n_threads)))
        shard.keep(known)
    return known.rows


def _labels_of(shard: CpuShard, batch: I64) -> tuple[Labels, Labels]:
    """The labels of the batch, and a copy that a search may change."""
    former, queue, labels = np.empty(len(batch), dtype=np.int32), new_queue(), shard.labels
    threads = worth_waking(shard.n_threads, SECONDS_PER_NUMBER * len(batch))
    share_kernel(lambda: look_up(queue, SEARCHED_AT_ONCE, labels, batch, former), queue, threads, calls_blas=False)
    return former, former.copy()


def _write_labels(shard: CpuShard, batch: I64, former: Labels, new: Labels) -> I64:
    """Give the rows of the batch their labels; positions of those that changed."""
    labels, moved = shard.labels, np.empty(len(batch), dtype=np.bool_)

    def write(span: tuple[int, int]) -> None:
        some = slice(*span)
        np.not_equal(new[some], former[some], out=moved[some])
        labels[batch[some][moved[some]]] = new[some][moved[some]]

    seconds = SECONDS_PER_NUMBER * len(batch)
    run_all(write, even_ranges(len(batch), ROWS_AT_ONCE), shard.n_threads, seconds=seconds, calls_blas=False)
    return np.flatnonzero(moved)


def _by_products(shard: CpuShard, centers: F64 | ColumnMeans, batch: I64, labels: Labels) -> _Found:
    product = center_scores(shard, centers, len(batch))
    product.label(batch, np.arange(len(batch)), labels)
    return _Found(labels, len(batch) * centers.shape[0], product.kept)


def _by_bounds(shard: CpuShard, centers: F64 | ColumnMeans, batch: I64, labels: Labels, bounds: Bounds) -> _Found:
    """Alg. 1 for a batch. Rows that bounds do not settle search their candidates; what has many waits for a product."""
    product, state = center_scores(shard, centers, len(batch)), BoundState.of(shard, bounds)
    wide, n_distances = _unsettled(shard, batch, labels, state), 0
    if not isinstance(shard.rows, CSRRows):
        wide, n_distances = _search_few(product, batch, wide, labels, state)
    product.label(batch, wide, labels, state)
    return _Found(labels, n_distances + len(wide) * centers.shape[0], product.kept)


def _unsettled(shard: CpuShard, batch: I64, labels: Labels, state: BoundState) -> I64:
    """Positions of rows that are new, or not settled by their bounds."""
    begins, queue = np.arange(0, len(batch), SEARCHED_AT_ONCE), new_queue()
    found, n_found = np.empty((1, len(batch)), dtype=np.int64), np.empty(len(begins), dtype=np.int64)
    share_kernel(
        lambda: find_unsettled(queue, SEARCHED_AT_ONCE, batch, labels, state, found, n_found), queue,
        min(shard.n_threads, len(begins)), calls_blas=False,
    )  # fmt: skip
    return packed(found, begins, n_found, shard.n_threads)[0]


def _search_few(
    product: CenterScores, batch: I64, positions: I64, labels: Labels, state: BoundState
) -> tuple[I64, int]:
    """Label dense rows that have few candidates; positions of the others, and the distances of those done."""
    shard, close = product.shard, _close_centers(product)
    C, begins = len(close.centers), np.arange(0, len(positions), ROWS_PER_SEARCH)
    wide, numbers = np.empty((1, len(positions)), dtype=np.int64), np.zeros((len(begins), 2), dtype=np.int64)

    def search(queue: NDArray[np.int64], some: BatchRows, part: slice) -> None:
        blocks = slice(part.start // ROWS_PER_SEARCH, -(-part.stop // ROWS_PER_SEARCH))
        looked = Looked(np.empty((1, C), dtype=np.int64), np.empty(C, dtype=shard.dtype))
        search_few(
            queue, ROWS_PER_SEARCH, some, close, state, int(DIRECT_SHARE * C), looked, wide[:, part], numbers[blocks]
        )

    on_positions(shard, batch, positions, labels, search)
    n_wide, n_distances = np.ascontiguousarray(numbers.T)
    return packed(wide, begins, n_wide, shard.n_threads)[0], int(n_distances.sum())


def _close_centers(product: CenterScores) -> CloseCenters:
    """What may be wrong with distances includes what exact distances lose."""
    centers, norms, scales = product.centers.nominees.centers, product.centers.nominees.norms, product.shard.scales
    D, unit, tiny = centers.shape[1], product.centers.unit, product.centers.tiny
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = centers.astype(product.shard.rows.dtype)
        difference = centers - rounded
        errors = np.sqrt(np.einsum("ij,ij->i", difference, difference)) + np.sqrt((D + 4.0) * tiny)
        if len(scales):  # a scale is rounded too, and its product with every entry
            errors += 4.0 * unit * np.sqrt(norms)
    share = (D + 16.0) * unit + SAFETY
    return CloseCenters(centers, norms, rounded, errors * (1.0 + SAFETY), share)


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
