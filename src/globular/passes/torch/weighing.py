"""Triton kernels that decide: which of a few candidates of every row is the closest, by differences in float32; and of
truncated mixtures, who is nominated in a cell, and who stays in K(n).

A cost is −2 log p(c, x) of a mixture with diagonal covariances, Σ_j precision_cj (x_j − μ_cj)² + bias_c; lower is
better. Products in tf32 about the middle of a cell *nominate* its best components; float64 costs decide, and K(n) only
ever exchanges a component for a better one. The same in plain torch, the oracle, is in `plain`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from globular.passes.torch.nominating import FAR, NOBODY, TILE, keep_few, slack_of_scores, some_columns


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


DOUBT = tl.constexpr(1e-2)
"""A nominee may cost less than its score by this share of it."""


@triton.jit
def _ordered(bits):
    """The bits of floats as whole numbers in the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _about(x, offset, row, is_row, columns, n_columns):
    """Some columns of rows about the offset, float32."""
    is_number = is_row[:, None] & (columns[None, :] < n_columns)
    seen = tl.load(x + row[:, None] * n_columns + columns[None, :], mask=is_number, other=0)
    middle = tl.load(offset + columns, mask=columns < n_columns, other=0.0)
    return tl.where(is_number, (seen.to(tl.float64) - middle[None, :]).to(tl.float32), 0.0)


@triton.jit(do_not_specialize=["n_items"])  # or each number is compiled anew
def nominate_components(
    x,  # IN  (N, D) rows as they lie
    offsets,  # IN  (cells, D) float64: costs are taken about the middle of a cell, where little cancels
    pulls,  # IN  (C, WIDTH) float32: −2 precision (μ − offset), components in the order of their cells
    curves,  # IN  (C, WIDTH) float32 precisions, or (C,) where columns share one
    norms,  # IN  (C,) float32: what a cost has that is the same for all rows
    members,  # IN  (C,) their numbers
    order,  # IN  (items,) numbers of items by their cells
    cells,  # IN  (items,) the cells of those, in ascending order
    starts,  # IN  (cells + 1,) where the components of each cell begin
    scores,  # OUT (items, KEPT) float32, costs up to rounding
    found,  # OUT (items, KEPT) int32; −1 where there is nobody
    n_items,
    n_columns,
    per_row,  # items of a row: item i is of row i // per_row
    BY_COLUMN: tl.constexpr,
    KEPT: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The best components of every item's cell. O(items · components of a cell · D)."""
    first = tl.program_id(0) * ROWS
    at = first + tl.arange(0, ROWS)
    is_item = at < n_items
    item = tl.load(order + at, mask=is_item, other=0).to(tl.int32)
    own_cell = tl.load(cells + at, mask=is_item, other=-1).to(tl.int32)
    row = (item // per_row).to(tl.int64)
    columns = tl.arange(0, CHUNK)
    kept = (tl.full((ROWS, SLOTS), NOBODY, tl.int64) << 32) + tl.arange(0, SLOTS)[None, :]
    for cell in range(tl.load(cells + first).to(tl.int32), tl.max(own_cell, axis=0) + 1):
        is_here = own_cell == cell
        begin = tl.load(starts + cell).to(tl.int32)
        end = tl.load(starts + cell + 1).to(tl.int32)
        if tl.max(is_here.to(tl.int32), axis=0) == 0:
            end = begin
        offset = offsets + cell * n_columns
        seen = _about(x, offset, row, is_here, columns, n_columns)
        squares = tl.sum(seen * seen, axis=1)
        if not BY_COLUMN:
            for chunk in range(CHUNK, WIDTH, CHUNK):
                more = _about(x, offset, row, is_here, chunk + columns, n_columns)
                squares += tl.sum(more * more, axis=1)
        for tile in range(begin, end, TILE):
            keys = _keys_of_tile(
                x, seen, squares, offset, row, is_here, pulls, curves, norms, tile, end, n_columns, BY_COLUMN, ROWS,
                WIDTH, CHUNK,
            )  # fmt: skip
            kept = keep_few(kept, keys, tile, is_here, KEPT)
    out = item.to(tl.int64) * KEPT
    for k in range(KEPT):
        best = tl.min(kept, axis=1)
        kept = tl.where(kept == best[:, None], 0x7FFFFFFFFFFFFFFF, kept)
        score = _ordered((best >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        is_one = is_item & (score < 1e37)
        number = tl.load(members + (best & 0xFFFFFFFF), mask=is_one, other=-1).to(tl.int32)
        tl.store(scores + out + k, score, mask=is_item)
        tl.store(found + out + k, number, mask=is_item)


@triton.jit
def _keys_of_tile(
    x, seen, squares, offset, row, is_here, pulls, curves, norms, tile, end, n_columns, BY_COLUMN: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """What the components from `tile` on cost the rows, as whole numbers; the last seven bits are the column."""
    columns = tl.arange(0, CHUNK)
    number = tile + tl.arange(0, TILE)
    is_one = number < end
    costs = tl.load(norms + number, mask=is_one, other=FAR)[None, :] + tl.zeros((ROWS, TILE), tl.float32)
    if not BY_COLUMN:
        costs += squares[:, None] * tl.load(curves + number, mask=is_one, other=0.0)[None, :]
    for chunk in range(0, WIDTH, CHUNK):
        some = seen
        if WIDTH > CHUNK:
            some = _about(x, offset, row, is_here, chunk + columns, n_columns)
        place = number[None, :] * WIDTH + chunk + columns[:, None]
        pull = tl.load(pulls + place, mask=is_one[None, :], other=0.0)
        costs = tl.dot(some, pull, costs, input_precision="tf32")
        if BY_COLUMN:
            curve = tl.load(curves + place, mask=is_one[None, :], other=0.0)
            costs = tl.dot(some * some, curve, costs, input_precision="tf32")
    return (_ordered(costs.to(tl.int32, bitcast=True)) & -128) | tl.arange(0, TILE)[None, :]


@triton.jit
def _cost(
    x, row, seen, means, precisions, biases, number, counts, n_columns, BY_COLUMN: tl.constexpr, CHUNK: tl.constexpr,
    N_CHUNKS: tl.constexpr,
):  # fmt: skip
    """The cost of a component for every row in float64; infinity where it does not count."""
    columns = tl.arange(0, CHUNK)
    place = number.to(tl.int64)
    total = tl.zeros_like(tl.sum(seen, axis=1))
    for chunk in tl.static_range(N_CHUNKS):
        at = chunk * CHUNK + columns
        is_number = counts[:, None] & (at[None, :] < n_columns)
        some = seen
        if chunk > 0:
            some = tl.load(x + row[:, None] * n_columns + at[None, :], mask=is_number, other=0).to(tl.float64)
        away = some - tl.load(means + place[:, None] * n_columns + at[None, :], mask=is_number, other=0.0)
        squares = away * away
        if BY_COLUMN:
            squares *= tl.load(precisions + place[:, None] * n_columns + at[None, :], mask=is_number, other=0.0)
        total += tl.sum(tl.where(is_number, squares, 0.0), axis=1)
    if not BY_COLUMN:
        total *= tl.load(precisions + place, mask=counts, other=0.0)
    return tl.where(counts, total + tl.load(biases + place, mask=counts, other=0.0), float("inf"))


@triton.jit(do_not_specialize=["n_rows", "n_candidates"])  # or each number is compiled anew
def cost_candidates(
    x,  # IN  (N, D) rows as they lie
    means,  # IN  (C, D) float64
    precisions,  # IN  (C, D) float64, or (C,) where columns share one
    biases,  # IN  (C,) float64
    candidates,  # IN  (N, n_candidates) int32; −1 is nobody
    costs,  # OUT (N, n_candidates) float64; infinity is nobody's
    n_rows,
    n_columns,
    n_candidates,
    BY_COLUMN: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    N_CHUNKS: tl.constexpr,
):
    """What candidates cost. O(N · candidates · D)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_rows
    columns = tl.arange(0, CHUNK)
    seen = some_columns(x, row, is_row, columns, n_columns).to(tl.float64)
    for k in range(n_candidates):
        number = tl.load(candidates + row * n_candidates + k, mask=is_row, other=-1)
        cost = _cost(
            x, row, seen, means, precisions, biases, number, is_row & (number >= 0), n_columns, BY_COLUMN, CHUNK,
            N_CHUNKS,
        )  # fmt: skip
        tl.store(costs + row * n_candidates + k, cost, mask=is_row)


@triton.jit
def _free_energy(lowest, costs, is_slot):
    """log Σ exp(−½ cost) of those kept, and the sum relative to the largest term."""
    norm = tl.sum(tl.where(is_slot, tl.exp(-0.5 * (costs - lowest[:, None])), 0.0), axis=1)
    return tl.log(norm) - 0.5 * lowest, norm


@triton.jit(do_not_specialize=["n_rows", "n_more"])  # or each number is compiled anew
def weigh(
    x,  # IN  (N, D) rows as they lie
    means,  # IN  (C, D) float64
    precisions,  # IN  (C, D) float64, or (C,) where columns share one
    biases,  # IN  (C,) float64
    labels,  # IN/OUT (N,) int32: the first of K(n); rows whose K(n) begins with another start from the label
    members,  # IN/OUT (N, KEPT) int32 K(n), best first; −1 where there is none
    candidates,  # IN  (N, n_more) int32; −1 is nobody
    scores,  # IN  (N, n_more) float32 costs up to rounding
    shares,  # OUT (N, KEPT) float64 q(c), Eq. 5
    bounds,  # OUT (N,) float64 log Σ p(c, x) over K(n)
    before,  # OUT (N,) float64 the same over the K(n) of before
    n_rows,
    n_columns,
    n_more,
    BY_COLUMN: tl.constexpr,
    KEPT: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    N_CHUNKS: tl.constexpr,
):
    """K(n) becomes the best of itself and the candidates, by costs in float64. O(N · (C′ + candidates) · D)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_rows
    columns = tl.arange(0, CHUNK)
    seen = some_columns(x, row, is_row, columns, n_columns).to(tl.float64)
    slots = tl.arange(0, SLOTS)[None, :] + tl.zeros((ROWS, SLOTS), tl.int32)
    is_slot = slots < KEPT
    costs = tl.full((ROWS, SLOTS), float("inf"), tl.float64)
    kept = tl.full((ROWS, SLOTS), -1, tl.int32)
    label = tl.load(labels + row, mask=is_row, other=-1)
    is_known = tl.load(members + row * KEPT, mask=is_row, other=-1) == label
    for k in range(KEPT):
        number = tl.load(members + row * KEPT + k, mask=is_row, other=-1)
        number = tl.where(is_known, number, tl.where(k == 0, label, -1))
        cost = _cost(
            x, row, seen, means, precisions, biases, number, is_row & (number >= 0), n_columns, BY_COLUMN, CHUNK,
            N_CHUNKS,
        )  # fmt: skip
        costs = tl.where(slots == k, cost[:, None], costs)
        kept = tl.where(slots == k, number[:, None], kept)
    costs = tl.where(is_row[:, None], costs, 0.0)  # a program's last places may have no rows
    energy, norm = _free_energy(tl.min(costs, axis=1), costs, is_slot)
    tl.store(before + row, energy, mask=is_row)
    for k in range(n_more):
        number = tl.load(candidates + row * n_more + k, mask=is_row, other=-1)
        score = tl.load(scores + row * n_more + k, mask=is_row, other=0.0).to(tl.float64)
        worst = tl.max(tl.where(is_slot, costs, -float("inf")), axis=1)
        is_new = tl.max((kept == number[:, None]).to(tl.int32), axis=1) == 0
        counts = is_row & (number >= 0) & is_new & (score - DOUBT * (1.0 + tl.abs(score)) < worst)
        if tl.max(counts.to(tl.int32), axis=0) > 0:
            cost = _cost(x, row, seen, means, precisions, biases, number, counts, n_columns, BY_COLUMN, CHUNK, N_CHUNKS)
            # one of those that cost most makes room
            place = tl.max(tl.where(is_slot & (costs == worst[:, None]), slots, -1), axis=1)
            is_place = (slots == place[:, None]) & (cost < worst)[:, None]
            costs = tl.where(is_place, cost[:, None], costs)
            kept = tl.where(is_place, number[:, None], kept)
    lowest = tl.min(costs, axis=1)
    energy, norm = _free_energy(lowest, costs, is_slot)
    tl.store(bounds + row, energy, mask=is_row)
    _store_kept(labels, members, shares, row, is_row, slots, kept, costs, lowest, norm, KEPT, SLOTS)


@triton.jit
def _store_kept(
    labels, members, shares, row, is_row, slots, kept, costs, lowest, norm, KEPT: tl.constexpr, SLOTS: tl.constexpr
):
    """K(n) and its shares, best first."""
    is_left = slots < KEPT
    for k in range(KEPT):
        cost = tl.min(tl.where(is_left, costs, float("inf")), axis=1)
        place = tl.min(tl.where(is_left & (costs == cost[:, None]), slots, SLOTS), axis=1)
        is_place = slots == place[:, None]
        is_left = is_left & (slots != place[:, None])
        number = tl.where(cost < float("inf"), tl.max(tl.where(is_place, kept, -1), axis=1), -1)
        tl.store(members + row * KEPT + k, number, mask=is_row)
        tl.store(shares + row * KEPT + k, tl.exp(-0.5 * (cost - lowest)) / norm, mask=is_row)
        if k == 0:
            tl.store(labels + row, number, mask=is_row)
