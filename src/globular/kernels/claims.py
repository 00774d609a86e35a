"""Rows that components draw from those that are theirs, out of pairs (row, component), and cells that they hold.

Each kernel is called twice. First there is no room for what it finds, and every span of rows counts; then spans know
where to write, whatever thread takes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from globular.jit import Queue, inline, kernel, take_number
from globular.kernels.expect import weight_of


class Draw(NamedTuple):
    """What components draw."""

    drawn: Any  # (N,) a number in [0, 1) of every row
    rates: Any  # (C,) rows with a smaller number are drawn
    least: float  # responsibility above which a row is a component's


@inline
def is_drawn(draw: Any, pairs: Any, r: int) -> bool:
    """Whether one of the components of a row may draw it. O(its pairs)."""
    largest = 0.0
    for p in range(pairs.starts[r], pairs.starts[r + 1]):
        largest = max(largest, draw.rates[pairs.components[p]])
    return draw.drawn[pairs.numbers[r]] < largest


@inline
def is_claimed(draw: Any, row: int, component: int, share: float) -> bool:
    """Whether a component draws a row that it has this share of."""
    return share > draw.least and draw.drawn[row] < draw.rates[component]


@kernel
def find_drawn(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    pairs: Any,  # IN  a `kernels.pairs.PairList`
    draw: Any,  # IN
    places: Any,  # IN/OUT (spans, 2) where the rows that may be drawn go, and their pairs; then where they end
    found: Any,  # OUT pairs of these rows, but for the first start; or empty
) -> None:
    """O(pairs)."""
    n = pairs.numbers.shape[0]
    span = take_number(queue)
    while span * rows_per_span < n:
        at, place = places[span, 0], places[span, 1]
        for r in range(span * rows_per_span, min(n, (span + 1) * rows_per_span)):
            if is_drawn(draw, pairs, r):
                begin, size = pairs.starts[r], pairs.starts[r + 1] - pairs.starts[r]
                if found.numbers.shape[0]:
                    for k in range(size):
                        found.components[place + k] = pairs.components[begin + k]
                    found.numbers[at], found.starts[at + 1] = pairs.numbers[r], place + size
                at += 1
                place += size
        places[span, 0], places[span, 1] = at, place
        span = take_number(queue)


@kernel
def find_claims(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    pairs: Any,  # IN
    q: Any,  # IN  (P,) responsibilities
    draw: Any,  # IN
    x: Any,  # IN  (N, D) rows, or (N, 0)
    single: Any,  # IN  (N, D) rows in float32, or (N, 0)
    scales: Any,  # IN  (N,) factors of the rows, or empty
    weights: Any,  # IN  (N,) or empty
    places: Any,  # IN/OUT (spans, C) where what each component draws goes; then where it ends
    owners: Any,  # OUT (claims,) numbers of rows, ascending within a component; or empty
    rows: Any,  # OUT (claims, D) these rows
    shares: Any,  # OUT (claims,) w q, divided by the rate
) -> None:
    """O(pairs + claims·D)."""
    n = pairs.numbers.shape[0]
    span = take_number(queue)
    while span * rows_per_span < n:
        for r in range(span * rows_per_span, min(n, (span + 1) * rows_per_span)):
            row = pairs.numbers[r]
            for p in range(pairs.starts[r], pairs.starts[r + 1]):
                c = pairs.components[p]
                if is_claimed(draw, row, c, q[p]):
                    at = places[span, c]
                    if owners.shape[0]:
                        owners[at] = row
                        shares[at] = q[p] * weight_of(weights, row) / draw.rates[c]
                        scale = weight_of(scales, row)
                        for d in range(x.shape[1]):
                            rows[at, d] = scale * x[row, d]
                        for d in range(single.shape[1]):
                            rows[at, d] = scale * single[row, d]
                    places[span, c] = at + 1
        span = take_number(queue)
