"""Rows that components of a mixture are responsible for, copied out: what a component can be split on.

Rows with a noticeable share of a wanted component leave with that share as their weight. A component that holds many
rows gives only a random part of them, weighted up. All components are evaluated for a block of rows; where rows
remember their components (`remembered`), these alone, and only for rows that one of them may draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.chunks import Chunks, Claims
from globular.model.statistics import F64, I64
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.expect.all import blocks_for
from globular.passes.cpu.expect.pairs import Pairs
from globular.passes.cpu.expect.remembered import Kept
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE, RUN
from globular.seam.mixture_passes import RowsOf, SparseRowsOf
from globular.seam.shard import answer
from globular.threads import SECONDS_PER_LOOK, even_ranges, map_all, run_all

SMALLEST_CLAIM = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


def claims_of(chunks: Chunks, shares: F64, is_claimed: NDArray[np.bool_]) -> Claims:
    """What components claim of chunks, which shrink to their shares, (M, n)."""
    chosen, which = np.nonzero(is_claimed)
    starts, order = group_by(which.astype(np.int32), shares.shape[1])
    chosen, which = chosen[order], which[order]
    some, factors = chunks.pick(chosen), shares[chosen, which]
    some.weights[:] *= factors
    some.scatter[:] *= factors[:, None]
    return Claims(some, starts)


@CpuShard.implements(RowsOf)
@CpuShard.implements(SparseRowsOf)
def rows_of(shard: CpuShard, work: RowsOf) -> Claims:
    kept = shard.recall(Kept) if work.remembered else None
    drawn = _drawn(shard, work)
    claims = _of_all(shard, work, drawn) if kept is None else _of_pairs(shard, work, drawn, kept.pairs)
    claims.chunks.weights[:] /= np.repeat(work.rates, np.diff(claims.starts))
    return claims


def _of_all(shard: CpuShard, work: RowsOf, drawn: F64) -> Claims:
    """What the wanted components hold of all rows, block by block."""
    sparse = isinstance(shard.rows, CSRRows)
    blocks = None if sparse else blocks_for(shard, work.mixture)

    def claim(span: tuple[int, int]) -> tuple[I64, I64, F64]:
        places = np.arange(*span)
        if blocks is None:
            q: F64 = answer(shard.subset(places), work.mixture, "probabilities")
        else:
            q, _ = blocks.posterior(blocks.rows(read_only(shard.take(places)), np.empty(0)))
        shares = np.take(q, work.components, axis=1)
        is_drawn = (drawn[places, None] < work.rates) & (shard.take(places, "weights") > 0)[:, None]
        chosen, which = np.nonzero(is_drawn & (shares > SMALLEST_CLAIM))
        return places[chosen], which, shares[chosen, which]

    found = map_all(claim, even_ranges(shard.n_rows, RUN) or [(0, 0)], shard.n_threads)
    owners, which, shares = (np.concatenate(each) for each in zip(*found, strict=True))
    starts, order = group_by(which.astype(np.int32), len(work.components), shard.n_threads)
    return _claims(shard, work, owners[order], shares[order], starts)


def _claims(shard: CpuShard, work: RowsOf, owners: I64, shares: F64, starts: I64) -> Claims:
    """Copies of rows, with these shares of their weights."""
    rows: Any = shard.rows.picked(owners) if isinstance(shard.rows, CSRRows) else shard.take(owners)
    weights = shard.take(owners, "weights") * shares
    return Claims(Chunks.of_rows(rows, weights, work.mixture.family.scatter), starts)


def _of_pairs(shard: CpuShard, work: RowsOf, drawn: F64, pairs: Pairs) -> Claims:
    """What the wanted components hold of the rows that remember them."""
    (C, n), is_wanted = (work.mixture.n_components, len(work.components)), np.zeros(len(pairs.numbers), dtype=bool)
    rates, ranks = np.zeros(C), np.zeros(C, dtype=np.int32)
    rates[work.components], ranks[work.components] = work.rates, np.arange(n)

    def look(span: tuple[int, int]) -> None:
        some = slice(pairs.starts[span[0]], pairs.starts[span[1]])
        owners = np.repeat(np.arange(*span), np.diff(pairs.starts[span[0] : span[1] + 1]))
        is_wanted[owners[drawn[pairs.numbers[owners]] < rates[pairs.components[some]]]] = True

    spans, seconds = even_ranges(len(pairs.numbers), ROWS_AT_ONCE), SECONDS_PER_LOOK * len(pairs.components)
    run_all(look, spans, shard.n_threads, seconds=seconds, calls_blas=False)
    if not is_wanted.all():
        pairs = pairs.pick(np.flatnonzero(is_wanted))
    q, owners = np.empty(len(pairs.components)), np.repeat(pairs.numbers, np.diff(pairs.starts))
    pairs.e_step(shard, work.mixture, q)
    claimed = np.flatnonzero((q > SMALLEST_CLAIM) & (drawn[owners] < rates[pairs.components]))
    starts, order = group_by(ranks[pairs.components[claimed]], n, shard.n_threads)
    claimed = claimed[order]
    return _claims(shard, work, owners[claimed], q[claimed], starts)


def _drawn(shard: CpuShard, work: RowsOf) -> F64:
    """A number in [0, 1) for each row, made from the place of the row in all data; zeros if every row is wanted."""
    drawn = np.zeros(shard.n_rows)
    if (work.rates >= 1.0).all():
        return drawn

    def draw(span: tuple[int, int]) -> None:
        generator = np.random.PCG64([work.seed, 0]).advance(shard.first_row + span[0])
        drawn[slice(*span)] = np.random.Generator(generator).random(span[1] - span[0])

    spans, seconds = even_ranges(shard.n_rows, ROWS_AT_ONCE), SECONDS_PER_LOOK * shard.n_rows
    run_all(draw, spans, shard.n_threads, seconds=seconds, calls_blas=False)
    return drawn
