"""Rows that components of a mixture are responsible for, copied out: what a component can be split on.

Every block is evaluated under all components, and rows with a noticeable share of a wanted component leave with that
share as their weight. A component that holds many rows gives only a random part of them, weighted up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globular.jit import new_queue, share_kernel
from globular.kernels import claims as kernels
from globular.model.chunks import Chunks, Claims
from globular.model.groups import starts_of
from globular.model.statistics import F64, I64
from globular.passes.cpu.expect.all import Span, block_rows, blocks_for
from globular.passes.cpu.expect.blocks import by_precision
from globular.passes.cpu.expect.pairs import Pairs
from globular.passes.cpu.expect.remembered import Kept
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE, RUN
from globular.seam.mixture_passes import RowsOf
from globular.threads import SECONDS_PER_LOOK, even_ranges, map_all, run_all

SMALLEST_SHARE = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


@CpuShard.implements(RowsOf)
def rows_of(shard: CpuShard, work: RowsOf) -> Claims:
    mixture, components, rates, seed = work.mixture, work.components, work.rates, work.seed
    kept = shard.recall(Kept)
    if work.remembered and kept is not None:
        return _claim_pairs(shard, kept.pairs, work)

    blocks, kind = blocks_for(shard, mixture), mixture.family.scatter

    def claim(block: Span) -> Claims:
        rows = block_rows(shard, block)
        weights = shard.weights[slice(*block)] if len(shard.weights) else np.ones(len(rows))
        q, _ = blocks.posterior(blocks.rows(rows, np.empty(0)))
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
    draw = kernels.Draw(_drawn(shard, work), rates, SMALLEST_SHARE)
    pairs = _drawn_pairs(pairs, draw, shard.n_threads)
    q, sizes = np.empty(len(pairs)), _new_sizes(pairs, len(rates))
    pairs.e_step(shard, work.mixture, q)

    direct = shard.dense_rows.is_direct()
    read = by_precision(shard.dense_rows.block(0, shard.n_rows) if direct else read_only(np.empty((0, 0))))
    factors, counted = read_only(shard.scales), read_only(shard.weights)

    def find(places: I64, n_claims: int) -> tuple[I64, F64, F64]:
        owners, shares = np.empty(n_claims, dtype=np.int64), np.empty(n_claims)
        rows = np.empty((n_claims, shard.n_columns if direct else 0))
        given = q, draw, *read, factors, counted, places, owners, rows, shares
        _on_spans(kernels.find_claims, pairs, shard.n_threads, *given)
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

    def draw(span: Span) -> None:
        drawn[slice(*span)] = _draw(work.seed, shard.first_row + span[0], span[1] - span[0])

    spans, seconds = even_ranges(shard.n_rows, ROWS_AT_ONCE), SECONDS_PER_LOOK * shard.n_rows
    run_all(draw, spans, shard.n_threads, seconds=seconds, calls_blas=False)
    return drawn


def _drawn_pairs(pairs: Pairs, draw: kernels.Draw, n_threads: int) -> Pairs:
    """Those of rows that one of their components may draw."""

    def find(places: I64, n_rows: int, n_pairs: int) -> Pairs:
        found = Pairs.empty(n_rows, n_pairs)
        _on_spans(kernels.find_drawn, pairs, n_threads, draw, places, found.listed)
        return found

    sizes = _new_sizes(pairs, 2)
    find(sizes, 0, 0)
    before = starts_of(sizes)
    return find(before, *before[-1].tolist())


def _new_sizes(pairs: Pairs, n_numbers: int) -> I64:
    """What spans count, so many numbers each."""
    return np.zeros((max(1, -(-len(pairs.rows) // RUN)), n_numbers), dtype=np.int64)


def _on_spans(kernel: Callable[..., None], pairs: Pairs, n_threads: int, *arguments: Any) -> None:
    """Call a kernel that looks at every pair, on the threads that are worth waking."""
    queue, listed = new_queue(), pairs.listed
    n_threads = min(max(1, -(-len(pairs.rows) // RUN)), pairs.threads(n_threads))
    share_kernel(lambda: kernel(queue, RUN, listed, *arguments), queue, n_threads, calls_blas=False)


def _draw(seed: int, first_row: int, n: int) -> F64:
    """A number in [0, 1) for each of n rows; it depends on the row's place in the whole data alone, (n,)."""
    return np.random.Generator(np.random.PCG64([seed, 0]).advance(first_row)).random(n)
