"""Rows that components of a mixture are responsible for, copied out: what a component can be split on.

Every block is evaluated under all components, and rows with a noticeable share of a wanted component leave with that
share as their weight. A component that holds many rows gives only a random part of them, weighted up.

Where rows remember their components (`remembered`), each kernel is called twice. First there is no room for what it
finds, and every span of rows counts; then spans know where to write, whatever thread takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, inline, kernel, new_queue, share_kernel, take_number
from globular.model.cells import starts_of
from globular.model.chunks import Chunks, Claims
from globular.model.statistics import F64, I64
from globular.passes.cpu.engine.densities import Observed, weight_of
from globular.passes.cpu.expect.all import blocks_for
from globular.passes.cpu.expect.blocks import by_precision
from globular.passes.cpu.expect.remembered import Kept, Pairs
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE, RUN
from globular.seam.mixture_passes import RowsOf
from globular.threads import SECONDS_PER_LOOK, even_ranges, map_all, run_all


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
    pairs: Any,  # IN  a `Pairs`
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
    observed: Any,  # IN  the rows, or (N, 0) of them
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
                        shares[at] = q[p] * weight_of(observed.counted, row) / draw.rates[c]
                        scale = weight_of(observed.scales, row)
                        for d in range(observed.x.shape[1]):
                            rows[at, d] = scale * observed.x[row, d]
                        for d in range(observed.single.shape[1]):
                            rows[at, d] = scale * observed.single[row, d]
                    places[span, c] = at + 1
        span = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


SMALLEST_SHARE = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


@CpuShard.implements(RowsOf)
def rows_of(shard: CpuShard, work: RowsOf) -> Claims:
    mixture, components, rates, seed = work.mixture, work.components, work.rates, work.seed
    kept = shard.recall(Kept)
    if work.remembered and kept is not None:
        return _claim_pairs(shard, kept.pairs, work)

    blocks, kind = blocks_for(shard, mixture), mixture.family.scatter

    def claim(block: tuple[int, int]) -> Claims:
        rows = shard.dense_rows.block(*block).astype(np.float64)
        if len(shard.scales):
            rows *= shard.scales[slice(*block), None]
        weights = shard.weights[slice(*block)] if len(shard.weights) else np.ones(len(rows))
        q, _ = blocks.posterior(blocks.rows(read_only(rows), np.empty(0)))
        drawn = _draw(seed, shard.first_row + block[0], len(rows))
        shares = np.take(q, components, axis=1)
        is_claimed = (shares > SMALLEST_SHARE) & (drawn[:, None] < rates) & (weights > 0)[:, None]
        which, chosen = np.nonzero(is_claimed.T)
        found = weights[chosen] * shares[chosen, which] / rates[which]
        starts = starts_of(np.bincount(which, minlength=len(components)))
        return Claims(Chunks.of_rows(rows[chosen], found, kind), starts)

    none = Claims(
        Chunks.of_rows(np.empty((0, shard.n_columns)), np.empty(0), kind), np.zeros(len(components) + 1, dtype=np.int64)
    )
    return Claims.join([none, *map_all(claim, even_ranges(shard.n_rows, RUN), shard.n_threads)])


def _claim_pairs(shard: CpuShard, pairs: Pairs, work: RowsOf) -> Claims:
    """The same from pairs that were kept; rows that nobody draws are left alone."""
    rates = np.zeros(work.mixture.n_components)
    rates[work.components] = work.rates
    draw = Draw(_drawn(shard, work), rates, SMALLEST_SHARE)
    pairs = _drawn_pairs(pairs, draw, shard.n_threads)
    q, sizes = np.empty(len(pairs.components)), _new_sizes(pairs, len(rates))
    pairs.e_step(shard, work.mixture, q)

    direct = shard.dense_rows.is_direct()
    read = by_precision(shard.dense_rows.block(0, shard.n_rows) if direct else read_only(np.empty((0, 0))))
    none = read_only(np.empty(0)), read_only(np.empty((0, 0)))
    observed = Observed(*read, read_only(shard.scales), *none, read_only(shard.weights))

    def find(places: I64, n_claims: int) -> tuple[I64, F64, F64]:
        owners, shares = np.empty(n_claims, dtype=np.int64), np.empty(n_claims)
        rows = np.empty((n_claims, shard.n_columns if direct else 0))
        _on_spans(find_claims, pairs, shard.n_threads, q, draw, observed, places, owners, rows, shares)
        return owners, rows, shares

    find(sizes, 0)
    wanted = sizes[:, work.components].T  # nobody else draws any
    before = starts_of(wanted.ravel())  # what a component draws of all spans lies together
    sizes[:, work.components] = before[:-1].reshape(wanted.shape).T
    owners, rows, weights = find(sizes, before[-1])
    rows = rows if direct else shard.take(owners)
    return Claims(Chunks.of_rows(rows, weights, work.mixture.family.scatter), before[:: len(sizes)].copy())


def _drawn(shard: CpuShard, work: RowsOf) -> F64:
    """A number in [0, 1) for each row, (N,); zeros where every row is wanted."""
    drawn = np.zeros(shard.n_rows)
    if (work.rates >= 1.0).all():
        return drawn

    def draw(span: tuple[int, int]) -> None:
        drawn[slice(*span)] = _draw(work.seed, shard.first_row + span[0], span[1] - span[0])

    spans, seconds = even_ranges(shard.n_rows, ROWS_AT_ONCE), SECONDS_PER_LOOK * shard.n_rows
    run_all(draw, spans, shard.n_threads, seconds=seconds, calls_blas=False)
    return drawn


def _drawn_pairs(pairs: Pairs, draw: Draw, n_threads: int) -> Pairs:
    """Those of rows that one of their components may draw."""

    def find(places: I64, n_rows: int, n_pairs: int) -> Pairs:
        found = Pairs.empty(n_rows, n_pairs)
        _on_spans(find_drawn, pairs, n_threads, draw, places, found)
        return found

    sizes = _new_sizes(pairs, 2)
    find(sizes, 0, 0)
    before = starts_of(sizes)
    return find(before, *before[-1].tolist())


def _new_sizes(pairs: Pairs, n_numbers: int) -> I64:
    """What spans count, so many numbers each."""
    return np.zeros((max(1, -(-len(pairs.numbers) // RUN)), n_numbers), dtype=np.int64)


def _on_spans(kernel: Callable[..., None], pairs: Pairs, n_threads: int, *arguments: Any) -> None:
    """Call a kernel that looks at every pair, on the threads that are worth waking."""
    queue = new_queue()
    n_threads = min(max(1, -(-len(pairs.numbers) // RUN)), pairs.threads(n_threads))
    share_kernel(lambda: kernel(queue, RUN, pairs, *arguments), queue, n_threads, calls_blas=False)


def _draw(seed: int, first_row: int, n: int) -> F64:
    """A number in [0, 1) for each of n rows; it depends on the row's place in the whole data alone, (n,)."""
    return np.random.Generator(np.random.PCG64([seed, 0]).advance(first_row)).random(n)
