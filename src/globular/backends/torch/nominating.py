"""Triton kernels: rows against centres by tensor cores.

Products only *nominate*: a tile of rows and centres is multiplied in half precision or tf32, the squared distances that
come of it are compared as whole numbers whose last seven bits hold the column, and the closest few of every row
survive. `deciding` measures those by differences in float32. The same in plain torch, the oracle, is in `plain`.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(128)
"""Centres of a tile: their numbers take the last seven bits of a score."""
FAR = tl.constexpr(1e38)
"""The squared norm of a centre that is none: more than any distance."""
NOBODY = tl.constexpr(0x7EFFFFFF)
"""The score of nobody, as a whole number."""


@triton.jit
def _two_lowest(low, next_low, other, next_other):
    """The two lowest of two pairs, each in order."""
    return tl.minimum(low, other), tl.minimum(tl.maximum(low, other), tl.minimum(next_low, next_other))


@triton.jit
def _plus_products(
    products,
    seen,
    parts,
    centers,
    is_center,
    chunk,
    n_centers,
    N_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
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
    columns = tl.arange(0, CHUNK)
    tile_columns = tl.arange(0, TILE)
    stretch = tl.full((ROWS,), 1.0, tl.float32)
    if SCALED:
        stretch = tl.load(scales + row, mask=is_item, other=0.0)
    seen = tl.load(
        x + row[:, None] * n_columns + columns[None, :], mask=is_item[:, None] & (columns[None, :] < n_columns), other=0
    )
    squares = tl.sum(seen.to(tl.float32) * seen.to(tl.float32), axis=1)
    for more_columns in range(CHUNK, WIDTH, CHUNK):
        more = tl.load(
            x + row[:, None] * n_columns + more_columns + columns[None, :],
            mask=is_item[:, None] & (more_columns + columns[None, :] < n_columns),
            other=0,
        ).to(tl.float32)
        squares += tl.sum(more * more, axis=1)
    squares = squares * stretch * stretch
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
            centers = tile + tile_columns
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
                    some = tl.load(
                        x + row[:, None] * n_columns + chunk + columns[None, :],
                        mask=is_item[:, None] & (chunk + columns[None, :] < n_columns),
                        other=0,
                    ).to(PRODUCT)
                    products = _plus_products(
                        products, some, parts, centers, is_center, chunk, n_centers, N_PARTS, WIDTH, CHUNK, PRECISION
                    )
            if SCALED:
                products = products * stretch[:, None] + (norm[None, :] + squares[:, None])
            # rounding may leave a negative distance, which then is the lowest
            keys = (products.to(tl.int32, bitcast=True) & -128) | tile_columns[None, :]
            if KEPT == 2:
                lowest, next_lowest = tl.reduce((keys, tl.full((ROWS, TILE), NOBODY, tl.int32)), 1, _two_lowest)
                if GROUPED:
                    lowest = tl.where(is_here, lowest, NOBODY)
                    next_lowest = tl.where(is_here, next_lowest, NOBODY)
                low = ((lowest & -128).to(tl.int64) << 32) | (tile + (lowest & 127)).to(tl.int64)
                second = tl.minimum(second, tl.maximum(closest, low))
                closest = tl.minimum(closest, low)
                low = ((next_lowest & -128).to(tl.int64) << 32) | (tile + (next_lowest & 127)).to(tl.int64)
                second = tl.minimum(second, low)
            else:
                lowest = tl.min(keys, axis=1)
                if GROUPED:
                    lowest = tl.where(is_here, lowest, NOBODY)
                low = ((lowest & -128).to(tl.int64) << 32) | (tile + (lowest & 127)).to(tl.int64)
            if KEPT == 1:
                closest = tl.minimum(closest, low)
            if KEPT > 2:
                for _ in range(KEPT):
                    # the last of those kept makes room for one that is closer
                    worst = tl.max(kept, axis=1)
                    is_closer = (low < worst) & (lowest < NOBODY)  # nobody twice would make room for one in two places
                    kept = tl.where((kept == worst[:, None]) & is_closer[:, None], low[:, None], kept)
                    keys = tl.where(keys == lowest[:, None], NOBODY, keys)
                    lowest = tl.min(keys, axis=1)
                    if GROUPED:
                        lowest = tl.where(is_here, lowest, NOBODY)
                    low = ((lowest & -128).to(tl.int64) << 32) | (tile + (lowest & 127)).to(tl.int64)
    if GROUPED:
        tl.store(looks + tl.program_id(0), tl.sum(n_looks, axis=0))
    out = item.to(tl.int64) * KEPT
    if KEPT <= 2:
        score = (closest >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(scores + out, score, mask=is_item)
        _store_number(found + out, members, closest, score, is_item, LISTED)
        if KEPT == 2:
            next_score = (second >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            tl.store(scores + out + 1, next_score, mask=is_item)
            if WITH_DOUBTS:
                length = tl.sqrt(squares)
                reach = length + tl.sqrt(tl.load(extent))
                slack = 2.0 * length * tl.sqrt(tl.load(extent + 1)) + rounding * reach * reach + score * 3.1e-5
                next_score = tl.where(next_score - score <= slack, next_score, FAR)
            _store_number(found + out + 1, members, second, next_score, is_item, LISTED)
    else:
        for k in range(KEPT):
            best = tl.min(kept, axis=1)
            kept = tl.where(kept == best[:, None], 0x7FFFFFFFFFFFFFFF, kept)
            score = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            tl.store(scores + out + k, score, mask=is_item)
            _store_number(found + out + k, members, best, score, is_item, LISTED)


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
