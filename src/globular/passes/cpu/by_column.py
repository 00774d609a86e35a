"""Centres column by column for sparse rows, and the votes that change them; see `model.columns`."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import kernel
from globular.jit.vectors import LINE
from globular.model.columns import ColumnMeans
from globular.model.statistics import F64
from globular.passes.cpu.grouped import count_up_to
from globular.passes.cpu.rows import aligned_zeros
from globular.passes.cpu.shard import CpuShard
from globular.seam.passes import ByColumn, CastBallots
from globular.threads import even_ranges, ordered_map

COLUMNS_PER_TASK = 4096
COLUMN_PARTS, ROWS_WORTH_PARTS = 2, 256  # parts of the columns that sums are made in, and rows from which they are


@kernel
def transpose_centers(
    centers: Any,  # IN  (C, D)
    begin: int,  # IN  columns begin … end − 1
    end: int,  # IN
    places: Any,  # OUT (D, ≥ C); further entries are left as they are
    squares: Any,  # OUT (C,) the squared length of these columns
) -> None:
    """Centres column by column. O(C · columns)."""
    squares[:] = 0.0
    for first in range(begin, end, 8):
        for c in range(centers.shape[0]):
            for j in range(first, min(first + 8, end)):
                squares[c] += centers[c, j] * centers[c, j]
                places[j, c] = centers[c, j]


@kernel
def add_ballots(
    rows: Any,  # IN
    at: Any,  # IN  (n,) which rows
    labels: Any,  # IN  (n,) the clusters that they join or leave
    factors: Any,  # IN  (n,) ± w s
    void: Any,  # IN  (C,) clusters that take no votes now
    first: int,  # IN  columns first … last − 1
    last: int,  # IN
    places: Any,  # IN/OUT (D, ≥ C) the sums
    gains: Any,  # OUT (C,) what their squared lengths gain
    errors: Any,  # OUT (C,) by how much rounding may have spoilt that
) -> None:
    """Add rows to the sums of their clusters, in some columns. O(nnz)."""
    gains[:] = 0.0
    errors[:] = 0.0
    for i in range(at.shape[0]):
        c = labels[i]
        if void[c]:
            continue
        begin, end = rows[2][at[i]], rows[2][at[i] + 1]
        gain, size = 0.0, 0.0
        columns = rows[1][begin:end]
        for k in range(begin + count_up_to(columns, first - 1), begin + count_up_to(columns, last - 1)):
            j = rows[1][k]
            step, old = factors[i] * rows[0][k], places[j, c]
            places[j, c] = old + step
            gain += step * (2.0 * old + step)
            reach = abs(old) + abs(step)
            size += reach * reach
        gains[c] += gain
        errors[c] += (end - begin + 8.0) * 2.0**-52 * size


def column_means(centers: F64, n_threads: int) -> ColumnMeans:
    """Centres (k, D) by column."""
    k, D = centers.shape
    places = aligned_zeros((D, -(-k // LINE) * LINE), np.float64)

    def transpose(span: tuple[int, int]) -> F64:
        squares = np.empty(k)
        transpose_centers(centers, *span, places, squares)
        return squares

    squares = sum(ordered_map(transpose, even_ranges(D, COLUMNS_PER_TASK), n_threads), np.zeros(k))
    return ColumnMeans(places, np.ones(k), squares, np.zeros(k))


@CpuShard.implements(ByColumn)
def by_column(shard: CpuShard, work: ByColumn) -> ColumnMeans:
    return column_means(np.ascontiguousarray(work.centers), shard.n_threads)


@CpuShard.implements(CastBallots)
def cast_ballots(shard: CpuShard, work: CastBallots) -> F64:
    """Each thread adds in its own columns."""
    means, ballots = work.centers, work.ballots
    k, D = means.shape
    n_parts = COLUMN_PARTS if len(ballots.at) >= ROWS_WORTH_PARTS else 1

    def cast(columns: tuple[int, int]) -> tuple[F64, F64]:
        gains, errors = np.empty(k), np.empty(k)
        add_ballots(
            ballots.rows, ballots.at, ballots.labels, ballots.factors, work.void, *columns, means.places, gains, errors
        )  # fmt: skip
        return gains, errors

    gains = np.zeros(k)
    for gain, errors in ordered_map(cast, even_ranges(D, -(-D // n_parts)), shard.n_threads):
        gains += gain
        means.errors += errors
    means.squares += gains
    if (means.errors > means.norm_share * means.squares).any():
        np.einsum("jc,jc->c", means.places[:, :k], means.places[:, :k], out=means.squares)
        means.errors[:] = 0.0
    return gains
