"""The closest of many sparse centres to a sparse row, exactly, by an inverted file of the centres.

For every column the file has the centres that have an entry there, the largest first: their postings. A row adds up its
products with the centres that share a column with it, and most centres are never looked at. Of those that are, most
entries are too small to matter: for centre c to be closer than the row's own centre a, by d² = ‖x‖² + ‖m‖² − 2 x·m,

    x·m_c ≥ need,   need = (min ‖m‖² − ‖m_a‖² + 2 x·m_a) / 2

must hold. So each column j gets a threshold θ_j with Σ |x_j| θ_j = need, and postings are read until |m_cj| ≤ θ_j. A
centre that nobody has read of has x·m ≤ need. For the others x·m_c is at most need + Σ (x_j m_cj − |x_j| θ_j), summed
over what was read of it; where that is enough to be closer, the product is taken exactly. The fewest postings are read
if θ_j grows with the square root of their number, where values fall off like 1 / rank.

[Aoyama, Saito and Ikeda 2020; Broder et al. 2014; Knittel, Koch and Ertl 2021]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.model.sparse_centers import SparseCenters
from globular.passes.cpu.engine.group import group_by

ROUNDING = 2.0**-40
"""Share of ‖x‖² + ‖m‖² that rounding may amount to: squares that differ by less are compared by differences."""
CHECK = 4.0
"""Postings that could be read in the time of a product's entry; larger = all are read sooner."""
POSTED_AT_ONCE = 4096
"""Postings that a thread sorts about before it asks for more; larger = it asks less often."""


class Postings(NamedTuple):
    """Centres by centre and by column."""

    starts: Any  # (C + 1,) where the entries of each centre begin
    columns: Any  # (n,) ascending for each centre
    values: Any  # (n,) float64
    norms: Any  # (C,) ‖m‖²
    by_norm: Any  # (m,) the centres that are in the file, the shortest first
    begins: Any  # (D,) where the postings of each column begin
    ends: Any  # (D,) and end
    holders: Any  # (n,) int32 the centres that have it
    shares: Any  # (n,) their values, the largest first
    widths: Any  # (D,) square root of the number of postings


class Looks(NamedTuple):
    """Scratch memory of a thread."""

    center: Any  # (D,) the centre of the rows at hand, written out; zeros elsewhere
    gains: Any  # (C,) zeros
    read: Any  # (C + 1,) int32, centres that were read of, and room for one that is known already


@inline
def sift_down(shares: Any, holders: Any, begin: int, at: int, end: int) -> None:
    """Move an entry of a heap, the smallest of which comes first, to where it belongs."""
    child = begin + 2 * (at - begin) + 1
    while child < end:
        if child + 1 < end and abs(shares[child + 1]) < abs(shares[child]):
            child += 1
        if abs(shares[at]) <= abs(shares[child]):
            break
        shares[at], shares[child] = shares[child], shares[at]
        holders[at], holders[child] = holders[child], holders[at]
        at, child = child, begin + 2 * (child - begin) + 1


@kernel
def post_entries(
    queue: Queue,  # IN/OUT stretches of columns
    n_stretches: int,  # IN
    order: Any,  # IN  (n,) entries by column
    owners: Any,  # IN  (n,) the centre of each entry
    values: Any,  # IN  (n,)
    stays: Any,  # IN  (C,) bool; none of them where there is no room for others
    begins: Any,  # IN  (D + 1,) where the postings of each column begin
    holders: Any,  # OUT (n,) the centres by column, the largest value first
    shares: Any,  # OUT (n,) their values
    moved_ends: Any,  # OUT (D,) where those of the centres that do not stay end
    moved_holders: Any,  # OUT (n,) the same of these
    moved_shares: Any,  # OUT (n,)
) -> None:
    """Fill and sort the postings of every column. O(n log n)."""
    s, D = take_number(queue), begins.shape[0] - 1
    while s < n_stretches:
        for j in range(D * s // n_stretches, D * (s + 1) // n_stretches):
            begin, end = begins[j], begins[j + 1]
            for q in range(begin, end):
                holders[q], shares[q] = owners[order[q]], values[order[q]]
            for at in range((begin + end) // 2 - 1, begin - 1, -1):
                sift_down(shares, holders, begin, at, end)
            for last in range(end - 1, begin, -1):
                shares[begin], shares[last] = shares[last], shares[begin]
                holders[begin], holders[last] = holders[last], holders[begin]
                sift_down(shares, holders, begin, begin, last)
            moved_ends[j] = begin
            for q in range(begin, end if moved_shares.shape[0] else begin):
                if not stays[holders[q]]:
                    moved_holders[moved_ends[j]], moved_shares[moved_ends[j]] = holders[q], shares[q]
                    moved_ends[j] += 1
        s = take_number(queue)


def new_postings(centers: SparseCenters, stays: NDArray[np.bool_], n_threads: int) -> tuple[Postings, Postings]:
    """The inverted file of all centres, and of those that do not stay where they were."""
    matrix, norms, n = centers.matrix, centers.norms, centers.matrix.nnz
    columns, owners = matrix.indices.astype(np.int32, copy=False), centers.owners
    begins, order = group_by(columns, centers.shape[1], n_threads)
    file, moved = ((np.empty(m, dtype=np.int32), np.empty(m)) for m in (n, n if stays.any() else 0))
    n_stretches, queue, moved_ends = max(1, n // POSTED_AT_ONCE), new_queue(), np.empty_like(begins[1:])
    share_kernel(
        lambda: post_entries(
            queue, n_stretches, order, owners, matrix.data, stays, begins, *file, moved_ends, *moved
        ),
        queue, min(n_stretches, n_threads), calls_blas=False,
    )  # fmt: skip
    starts, by_norm = matrix.indptr.astype(np.int64), np.argsort(norms, kind="stable")

    def postings(which: NDArray[np.integer], ends: NDArray[np.int64], holders: Any, shares: Any) -> Postings:
        widths = np.sqrt(ends - begins[:-1])
        return Postings(starts, columns, matrix.data, norms, which, begins[:-1], ends, holders, shares, widths)

    whole = postings(by_norm, begins[1:], *file)
    return whole, postings(by_norm[~stays[by_norm]], moved_ends, *moved) if stays.any() else whole


@inline
def write_out(postings: Any, c: int, looks: Any) -> None:
    """Write a centre into an array of zeros."""
    for q in range(postings.starts[c], postings.starts[c + 1]):
        looks.center[postings.columns[q]] = postings.values[q]


@inline
def wipe_out(postings: Any, c: int, looks: Any) -> None:
    """Make it zeros again."""
    for q in range(postings.starts[c], postings.starts[c + 1]):
        looks.center[postings.columns[q]] = 0.0


@kernel
def product(rows: Any, i: int, scale: float, postings: Any, c: int) -> float:
    """scale · x_i · m_c. O(nnz log entries)."""
    data, indices, indptr = rows
    total, begin, end = 0.0, postings.starts[c], postings.starts[c + 1]
    for k in range(indptr[i], indptr[i + 1]):
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if postings.columns[middle] < indices[k]:
                low = middle + 1
            else:
                high = middle
        begin = low
        if low < end and postings.columns[low] == indices[k]:
            total += scale * data[k] * postings.values[low]
    return total


@kernel
def square(rows: Any, i: int, scale: float, postings: Any, c: int) -> float:
    """‖scale · x_i − m_c‖² by differences. O(nnz + entries)."""
    data, indices, indptr = rows
    total, q, end = 0.0, postings.starts[c], postings.starts[c + 1]
    for k in range(indptr[i], indptr[i + 1]):
        while q < end and postings.columns[q] < indices[k]:
            total += postings.values[q] * postings.values[q]
            q += 1
        difference = scale * data[k]
        if q < end and postings.columns[q] == indices[k]:
            difference -= postings.values[q]
            q += 1
        total += difference * difference
    while q < end:
        total += postings.values[q] * postings.values[q]
        q += 1
    return total


@inline
def guess(rows: Any, i: int, scale: float, postings: Any) -> int:
    """A centre that may be close: of all that head a column's postings, the one that is closest by that column."""
    data, indices, indptr = rows
    found = postings.by_norm[0]
    least = postings.norms[found]
    for k in range(indptr[i], indptr[i + 1]):
        begin = postings.begins[indices[k]]
        if begin < postings.ends[indices[k]]:
            c = np.int64(postings.holders[begin])
            score = postings.norms[c] - 2.0 * scale * data[k] * postings.shares[begin]
            if score < least:
                found, least = c, score
    return found


@inline
def closer(rows: Any, i: int, scale: float, length: float, postings: Any, one: int, other: int, lead: float) -> bool:
    """Whether `one` is closer than `other`, or as close and comes first; its score is lower by `lead`."""
    norms = postings.norms
    if abs(lead) > ROUNDING * (length * length + norms[one] + norms[other]):
        return lead > 0.0
    a, b = square(rows, i, scale, postings, one), square(rows, i, scale, postings, other)
    return a < b or (a == b and one < other)


@inline
def read_postings(rows: Any, i: int, scale: float, share: float, postings: Any, looks: Any) -> tuple[int, int]:
    """Add up gains over thresholds of `share` times the widths: centres read of, and products. O(products)."""
    data, indices, indptr = rows
    gains, read, n_read, n_products = looks.gains, looks.read, 0, 0
    for k in range(indptr[i], indptr[i + 1]):
        x, j = scale * data[k], indices[k]
        threshold = share * postings.widths[j]
        least = abs(x) * threshold
        for q in range(postings.begins[j], postings.ends[j]):
            value = postings.shares[q]
            if abs(value) <= threshold:
                break
            n_products += 1
            gain = x * value - least
            if gain > 0:
                c = postings.holders[q]
                read[n_read] = c
                n_read += gains[c] == 0
                gains[c] += gain
    return n_read, n_products


@inline
def wipe_gains(n_read: int, looks: Any) -> None:
    """Make the gains zeros again."""
    for r in range(n_read):
        looks.gains[looks.read[r]] = 0


@kernel
def closest(
    rows: Any,  # IN  (data, indices, indptr)
    i: int,  # IN  row
    scale: float,  # IN  its scale
    own: int,  # IN  a centre that is likely to be close
    its_product: float,  # IN  scale · x_i · m_own
    length: float,  # IN  scale · ‖x_i‖
    postings: Any,  # IN
    looks: Any,  # IN/OUT
) -> tuple[int, float, int]:
    """The closest centre, its ‖m‖² − 2 x·m, and how many products that took. O(postings read)."""
    indices, indptr, norms, gains, read = rows[1], rows[2], postings.norms, looks.gains, looks.read
    best, score, nnz = own, norms[own] - 2.0 * its_product, indptr[i + 1] - indptr[i]
    if postings.by_norm.shape[0] == 0:
        return best, score, 0
    error = ROUNDING * (length * length + norms[own])
    need = max(0.0, 0.5 * (norms[postings.by_norm[0]] - score) - error)
    total, n_postings = 0.0, 0.0
    for k in range(indptr[i], indptr[i + 1]):
        width = postings.widths[indices[k]]
        total += abs(scale * rows[0][k]) * width
        n_postings += width * width
    n_read, n_products = read_postings(rows, i, scale, need / total if total > 0.0 else 0.0, postings, looks)
    n_open = 0
    for r in range(n_read):
        n_open += 2.0 * (need + gains[read[r]] + error) >= norms[read[r]] - score
    if n_open * nnz * CHECK > n_postings and need > 0.0:  # the thresholds tell too little: read all
        wipe_gains(n_read, looks)
        need, n_more = 0.0, n_products
        n_read, n_products = read_postings(rows, i, scale, 0.0, postings, looks)
        n_products += n_more
    for r in range(n_read):
        c = int(read[r])
        if 2.0 * (need + gains[c] + error) >= norms[c] - score and c != own:
            other = norms[c] - 2.0 * product(rows, i, scale, postings, c)
            n_products += nnz
            if closer(rows, i, scale, length, postings, c, best, score - other):
                best, score = c, other
    if need == 0.0:  # centres that were not read of have products of zero or less
        for r in range(postings.by_norm.shape[0]):
            c = postings.by_norm[r]
            if norms[c] - score > 2.0 * error:
                break
            if gains[c] == 0:
                its_product = product(rows, i, scale, postings, c)
                other = norms[c] - 2.0 * its_product
                n_products += nnz
                if c != best and closer(rows, i, scale, length, postings, c, best, score - other):
                    best, score = c, other
                if its_product == 0.0:  # the others are as long, or longer
                    break
    wipe_gains(n_read, looks)
    return best, score, n_products
