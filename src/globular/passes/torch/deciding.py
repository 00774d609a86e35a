"""Triton kernel: which of a few candidates of every row is the closest, by differences in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from globular.passes.torch.nominating import FAR, slack_of_scores, some_columns


@triton.jit(do_not_specialize=["n_rows", "n_candidates"])  # or each number is compiled anew
def decide(
    x,  # IN  (N, D) rows as they lie
    scales,  # IN  (N,) float32, if there are any
    weights,  # IN  (N,) float64, if WEIGHTED
    centers,  # IN  (C, D) float32
    candidates,  # IN  (N, n_candidates) int32; −1 is nobody
    scores,  # IN  (N, n_candidates) float32, if they are SCORED
    extent,  # IN  (2,) float32: see `prepare`
    labels,  # IN/OUT (N,) int32; what they were before is the first candidate, if KEEP
    d2,  # OUT (N,) float32
    tally,  # OUT (programs, 2) float64: Σ w d², and how many labels changed
    n_rows,
    n_columns,
    n_candidates,
    rounding,  # of a sum of D products
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCORED: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    N_CHUNKS: tl.constexpr,
):
    """The closest candidate of every row by differences, and its squared distance.

    Of several that are equally close the lowest number, but with KEEP a row keeps its label. With scores, candidates
    that cannot be the closest are not looked at. O(N · candidates · D).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_rows
    stretch = tl.full((ROWS,), 1.0, tl.float32)
    if SCALED:
        stretch = tl.load(scales + row, mask=is_row, other=0.0)
    seen = _stretched(x, row, is_row, stretch, tl.arange(0, CHUNK), n_columns)
    limit = tl.full((ROWS,), FAR, tl.float32)
    if SCORED:
        length = _lengths(x, seen, row, is_row, stretch, n_columns, CHUNK, N_CHUNKS)
        for k in range(n_candidates):
            limit = tl.minimum(limit, tl.load(scores + row * n_candidates + k, mask=is_row, other=0.0))
        limit += slack_of_scores(length, limit, extent, rounding)
    former = tl.load(labels + row, mask=is_row, other=-1)
    best = tl.full((ROWS,), float("inf"), tl.float32)
    label = tl.full((ROWS,), -1, tl.int32)
    own = label
    if KEEP:
        best = _squared_distance(
            x, seen, row, is_row, stretch, centers, former, former >= 0, n_columns, CHUNK, N_CHUNKS
        )
        best = tl.where(former >= 0, best, float("inf"))
        label = former
        own = former
    for k in range(n_candidates):
        candidate = tl.load(candidates + row * n_candidates + k, mask=is_row, other=-1)
        counts = (candidate >= 0) & is_row
        if SCORED:
            counts &= tl.load(scores + row * n_candidates + k, mask=is_row, other=0.0) <= limit
        if KEEP:
            counts &= candidate != former
        squared = _squared_distance(
            x, seen, row, is_row, stretch, centers, candidate, counts, n_columns, CHUNK, N_CHUNKS
        )
        better = (squared < best) | ((squared == best) & (candidate < label) & (label != own))
        better &= counts
        best = tl.where(better, squared, best)
        label = tl.where(better, candidate, label)
    tl.store(labels + row, label, mask=is_row)
    tl.store(d2 + row, best, mask=is_row)
    _store_tally(tally, weights, row, is_row, best, label != former, WEIGHTED)


@triton.jit
def _store_tally(tally, weights, row, is_row, squared, changed, WEIGHTED: tl.constexpr):
    """The errors of a program's rows, and how many of them changed."""
    error = tl.where(is_row, squared, 0.0).to(tl.float64)
    if WEIGHTED:
        error *= tl.load(weights + row, mask=is_row, other=0.0)
    tl.store(tally + tl.program_id(0) * 2, tl.sum(error, axis=0))
    tl.store(tally + tl.program_id(0) * 2 + 1, tl.sum((is_row & changed).to(tl.float64), axis=0))


@triton.jit
def _stretched(x, row, is_row, stretch, columns, n_columns):
    """Some columns of rows as passes see them."""
    return some_columns(x, row, is_row, columns, n_columns).to(tl.float32) * stretch[:, None]


@triton.jit
def _lengths(x, seen, row, is_row, stretch, n_columns, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr):
    """‖x‖ of rows as passes see them, whose first columns are at hand."""
    squares = tl.sum(seen * seen, axis=1)
    for chunk in range(1, N_CHUNKS):
        more = _stretched(x, row, is_row, stretch, chunk * CHUNK + tl.arange(0, CHUNK), n_columns)
        squares += tl.sum(more * more, axis=1)
    return tl.sqrt(squares)


@triton.jit
def _squared_distance(
    x, seen, row, is_row, stretch, centers, number, counts, n_columns, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr
):
    """‖x − m‖² of every row and the centre of a number, where it counts."""
    columns = tl.arange(0, CHUNK)
    base = centers + number.to(tl.int64)[:, None] * n_columns
    difference = seen - tl.load(
        base + columns[None, :], mask=counts[:, None] & (columns[None, :] < n_columns), other=0.0
    )
    squared = tl.sum(difference * difference, axis=1)
    for chunk in range(1, N_CHUNKS):
        at = chunk * CHUNK + columns
        more = _stretched(x, row, is_row, stretch, at, n_columns)
        more -= tl.load(base + at[None, :], mask=counts[:, None] & (at[None, :] < n_columns), other=0.0)
        squared += tl.sum(more * more, axis=1)
    return squared
