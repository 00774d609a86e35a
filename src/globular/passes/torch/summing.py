"""Triton kernels: sums of rows in cluster order, and of the entries of all K(n) in the order of components, in float64.

No kernel adds floating-point numbers atomically, so the same input gives the same bits. Long clusters, and large
components, are cut: blocks of what is sorted that lie inside one are summed side by side, and added in order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _add_rows(
    x, factors, weights, d2, order, begin, end, columns, n_columns, sums, count, errors, WEIGHTED: tl.constexpr,
    WITH_ERRORS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add the rows order[begin:end] to sums (ROWS, columns), and what they weigh and miss to (ROWS,) numbers each.

    Every ROWS-th row goes to the same place: the threads of a program add side by side, and only once to each other.
    """
    for first in range(begin, end, ROWS):
        at = first + tl.arange(0, ROWS)
        is_row = at < end
        row = tl.load(order + at, mask=is_row, other=0).to(tl.int64)
        seen = tl.load(
            x + row[:, None] * n_columns + columns[None, :],
            mask=is_row[:, None] & (columns[None, :] < n_columns),
            other=0,
        ).to(tl.float64)
        share = is_row.to(tl.float64)
        if WEIGHTED:
            seen = seen * tl.load(factors + row, mask=is_row, other=0.0)[:, None]
            share = tl.load(weights + row, mask=is_row, other=0.0)
        sums += seen
        count += share
        if WITH_ERRORS:
            errors += share * tl.load(d2 + row, mask=is_row, other=0.0).to(tl.float64)
    return sums, count, errors


@triton.jit
def sum_blocks(
    x,  # IN  (N, D) rows as they lie
    factors,  # IN  (N,) float64 weight times scale, if WEIGHTED
    weights,  # IN  (N,) float64, if WEIGHTED
    d2,  # IN  (N,), if WITH_ERRORS
    order,  # IN  (n,) rows by cluster
    labels,  # IN  (n,) their clusters, ascending
    out,  # OUT (blocks, D + 2) float64: Σ w x, Σ w, Σ w d²
    n_columns,
    WEIGHTED: tl.constexpr,
    WITH_ERRORS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums of those blocks of sorted rows that lie inside one cluster: long clusters are cut. O(N · D)."""
    block = tl.program_id(0)
    if tl.load(labels + block * BLOCK) != tl.load(labels + block * BLOCK + BLOCK - 1):
        return
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    sums, count, errors = _add_rows(
        x, factors, weights, d2, order, block * BLOCK, block * BLOCK + BLOCK, columns, n_columns,
        tl.zeros((ROWS, CHUNK), tl.float64), tl.zeros((ROWS,), tl.float64), tl.zeros((ROWS,), tl.float64),
        WEIGHTED, WITH_ERRORS, ROWS,
    )  # fmt: skip
    base = out + block.to(tl.int64) * (n_columns + 2)
    tl.store(base + columns, tl.sum(sums, axis=0), mask=columns < n_columns)
    tl.store(base + n_columns, tl.sum(count, axis=0))
    tl.store(base + n_columns + 1, tl.sum(errors, axis=0))


@triton.jit
def sum_clusters(
    x,  # IN  as in `sum_blocks`, with
    factors,
    weights,
    d2,
    order,
    starts,  # IN  (C + 1,) where the rows of each cluster begin in `order`
    blocks,  # IN  what `sum_blocks` has found
    out,  # OUT (C, D + 2) float64
    n_columns,
    WEIGHTED: tl.constexpr,
    WITH_ERRORS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The sums of every cluster: rows before its first whole block, whole blocks, rows after the last. O(N · D)."""
    cluster = tl.program_id(0)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    begin = tl.load(starts + cluster)
    end = tl.load(starts + cluster + 1)
    first_block = (begin + BLOCK - 1) // BLOCK
    last_block = end // BLOCK
    is_cut = first_block < last_block
    head = tl.where(is_cut, first_block * BLOCK, end)
    sums, count, errors = _add_rows(
        x, factors, weights, d2, order, begin, head, columns, n_columns,
        tl.zeros((ROWS, CHUNK), tl.float64), tl.zeros((ROWS,), tl.float64), tl.zeros((ROWS,), tl.float64),
        WEIGHTED, WITH_ERRORS, ROWS,
    )  # fmt: skip
    whole = tl.zeros((CHUNK,), tl.float64)
    both = tl.zeros((2,), tl.float64)
    if is_cut:
        for block in range(first_block, last_block):
            base = blocks + block * (n_columns + 2)
            whole += tl.load(base + columns, mask=columns < n_columns, other=0.0)
            both += tl.load(base + n_columns + tl.arange(0, 2))
        sums, count, errors = _add_rows(
            x, factors, weights, d2, order, last_block * BLOCK, end, columns, n_columns, sums, count, errors,
            WEIGHTED, WITH_ERRORS, ROWS,
        )  # fmt: skip
    base = out + cluster.to(tl.int64) * (n_columns + 2)
    tl.store(base + columns, whole + tl.sum(sums, axis=0), mask=columns < n_columns)
    if tl.program_id(1) == 0:
        is_count = tl.arange(0, 2) == 0
        both += tl.where(is_count, tl.sum(count, axis=0), tl.sum(errors, axis=0))
        tl.store(base + n_columns + tl.arange(0, 2), both)


@triton.jit
def _add_entries(
    x, shares, order, begin, end, mean, columns, n_columns, count, sums, squares, KEPT: tl.constexpr, ROWS: tl.constexpr
):
    """Add the entries order[begin:end] of one component to (ROWS,) shares, and (ROWS, columns) sums and squares."""
    for first in range(begin, end, ROWS):
        at = first + tl.arange(0, ROWS)
        is_entry = at < end
        entry = tl.load(order + at, mask=is_entry, other=0).to(tl.int64)
        share = tl.load(shares + entry, mask=is_entry, other=0.0)
        is_number = is_entry[:, None] & (columns[None, :] < n_columns)
        seen = tl.load(x + (entry // KEPT)[:, None] * n_columns + columns[None, :], mask=is_number, other=0)
        away = tl.where(is_number, seen.to(tl.float64) - mean[None, :], 0.0)
        weighted = share[:, None] * away
        count += share
        sums += weighted
        squares += weighted * away
    return count, sums, squares


@triton.jit
def sum_entry_blocks(
    x,  # IN  (N, D) rows as they lie
    shares,  # IN  (N · KEPT,) float64
    means,  # IN  (C, D) float64
    order,  # IN  (entries,) by component: entry e is of row e // KEPT
    keys,  # IN  (entries,) their components, ascending; C is nobody
    out,  # OUT (blocks, 2 D + 1) float64: Σ q, Σ q (x − μ), Σ q (x − μ)²
    n_components,
    n_columns,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums of those blocks of entries that lie inside one component: large components are cut. O(entries · D)."""
    block = tl.program_id(0)
    component = tl.load(keys + block * BLOCK).to(tl.int64)
    is_whole = component == tl.load(keys + block * BLOCK + BLOCK - 1).to(tl.int64)
    if is_whole & (component < n_components):
        columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        is_column = columns < n_columns
        mean = tl.load(means + component * n_columns + columns, mask=is_column, other=0.0)
        count, sums, squares = _add_entries(
            x, shares, order, block * BLOCK, block * BLOCK + BLOCK, mean, columns, n_columns,
            tl.zeros((ROWS,), tl.float64), tl.zeros((ROWS, CHUNK), tl.float64), tl.zeros((ROWS, CHUNK), tl.float64),
            KEPT, ROWS,
        )  # fmt: skip
        base = out + block.to(tl.int64) * (2 * n_columns + 1)
        tl.store(base, tl.sum(count, axis=0))
        tl.store(base + 1 + columns, tl.sum(sums, axis=0), mask=is_column)
        tl.store(base + 1 + n_columns + columns, tl.sum(squares, axis=0), mask=is_column)


@triton.jit
def sum_entries(
    x,  # IN  as in `sum_entry_blocks`, with
    shares,
    means,
    order,
    starts,  # IN  (C + 1,) where the entries of each component begin in `order`
    blocks,  # IN  what `sum_entry_blocks` has found
    out,  # OUT (C, 2 D + 1) float64
    n_columns,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The sums of every component: entries before its first whole block, whole blocks, entries after the last."""
    component = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    is_column = columns < n_columns
    mean = tl.load(means + component * n_columns + columns, mask=is_column, other=0.0)
    begin = tl.load(starts + component)
    end = tl.load(starts + component + 1)
    first_block = (begin + BLOCK - 1) // BLOCK
    last_block = end // BLOCK
    is_cut = first_block < last_block
    head = tl.where(is_cut, first_block * BLOCK, end)
    count, sums, squares = _add_entries(
        x, shares, order, begin, head, mean, columns, n_columns, tl.zeros((ROWS,), tl.float64),
        tl.zeros((ROWS, CHUNK), tl.float64), tl.zeros((ROWS, CHUNK), tl.float64), KEPT, ROWS,
    )  # fmt: skip
    whole = tl.zeros((1,), tl.float64)
    whole_sums = tl.zeros((CHUNK,), tl.float64)
    whole_squares = tl.zeros((CHUNK,), tl.float64)
    if is_cut:
        for block in range(first_block, last_block):
            base = blocks + block * (2 * n_columns + 1)
            whole += tl.load(base + tl.arange(0, 1))
            whole_sums += tl.load(base + 1 + columns, mask=is_column, other=0.0)
            whole_squares += tl.load(base + 1 + n_columns + columns, mask=is_column, other=0.0)
        count, sums, squares = _add_entries(
            x, shares, order, last_block * BLOCK, end, mean, columns, n_columns, count, sums, squares, KEPT, ROWS
        )
    base = out + component * (2 * n_columns + 1)
    if tl.program_id(1) == 0:
        tl.store(base + tl.arange(0, 1), whole + tl.sum(count, axis=0))
    tl.store(base + 1 + columns, whole_sums + tl.sum(sums, axis=0), mask=is_column)
    tl.store(base + 1 + n_columns + columns, whole_squares + tl.sum(squares, axis=0), mask=is_column)
