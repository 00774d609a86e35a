"""Triton kernels: rows against centres by tensor cores.

Products only *nominate*: a tile of rows and centres is multiplied in half precision or tf32, the squared distances that
come of it are compared as whole numbers whose last seven bits hold the column, and the closest few of every row
survive. `weighing.decide` measures those by differences in float32. The same in plain torch, the oracle, is in `plain`.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(128)
"""Centres, or components, of a tile: their numbers take the last seven bits of a score."""
FAR = tl.constexpr(1e38)
"""The squared norm of a centre, or the cost of a component, that is none: more than any other."""
NOBODY = tl.constexpr(0x7EFFFFFF)
"""The score of nobody, as a whole number."""


@triton.jit
def _two_lowest(low, next_low, other, next_other):
    """The two lowest of two pairs, each in order."""
    return tl.minimum(low, other), tl.minimum(tl.maximum(low, other), tl.minimum(next_low, next_other))


@triton.jit
def _plus_products(
    products, seen, parts, centers, is_center, chunk, n_centers, N_PARTS: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the products of some columns of rows and centres."""
    columns = tl.arange(0, CHUNK)
    for part in tl.static_range(N_PARTS):
        factors = tl.load(
            parts + (part * n_centers + centers[None, :]).to(tl.int64) * WIDTH + chunk + columns[:, None],
            mask=is_center[None, :],
            other=0.0,
        )
        products = tl.dot(seen, factors, products, input_precision=PRECISION)
    return products


@triton.jit(do_not_specialize=["n_items", "n_centers"])  # or each number is compiled anew
def nominate(
    x,  # IN  (N, D) rows as they lie
    scales,  # IN  (N,) float32, if there are any
    parts,  # IN  (N_PARTS, centers, WIDTH): centres times −2, rounded, and what rounding has left, rounded
    norms,  # IN  (centers,) float32
    extent,  # IN  (2,) the largest of the norms, and of the squared lengths of what the parts miss; if WITH_DOUBTS
    members,  # IN  (centers,) their numbers, if LISTED
    order,  # IN  (items,) numbers of items by their cells, if GROUPED
    cells,  # IN  (items,) the cells of those, in ascending order
    starts,  # IN  (cells + 1,) where the centres of each cell begin
    limit,  # IN  (1,) how many items are to be looked at, if LIMITED
    scores,  # OUT (items, KEPT) float32, squared distances up to rounding
    found,  # OUT (items, KEPT) int32; −1 where there is nobody, or, WITH_DOUBTS, where the second cannot be the closest
    looks,  # OUT (programs,) int64 distances, if GROUPED
    n_items,
    n_centers,
    n_columns,
    per_row,  # items of a row: item i is of row i // per_row
    rounding,  # of a sum of D products
    GROUPED: tl.constexpr,
    LISTED: tl.constexpr,
    LIMITED: tl.constexpr,
    SCALED: tl.constexpr,
    WITH_DOUBTS: tl.constexpr,
    N_PARTS: tl.constexpr,
    KEPT: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The closest centres of every item among all, or among those of the item's cell. O(items · centres · D)."""
    first = tl.program_id(0) * ROWS
    if LIMITED:
        n_items = tl.load(limit).to(tl.int32)
        if first >= n_items:
            return
    at = first + tl.arange(0, ROWS)
    is_item = at < n_items
    item = at
    own_cell = at * 0
    first_cell = 0
    last_cell = 0
    if GROUPED:
        item = tl.load(order + at, mask=is_item, other=0).to(tl.int32)
        own_cell = tl.load(cells + at, mask=is_item, other=-1).to(tl.int32)
        first_cell = tl.load(cells + first).to(tl.int32)
        last_cell = tl.max(own_cell, axis=0)
    row = (item // per_row).to(tl.int64)
    stretch = tl.full((ROWS,), 1.0, tl.float32)
    if SCALED:
        stretch = tl.load(scales + row, mask=is_item, other=0.0)
    seen = some_columns(x, row, is_item, tl.arange(0, CHUNK), n_columns)
    squares = _squares(x, seen, stretch, row, is_item, n_columns, WIDTH, CHUNK)
    seen = seen.to(PRODUCT)
    nobody = tl.full((ROWS,), NOBODY, tl.int64) << 32
    closest = nobody
    second = nobody
    kept = (tl.full((ROWS, SLOTS), NOBODY, tl.int64) << 32) + tl.arange(0, SLOTS)[None, :]
    n_looks = tl.zeros((ROWS,), tl.int64)
    for cell in range(first_cell, last_cell + 1):
        begin = 0
        end = n_centers
        is_here = is_item
        if GROUPED:
            begin = tl.load(starts + cell).to(tl.int32)
            end = tl.load(starts + cell + 1).to(tl.int32)
            is_here = own_cell == cell
            n_looks += tl.where(is_here, end - begin, 0)
            if tl.max(is_here.to(tl.int32), axis=0) == 0:
                end = begin
        for tile in range(begin, end, TILE):
            keys = _keys_of_tile(
                x, seen, squares, stretch, row, is_item, parts, norms, tile, end, n_centers, n_columns,
                SCALED, N_PARTS, ROWS, WIDTH, CHUNK, PRODUCT, PRECISION,
            )  # fmt: skip
            if KEPT > 2:
                kept = keep_few(kept, keys, tile, is_here, KEPT)
            elif KEPT == 2:
                closest, second = _keep_two(closest, second, keys, tile, is_here, ROWS)
            else:
                lowest = tl.where(is_here, tl.min(keys, axis=1), NOBODY)
                closest = tl.minimum(closest, _with_number(lowest, tile))
    if GROUPED:
        tl.store(looks + tl.program_id(0), tl.sum(n_looks, axis=0))
    out = item.to(tl.int64) * KEPT
    if KEPT > 2:
        _store_few(kept, scores + out, found + out, members, is_item, LISTED, KEPT)
    else:
        _store_closest(
            closest, second, scores + out, found + out, members, squares, extent, rounding, is_item, LISTED,
            WITH_DOUBTS, KEPT,
        )  # fmt: skip


@triton.jit
def _squares(x, seen, stretch, row, is_item, n_columns, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """‖x‖² of rows as passes see them, whose first columns are at hand."""
    squares = tl.sum(seen.to(tl.float32) * seen.to(tl.float32), axis=1)
    for chunk in range(CHUNK, WIDTH, CHUNK):
        more = some_columns(x, row, is_item, chunk + tl.arange(0, CHUNK), n_columns).to(tl.float32)
        squares += tl.sum(more * more, axis=1)
    return squares * stretch * stretch


@triton.jit
def _store_few(kept, scores, found, members, is_item, LISTED: tl.constexpr, KEPT: tl.constexpr):
    """The centres that were kept, closest first."""
    for k in range(KEPT):
        best = tl.min(kept, axis=1)
        kept = tl.where(kept == best[:, None], 0x7FFFFFFFFFFFFFFF, kept)
        tl.store(scores + k, _score(best), mask=is_item)
        _store_number(found + k, members, best, _score(best), is_item, LISTED)


@triton.jit
def _store_closest(
    closest, second, scores, found, members, squares, extent, rounding, is_item, LISTED: tl.constexpr,
    WITH_DOUBTS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The closest centre, and of two the second; WITH_DOUBTS only if it may be the closest, for all that scores say."""
    score = _score(closest)
    tl.store(scores, score, mask=is_item)
    _store_number(found, members, closest, score, is_item, LISTED)
    if KEPT == 2:
        next_score = _score(second)
        tl.store(scores + 1, next_score, mask=is_item)
        if WITH_DOUBTS:
            slack = slack_of_scores(tl.sqrt(squares), score, extent, rounding)
            next_score = tl.where(next_score - score <= slack, next_score, FAR)
        _store_number(found + 1, members, second, next_score, is_item, LISTED)


@triton.jit
def some_columns(x, row, is_item, columns, n_columns):
    """Some columns of rows as they lie."""
    return tl.load(
        x + row[:, None] * n_columns + columns[None, :], mask=is_item[:, None] & (columns[None, :] < n_columns), other=0
    )


@triton.jit
def _keys_of_tile(
    x, seen, squares, stretch, row, is_item, parts, norms, tile, end, n_centers, n_columns,
    SCALED: tl.constexpr, N_PARTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Squared distances of rows to the centres from `tile` on as whole numbers; the last seven bits are the column."""
    centers = tile + tl.arange(0, TILE)
    is_center = centers < end
    norm = tl.load(norms + centers, mask=is_center, other=FAR)
    if SCALED:
        products = tl.zeros((ROWS, TILE), tl.float32)
    else:
        products = norm[None, :] + squares[:, None]
    if WIDTH == CHUNK:
        products = _plus_products(
            products, seen, parts, centers, is_center, 0, n_centers, N_PARTS, WIDTH, CHUNK, PRECISION
        )
    else:
        for chunk in range(0, WIDTH, CHUNK):
            some = some_columns(x, row, is_item, chunk + tl.arange(0, CHUNK), n_columns).to(PRODUCT)
            products = _plus_products(
                products, some, parts, centers, is_center, chunk, n_centers, N_PARTS, WIDTH, CHUNK, PRECISION
            )
    if SCALED:
        products = products * stretch[:, None] + (norm[None, :] + squares[:, None])
    # rounding may leave a negative distance, which then is the lowest
    return (products.to(tl.int32, bitcast=True) & -128) | tl.arange(0, TILE)[None, :]


@triton.jit
def _with_number(lowest, tile):
    """The key of a tile with the number of its centre in the lower half."""
    return ((lowest & -128).to(tl.int64) << 32) | (tile + (lowest & 127)).to(tl.int64)


@triton.jit
def _score(key):
    """The squared distance that a key with a number begins with."""
    return (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _keep_two(closest, second, keys, tile, is_here, ROWS: tl.constexpr):
    """The two lowest so far and of a tile."""
    lowest, next_lowest = tl.reduce((keys, tl.full((ROWS, TILE), NOBODY, tl.int32)), 1, _two_lowest)
    low = _with_number(tl.where(is_here, lowest, NOBODY), tile)
    second = tl.minimum(second, tl.maximum(closest, low))
    closest = tl.minimum(closest, low)
    return closest, tl.minimum(second, _with_number(tl.where(is_here, next_lowest, NOBODY), tile))


@triton.jit
def keep_few(kept, keys, tile, is_here, KEPT: tl.constexpr):
    """The few lowest so far and of a tile: the last of those kept makes room for one that is closer."""
    for _ in range(KEPT):
        lowest = tl.min(keys, axis=1)
        low = _with_number(tl.where(is_here, lowest, NOBODY), tile)
        worst = tl.max(kept, axis=1)
        is_closer = (low < worst) & is_here & (lowest < NOBODY)  # nobody twice would make room for one in two places
        kept = tl.where((kept == worst[:, None]) & is_closer[:, None], low[:, None], kept)
        keys = tl.where(keys == lowest[:, None], NOBODY, keys)
    return kept


@triton.jit
def slack_of_scores(length, score, extent, rounding):
    """What the scores of a row may be wrong by against the lowest of them: see `products`."""
    reach = length + tl.sqrt(tl.load(extent))
    return 2.0 * length * tl.sqrt(tl.load(extent + 1)) + rounding * reach * reach + score * 3.1e-5


@triton.jit
def _store_number(out, members, key, score, is_item, LISTED: tl.constexpr):
    """The number of a centre from its key; −1 where the score says that there is none."""
    number = (key & 0xFFFFFFFF).to(tl.int32)
    is_one = score < 1e37
    if LISTED:
        number = tl.load(members + number, mask=is_item & is_one, other=-1).to(tl.int32)
    tl.store(out, tl.where(is_one, number, -1), mask=is_item)


@triton.jit(do_not_specialize=["n_centers"])  # or each number is compiled anew
def prepare(
    centers,  # IN  (C, D) float64
    members,  # IN  (C,) centres in the order of their cells, if LISTED
    exact,  # OUT (C, D) float32, by the numbers of the centres
    parts,  # OUT (N_PARTS, C, WIDTH): see `nominate`
    norms,  # OUT (C,) float32
    extent,  # IN/OUT (2,) float32 zeros: the largest norm, and squared length of what the parts miss
    n_centers,
    n_columns,
    limit,  # the largest number of a part
    LISTED: tl.constexpr,
    N_PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Centres as products and differences take them. O(C · D)."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_center = at < n_centers
    center = at
    if LISTED:
        center = tl.load(members + at, mask=is_center, other=0).to(tl.int64)
    norm = tl.zeros((ROWS,), tl.float64)
    miss = tl.zeros((ROWS,), tl.float64)
    for chunk in range(0, WIDTH, CHUNK):
        columns = chunk + tl.arange(0, CHUNK)
        is_number = is_center[:, None] & (columns[None, :] < n_columns)
        place = center[:, None] * n_columns + columns[None, :]
        value = tl.load(centers + place, mask=is_number, other=0.0)
        tl.store(exact + place, value.to(tl.float32), mask=is_number)
        norm += tl.sum(value * value, axis=1)
        left = -2.0 * value
        for part in tl.static_range(N_PARTS):
            rounded = tl.minimum(tl.maximum(left, -limit), limit).to(tl.float32).to(parts.dtype.element_ty)
            out = (part * n_centers + at[:, None]) * WIDTH + columns[None, :]
            tl.store(parts + out, rounded, mask=is_center[:, None])
            left -= rounded.to(tl.float64)
        miss += tl.sum(left * left, axis=1)
    tl.store(norms + at, norm.to(tl.float32), mask=is_center)
    # the largest of numbers that are not negative is that of their bits, in whatever order they come
    longest = tl.max(norm, axis=0).to(tl.float32).to(tl.int32, bitcast=True)
    worst = tl.max(miss, axis=0).to(tl.float32).to(tl.int32, bitcast=True)
    tl.atomic_max(extent.to(tl.pointer_type(tl.int32)), longest)
    tl.atomic_max(extent.to(tl.pointer_type(tl.int32)) + 1, worst)
