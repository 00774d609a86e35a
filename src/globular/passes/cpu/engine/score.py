"""Scores of a block of rows with some centres: −2 x·(m − offset), a squared distance once two squares are added."""

from __future__ import annotations

from typing import Any, NamedTuple

from globular.jit import inline, kernel
from globular.jit.blas import multiply, multiply_rows
from globular.jit.memory import prefetch_row
from globular.passes.cpu.engine.rows import AHEAD, copy_row, length, multiply_csr_row, row_length


class Visit(NamedTuple):
    """Rows in tasks, each of which visits one cell of centres."""

    tasks: Any  # (T, 3) (cell, begin, end): the rows order[begin:end] visit this cell
    rows: Any  # see `engine.rows`
    order: Any  # (N,) row numbers in the order of tasks
    places: Any  # (N,) where these lie in `rows`
    scales: Any  # by row number, or empty
    offset: Any  # (D,) subtracted from dense rows, or empty


class ScoredCenters(NamedTuple):
    """Centres in the order of their cells, ready to be scored."""

    starts: Any  # (cells + 1,) cell g has the positions starts[g] … starts[g + 1] − 1
    members: Any  # (C,) the centre at each position
    factors: Any  # −2 (m − offset) by position: (C, D) for BLAS, (D, C) for CSR rows and few columns
    score_norms: Any  # (C,) ‖m − offset‖² by position, in the scores' dtype
    centers: Any  # (C, D) float64
    norms: Any  # (C,) ‖m‖² float64
    base: int  # the label of centre 0
    across: int  # 0 where factors of dense rows are (C, D); 1 where they are (D, C), for few columns; 2 for BLAS, with
    # all centres at once
    unit: float  # unit round-off of the scores
    tiny: float  # their smallest normal number


class Workspace(NamedTuple):
    """Memory of a thread for a block of B rows."""

    seen: Any  # (B, D) the rows about the offset
    scores: Any  # as a line: a block has as many rows as there is room for
    lengths: Any  # (B,) ‖x − offset‖
    at: Any  # (B,) int64
    keys: Any  # integers as wide as a score
    winners: Any  # integers as wide as a score


@inline
def few_columns_scores(x: Any, i: int, factors: Any, first: int, line: Any) -> None:
    """line = x_i · factors[:, first …], four columns at a time: BLAS would mostly pack and unpack. O(D · width)."""
    D = x.shape[1]
    head = D - (D - 1) // 4 * 4  # 1 to 4 columns, of which the first sum is made
    a, of_a = x[i, 0], factors[0, first:]
    b, of_b = x[i, min(1, head - 1)], factors[min(1, head - 1), first:]
    d, of_d = x[i, min(2, head - 1)], factors[min(2, head - 1), first:]
    if head == 1:
        for c in range(line.shape[0]):
            line[c] = a * of_a[c]
    elif head == 2:
        for c in range(line.shape[0]):
            line[c] = a * of_a[c] + b * of_b[c]
    elif head == 3:
        for c in range(line.shape[0]):
            line[c] = a * of_a[c] + b * of_b[c] + d * of_d[c]
    else:
        e, of_e = x[i, 3], factors[3, first:]
        for c in range(line.shape[0]):
            line[c] = (a * of_a[c] + b * of_b[c]) + (d * of_d[c] + e * of_e[c])
    for j in range(head, D, 4):
        a, b, d, e = x[i, j], x[i, j + 1], x[i, j + 2], x[i, j + 3]
        of_a, of_b = factors[j, first:], factors[j + 1, first:]
        of_d, of_e = factors[j + 2, first:], factors[j + 3, first:]
        for c in range(line.shape[0]):
            line[c] += (a * of_a[c] + b * of_b[c]) + (d * of_d[c] + e * of_e[c])


@kernel
def score_block(
    rows: Any,  # IN
    at: Any,  # IN  (m,) where each row lies
    offset: Any,  # IN  (D,) or empty
    centers: Any,  # IN
    first: int,  # IN  position of the first centre
    scratch: Any,  # OUT the lengths of the rows
    scores: Any,  # OUT (m, width)
) -> None:
    """Scores of a block of rows with some centres. O(m · width · D) or O(nnz · width)."""
    m, width = scores.shape
    if len(rows) > 1:
        for k in range(m):
            scratch.lengths[k] = row_length(rows, at[k])
            multiply_csr_row(rows, at[k], 1.0, centers.factors, first, scores[k])
    else:
        for k in range(m):
            if k + AHEAD < m:
                prefetch_row(rows[0], at[k + AHEAD])
            copy_row(rows[0], at[k], offset, scratch.seen, k)
            scratch.lengths[k] = length(scratch.seen[k], 0, scratch.seen.shape[1])
        if centers.across == 2:
            multiply(scratch.seen, centers.factors, scores)
        elif centers.across == 1:
            for k in range(m):
                few_columns_scores(scratch.seen, k, centers.factors, first, scores[k])
        else:
            multiply_rows(scratch.seen, 0, m, centers.factors, first, width, scores)
