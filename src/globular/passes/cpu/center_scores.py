"""Rows of a batch against all centres: scores, labels from them, and bounds.

All centres at once, in blocks of rows that suit the cache. Scores of dense rows come from the engine in the rows'
precision. Those of sparse rows run along centres that are kept column by column (`model.columns`), in float64: a
nonzero of a row meets all centres in one streak of memory. Where a row is so close to centres that rounding might
decide, differences over all columns do. No exact distance is computed where one score is clearly the lowest.

Bounds are float32 and kept relative to the drift of centres (`assign.batch`), rounded to the safe side by far more than
float64 rounds. So they rule out a centre only if its computed distance is the larger one too, and labels come out the
same with bounds and without. Sparse distances cancel, so there the bounds give way by that error as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number, twin
from globular.jit.memory import order_key
from globular.model.columns import ColumnMeans
from globular.model.nested import Bounds
from globular.model.statistics import F64, I64
from globular.passes.cpu.by_column import column_means
from globular.passes.cpu.cells import CellProduct
from globular.passes.cpu.engine.decide import lower_block
from globular.passes.cpu.engine.rows import CANCELLED, distance_by_columns, row_length
from globular.passes.cpu.engine.score import Given, column_scores
from globular.passes.cpu.rows import CSRRows, KernelRows, can_be_indexed, gather_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import GATHERED_AT_ONCE, NO_NUMBERS, NO_TABLE, ROWS_PER_PRODUCT
from globular.seam.passes import Labels
from globular.threads import even_ranges, run_all

SCORES_PER_BLOCK = 2**17
"""About how many scores a product of a batch has: they stay in the second-level cache; larger = fewer blocks."""
BLOCKS = 32
"""Blocks that even a small batch is cut into, if they have enough rows."""
BYTES_AT_ONCE = 2**24
"""Most bytes of rows that are brought together, where rows have to be converted; larger = more memory."""
ROWS_PER_SEARCH = 64
"""Rows that a thread searches in one go; rows are brought together in a multiple of it."""
ROWS_PER_THREAD = 256
"""Rows to look at for which another thread is worth waking."""
SAFETY = 2.0**-22
"""Share by which stored bounds give way to the rounding of float32."""
SMALLEST_NORMAL, LARGEST = 2.0**-126, 2.0**127  # within these, float32 rounds with a relative error below the safety


class BatchRows(NamedTuple):
    """Some rows of a batch, and their labels."""

    positions: I64
    """Which rows of the batch, (n,)."""
    rows: KernelRows
    places: I64
    """Where those lie in `rows`, (n,); empty: where their numbers in the shard say."""
    batch: I64
    """The rows' numbers in the shard, (b,)."""
    scales: F64
    """(N,) or empty."""
    labels: Labels
    """(b,), which kernels write."""


class BoundState(NamedTuple):
    """Bounds of rows, without groups where there are none."""

    group_of: I64
    """The group of every centre, (C,)."""
    order: I64
    """Centres sorted by group, (C,)."""
    starts: I64
    """Where each group begins in that order, (groups + 1,)."""
    drift: F64
    """Path of every centre, (C,)."""
    group_drift: F64
    """Path of every group, (groups,)."""
    upper: NDArray[np.float32]
    """Stored upper bounds on the distance to the own centre, (N,)."""
    lower: NDArray[np.float32]
    """Stored lower bounds on the distances to the other centres of each group, (N, groups)."""

    @classmethod
    def of(cls, shard: CpuShard, bounds: Bounds) -> BoundState:
        """The bounds that a shard keeps of its rows."""
        groups, state = bounds.groups, shard.state
        group_of = np.empty(len(groups.order), dtype=np.int64)
        group_of[groups.order] = np.repeat(np.arange(groups.n_groups), np.diff(groups.starts))
        upper: Any = state.get("nested_upper", np.float32, 0.0)
        lower: Any = state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)
        return cls(group_of, groups.order, groups.starts, bounds.drift, bounds.group_drift, upper, lower)


class RowProducts(NamedTuple):
    """What sparse votes need of the rows of a batch that were multiplied; nothing of the others."""

    own: F64
    """x · m with the centre that a row has now, (n,)."""
    former: F64
    """x · m with the centre that it had, if any, (n,)."""
    lengths: F64
    """‖x‖, (n,)."""

    @classmethod
    def empty(cls, n: int) -> RowProducts:
        return cls(np.empty(n), np.empty(n), np.empty(n))


class ScoreCenters(NamedTuple):
    """Centres ready to be scored, all in one cell."""

    nominees: Any  # for dense rows
    places: Any  # for CSR rows (D, ≥ C): the centres column by column
    norms: Any  # (C,) ‖m‖²
    factors: Any  # (C,) of those columns
    n_columns: int  # that an exact distance of a dense row adds up
    longest: float  # no less than the largest ‖m − offset‖
    slack: float  # error of the norms
    unit: float  # unit round-off of the scores
    tiny: float  # their smallest normal number


class ScoreBlock(NamedTuple):
    """Scratch of a thread for B rows."""

    engine: Any  # an `engine.score.Block` for dense rows
    scales: Any  # (B,) or empty
    scores: Any  # (B, ≥ C) for CSR rows
    lengths: Any  # (B,) ‖x − offset‖, unscaled
    at: Any  # (B,) int64
    order: Any  # (B,) 0, 1, …
    numbers: Any  # (B,) int64, in the shard
    best: Any  # (B,) no less than the squared distance to the closest centre
    found: Any  # (B,) int32, that centre
    least: Any  # (groups,)


# --- kernels ---------------------------------------------------------------------------------------------------------


@inline
def stored_lower(bound: float, drift: float) -> Any:
    """A lower bound as it is kept: relative to the drift, rounded down."""
    return np.float32(min(bound + drift, LARGEST) * (1.0 - SAFETY) - SMALLEST_NORMAL)


@inline
def stored_upper(bound: float, drift: float) -> Any:
    """An upper bound as it is kept: relative to the drift, rounded up."""
    return np.float32(max(bound - drift, -LARGEST) + (bound + drift) * SAFETY + SMALLEST_NORMAL)


@inline
def place_of(k: int, row: int, places: Any) -> int:
    """Where the k-th of some rows lies: where its number says if there are no places."""
    return places[k] if places.shape[0] else row


@inline
def rounding(rows: Any, i: int, reach: float, scale: float, n_columns: int, unit: float, tiny: float) -> float:
    """Rounding error of a score and of an exact distance that it stands for; reach is ‖x‖ + ‖m‖ or more."""
    n_terms = rows[0].shape[1] if len(rows) == 1 else rows[-1][i + 1] - rows[-1][i]
    share = (4.0 * n_terms + 16.0) * unit + (n_columns + 8.0) * 2.0**-52
    return share * reach * reach + (4.0 * n_terms + 16.0) * tiny * (1.0 + scale)


@kernel
def closest_by_scores(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN
    work: Any,  # IN  scores −2 x·m, lengths ‖x‖
    best: Any,  # OUT (n,) no less than the squared distance to the closest centre
    labels: Any,  # OUT (n,) the closest centre, the lowest index on ties
) -> None:
    """Labels from scores. O(n · C), and O(D) for every centre in question where a row is close to its centre."""
    norms, factors, slack, scores = centers.norms, centers.factors, centers.slack, work.scores
    C = norms.shape[0]
    for i in range(at.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * work.lengths[i]
        lowest = order_key(norms[0] + scale * scores[i, 0])
        for c in range(1, C):
            key = order_key(norms[c] + scale * scores[i, c])
            lowest = key if key < lowest else lowest
        label = C
        for c in range(C):
            here = order_key(norms[c] + scale * scores[i, c]) == lowest
            label = min(label, c if here else C)
        squared = max(length * length + (norms[label] + scale * scores[i, label]), 0.0)
        error = slack + rounding(rows, at[i], length + np.sqrt(norms[label]), scale, 0, 2.0**-53, 2.0**-1022)
        if squared < CANCELLED * norms[label]:
            limit, squared, error = squared + 4.0 * error, np.inf, 0.0
            for c in range(C):
                if length * length + (norms[c] + scale * scores[i, c]) <= limit:
                    distance = distance_by_columns(rows, at[i], scale, centers.places.T, c, factors[c])
                    if distance < squared:
                        label, squared = c, distance
        labels[i], best[i] = label, squared + error


@twin
def label_rows(rows: Any, m: int, given: Any, centers: Any, block: Any) -> None:
    """Scores and labels of the m rows of a block. O(m · C · D) or O(nnz · C)."""
    engine, scales = block.engine, block.scales
    some = Given(given.weights, scales, given.offset, given.about, given.about_norm)
    block.found[:] = -1
    lower_block(rows, block.at[:m], block.order[:m], some, centers.nominees, 0, 0, engine, block.best, block.found)
    for k in range(m):
        block.lengths[k] = row_length(rows, block.at[k]) if scales.shape[0] else np.sqrt(np.float64(engine.squares[k]))


@label_rows.for_csr
def _label_rows(rows: Any, m: int, given: Any, centers: Any, block: Any) -> None:
    at = block.at[:m]
    column_scores(rows, at, centers.places, centers.factors, block.scores[:m], block.lengths)
    closest_by_scores(rows, at, block.scales, centers, block, block.best, block.found)


@twin
def score_of(rows: Any, i: int, c: int, scale: float, centers: Any, block: Any, square: float) -> float:
    """The score of a row of the block, as a squared distance; `square` is ‖x − offset‖²."""
    return np.float64(block.engine.table[i * centers.nominees.starts[1] + c])


@score_of.for_csr
def _score_of(rows: Any, i: int, c: int, scale: float, centers: Any, block: Any, square: float) -> float:
    return centers.norms[c] + scale * block.scores[i, c] + square


@kernel
def label_by_scores(
    queue: Queue,  # IN/OUT blocks of B rows
    some: Any,  # IN  a `BatchRows`, whose labels are OUT
    given: Any,  # IN  where the rows' offset is
    centers: Any,  # IN
    bounds: Any,  # OUT a `BoundState`
    kept: Any,  # OUT `RowProducts`, or empty
    block: Scratch,  # scratch
) -> None:
    """Rows against all centres: labels, and bounds if there are any. O(n · C · D) or O(nnz · C)."""
    n, B, numbers, at, scores = some.positions.shape[0], block.order.shape[0], block.numbers, block.at, block.scores
    for k in range(B):  # each thread has scratch memory of its own, of any content
        block.order[k] = k
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        for k in range(m):
            numbers[k] = some.batch[some.positions[begin + k]]
            at[k] = place_of(begin + k, numbers[k], some.places)
            if some.scales.shape[0]:
                block.scales[k] = some.scales[numbers[k]]
        label_rows(some.rows, m, given, centers, block)
        for k in range(m):
            i = some.positions[begin + k]
            if kept.own.shape[0]:
                kept.own[i] = -0.5 * scores[k, block.found[k]]
                kept.former[i] = -0.5 * scores[k, max(some.labels[i], 0)]
                kept.lengths[i] = block.lengths[k]
            some.labels[i] = block.found[k]
        if bounds.group_drift.shape[0]:
            bound_by_scores(some.rows, m, centers, block, bounds)
        begin = B * take_number(queue)


@kernel
def bound_by_scores(
    rows: Any,  # IN
    m: int,  # IN  rows of the block
    centers: Any,  # IN
    block: Any,  # IN  what `label_rows` has found
    bounds: Any,  # OUT upper and lower ones
) -> None:
    """Lines 22 and 26 of Alg. 5: bounds as tight as the scores allow. O(m · C)."""
    n_groups, C, D = bounds.group_drift.shape[0], bounds.group_of.shape[0], centers.n_columns
    least, lower, unit, tiny = block.least, bounds.lower, centers.unit, centers.tiny
    for i in range(m):
        r, label, row = block.numbers[i], block.found[i], block.at[i]
        scale = block.scales[i] if block.scales.shape[0] else 1.0
        length = scale * block.lengths[i]
        reach = length + centers.longest
        error = centers.slack + rounding(rows, row, reach, scale, D, unit, tiny)
        useless = not (4.0 * reach * reach * tiny < 1.0 and scale * tiny < 1.0)  # a score may overflow
        if n_groups == C:  # Elkan's: every centre is its own group
            for c in range(C):
                squared = score_of(rows, i, c, scale, centers, block, length * length) - error
                lower[r, c] = stored_lower(0.0 if useless else np.sqrt(max(squared, 0.0)), bounds.group_drift[c])
            lower[r, label] = LARGEST
        else:
            for g in range(n_groups):
                least[g] = np.inf
            for c in range(C):
                if c != label:
                    squared = score_of(rows, i, c, scale, centers, block, length * length) - error
                    least[bounds.group_of[c]] = min(least[bounds.group_of[c]], squared)
            for g in range(n_groups):
                lower[r, g] = stored_lower(0.0 if useless else np.sqrt(max(least[g], 0.0)), bounds.group_drift[g])
        reach = 2.0 * length + np.sqrt(block.best[i])
        own = np.sqrt(block.best[i] + centers.slack + rounding(rows, row, reach, scale, D, unit, tiny))
        bounds.upper[r] = stored_upper(own, bounds.drift[label])


# --- drivers ---------------------------------------------------------------------------------------------------------


def on_positions(
    shard: CpuShard,
    batch: I64,
    positions: I64,
    labels: Labels,
    work: Callable[[NDArray[np.int64], BatchRows, slice], None],
) -> None:
    """Call a kernel that takes blocks of some rows of the batch from a queue, once per thread; see `rows.on_rows`."""
    n = len(positions)
    if can_be_indexed(shard.rows):
        queue, rows = new_queue(), shard.rows.kernel_rows(0, shard.n_rows)
        some = BatchRows(positions, rows, NO_NUMBERS, batch, shard.scales, labels)
        share_kernel(lambda: work(queue, some, slice(0, n)), queue, min(shard.n_threads, 1 + n // ROWS_PER_THREAD))
        return

    def gathered(span: tuple[int, int]) -> None:
        part = slice(*span)
        rows, places = gather_rows(shard.rows, batch[positions[part]]), np.arange(span[1] - span[0])
        work(new_queue(), BatchRows(positions[part], rows, places, batch, shard.scales, labels), part)

    fitting = BYTES_AT_ONCE // (shard.rows.dtype.itemsize * max(1, shard.n_columns))
    size = min(GATHERED_AT_ONCE, max(1, fitting // ROWS_PER_SEARCH) * ROWS_PER_SEARCH)
    run_all(gathered, even_ranges(n, size), shard.n_threads)


@dataclass(frozen=True, slots=True)
class CenterScores:
    """Products of the rows of a shard with centres."""

    shard: CpuShard
    centers: ScoreCenters
    product: CellProduct | None = None
    """For dense rows."""
    kept: RowProducts | None = None
    """What votes will need, where the centres are kept column by column."""

    def label(self, batch: I64, positions: I64, labels: Labels, bounds: BoundState | None = None) -> None:
        """Write the closest centre of these rows of the batch to `labels`, and make their bounds."""
        shard, centers, state = self.shard, self.centers, bounds or _no_bounds()
        kept, is_dense = self.kept or RowProducts.empty(0), not isinstance(shard.rows, CSRRows)
        width = int(centers.nominees.starts[1]) if is_dense else centers.places.shape[1]

        def multiply(queue: NDArray[np.int64], some: BatchRows, _: slice) -> None:
            B = _rows_per_block(len(some.positions), width)
            engine = self.product.block(B, table=len(state.drift) > 0) if self.product is not None else ()
            block = ScoreBlock(
                engine, np.empty(B if len(shard.scales) else 0), np.empty((0 if is_dense else B, width)), np.empty(B),
                np.empty(B, dtype=np.int64), np.empty(B, dtype=np.int64), np.empty(B, dtype=np.int64), np.empty(B),
                np.empty(B, dtype=np.int32), np.empty(len(state.group_drift)),
            )  # fmt: skip
            label_by_scores(queue, some, shard.given, centers, state, kept, block)

        on_positions(self.shard, batch, positions, labels, multiply)


def _no_bounds() -> BoundState:
    floats = np.empty((0, 0), dtype=np.float32)
    return BoundState._make((*np.empty((3, 0), dtype=np.int64), *np.empty((2, 0)), floats.ravel(), floats))


def center_scores(shard: CpuShard, centers: F64 | ColumnMeans, n_rows: int) -> CenterScores:
    """The scores that suit the rows, for a batch of `n_rows`."""
    if not isinstance(shard.rows, CSRRows):
        assert not isinstance(centers, ColumnMeans)
        return _dense(shard, np.ascontiguousarray(centers, dtype=np.float64))
    if isinstance(centers, ColumnMeans):
        return CenterScores(shard, _by_columns(centers), None, RowProducts.empty(n_rows))
    return CenterScores(shard, _by_columns(column_means(np.ascontiguousarray(centers), shard.n_threads)))


def _dense(shard: CpuShard, centers: F64) -> CenterScores:
    with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
        product = CellProduct(shard, centers)
    nominees, info, none = product.nominees, np.finfo(shard.dtype), np.empty(0)
    unit = float(info.eps) / 2
    longest = np.sqrt(float(nominees.score_norms[: len(centers)].max()) * (1.0 + 4.0 * unit))
    scored = ScoreCenters(nominees, NO_TABLE, none, none, centers.shape[1], longest, 0.0, unit, float(info.tiny))
    return CenterScores(shard, scored, product)


def _by_columns(means: ColumnMeans) -> ScoreCenters:
    longest, slack = float(np.sqrt(means.norms.max())), means.norm_share * float(means.norms.max())
    return ScoreCenters((), means.places, means.norms, means.factors, 0, longest, slack, 2.0**-53, 2.0**-1022)


def _rows_per_block(n_rows: int, width: int) -> int:
    """Fewer for a small batch, so that there is a block for every thread; threads play no part."""
    return min(ROWS_PER_PRODUCT, max(16, SCORES_PER_BLOCK // width), max(ROWS_PER_THREAD // 2, n_rows // BLOCKS))
