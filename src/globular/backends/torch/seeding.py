"""Triton kernel: k-means++ inside cells, every cell by a program of its own."""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0.6180339887498949)
"""Added to a number between 0 and 1, it gives another one far from it, again and again."""


@triton.jit
def seed_cells(
    x,  # IN  (N, D) float32 rows, cell by cell
    weights,  # IN  (N,) float64, if WEIGHTED
    starts,  # IN  (cells + 1,) where the rows of each cell begin
    firsts,  # IN  (cells + 1,) where the seeds of each cell begin
    uniforms,  # IN  (seeds,) float64
    d2,  # IN/OUT (N,) float32 ones: squared distance to the closest seed of the cell
    chosen,  # IN/OUT (seeds,) int64, −1: the rows that are drawn
    n_columns,
    WEIGHTED: tl.constexpr,
    BATCH: tl.constexpr,
    SCAN: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    N_CHUNKS: tl.constexpr,
):
    """Draw rows by D² in rounds, in each half as many as there are seeds, BATCH at most. O(rows · seeds · D) a cell."""
    begin = tl.load(starts + tl.program_id(0)).to(tl.int32)
    end = tl.load(starts + tl.program_id(0) + 1).to(tl.int32)
    first = tl.load(firsts + tl.program_id(0)).to(tl.int32)
    n_wanted = tl.load(firsts + tl.program_id(0) + 1).to(tl.int32) - first
    slots = tl.arange(0, BATCH)
    n_found = n_wanted * 0
    n_drawn = n_wanted * 0
    n_rounds = n_wanted * 0
    total = _total(weights, begin, end, WEIGHTED, SCAN)
    # a round finds at least one seed; more rounds than seeds are for what rounding may do
    while (n_found < n_wanted) & (total > 0.0) & (n_rounds < 2 * n_wanted + 8):
        n_more = tl.minimum(tl.minimum(n_wanted - n_found, tl.maximum(n_found // 2, 1)), BATCH)
        is_drawn = slots < n_more
        place = n_drawn + slots
        share = tl.load(uniforms + first + place % n_wanted, mask=is_drawn, other=0.0)
        share += (place // n_wanted).to(tl.float64) * GOLDEN  # numbers that were used before
        rows = _at_masses((share - tl.floor(share)) * total, d2, weights, begin, end, WEIGHTED, BATCH, SCAN)
        is_new = is_drawn & (tl.load(d2 + rows, mask=is_drawn, other=0.0) > 0.0)
        is_new &= _are_first(x, rows, n_more, n_columns, BATCH, CHUNK, N_CHUNKS)
        at = first + n_found + tl.cumsum(is_new.to(tl.int32), axis=0) - 1
        tl.store(chosen + at, rows.to(tl.int64), mask=is_new)
        tl.debug_barrier()
        total = _come_closer(
            x, weights, d2, chosen + first + n_found, tl.sum(is_new.to(tl.int32), axis=0), n_found == 0, begin, end,
            n_columns, WEIGHTED, ROWS, CHUNK, N_CHUNKS,
        )  # fmt: skip
        tl.debug_barrier()
        n_found += tl.sum(is_new.to(tl.int32), axis=0)
        n_drawn += n_more
        n_rounds += 1


@triton.jit
def _total(weights, begin, end, WEIGHTED: tl.constexpr, SCAN: tl.constexpr):
    """Σ w of the rows of a cell."""
    total = (end - begin).to(tl.float64)
    if WEIGHTED:
        sums = tl.zeros((SCAN,), tl.float64)
        for tile in range(begin, end, SCAN):
            row = tile + tl.arange(0, SCAN)
            sums += tl.load(weights + row, mask=row < end, other=0.0)
        total = tl.sum(sums, axis=0)
    return total


@triton.jit
def _at_masses(targets, d2, weights, begin, end, WEIGHTED: tl.constexpr, BATCH: tl.constexpr, SCAN: tl.constexpr):
    """The rows at which the running sum of w d² first exceeds each target; not past the last that weighs anything."""
    n_below = tl.zeros((BATCH,), tl.int32)
    last = begin
    before = tl.sum(tl.zeros((BATCH,), tl.float64), axis=0)
    for tile in range(begin, end, SCAN):
        row = tile + tl.arange(0, SCAN)
        share = tl.load(d2 + row, mask=row < end, other=0.0).to(tl.float64)
        if WEIGHTED:
            share *= tl.load(weights + row, mask=row < end, other=0.0)
        sums = before + tl.cumsum(share, axis=0)
        is_below = (sums[None, :] <= targets[:, None]) & (row < end)[None, :]
        n_below += tl.sum(is_below.to(tl.int32), axis=1)
        last = tl.maximum(last, tl.max(tl.where(share > 0.0, row, begin), axis=0))
        before += tl.sum(share, axis=0)
    return tl.minimum(begin + n_below, last)


@triton.jit
def _are_first(x, rows, n, n_columns, BATCH: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr):
    """Which of n rows are equal to none before them."""
    slots = tl.arange(0, BATCH)
    is_first = slots >= 0
    for k in range(n - 1):
        row = tl.sum(tl.where(slots == k, rows, 0), axis=0)
        squared = tl.zeros((BATCH,), tl.float32)
        for chunk in range(N_CHUNKS):
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            apart = tl.load(
                x + rows.to(tl.int64)[:, None] * n_columns + columns[None, :],
                mask=columns[None, :] < n_columns,
                other=0.0,
            )
            apart -= tl.load(x + row.to(tl.int64) * n_columns + columns, mask=columns < n_columns, other=0.0)[None, :]
            squared += tl.sum(apart * apart, axis=1)
        is_first &= (squared > 0.0) | (slots <= k)
    return is_first


@triton.jit
def _come_closer(
    x, weights, d2, seeds, n_seeds, anew, begin, end, n_columns,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Squared distances to the closest of the seeds so far and of these, or of these alone; returns Σ w d²."""
    errors = tl.zeros((ROWS,), tl.float64)
    for tile in range(begin, end, ROWS):
        row = tile + tl.arange(0, ROWS)
        is_row = row < end
        best = tl.load(d2 + row, mask=is_row, other=0.0)
        best = tl.where(anew, 3e38, best)
        columns = tl.arange(0, CHUNK)
        base = row.to(tl.int64)[:, None] * n_columns
        seen = tl.load(x + base + columns[None, :], mask=is_row[:, None] & (columns[None, :] < n_columns), other=0.0)
        for k in range(n_seeds):
            seed = tl.load(seeds + k) * n_columns
            apart = seen - tl.load(x + seed + columns, mask=columns < n_columns, other=0.0)[None, :]
            squared = tl.sum(apart * apart, axis=1)
            for chunk in range(1, N_CHUNKS):
                at = chunk * CHUNK + columns
                apart = tl.load(x + base + at[None, :], mask=is_row[:, None] & (at[None, :] < n_columns), other=0.0)
                apart -= tl.load(x + seed + at, mask=at < n_columns, other=0.0)[None, :]
                squared += tl.sum(apart * apart, axis=1)
            best = tl.minimum(best, squared)
        tl.store(d2 + row, best, mask=is_row)
        error = tl.where(is_row, best, 0.0).to(tl.float64)
        if WEIGHTED:
            error *= tl.load(weights + row, mask=is_row, other=0.0)
        errors += error
    return tl.sum(errors, axis=0)
