"""Rows that components of a mixture are responsible for, copied out: what a component can be split on.

Every block is evaluated under all components, and rows with a noticeable share of a wanted component leave with that
share as their weight. A component that holds many rows gives only a random part of them, weighted up.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.expect.all import Span, block_rows, blocks_for
from globular.backends.cpu.expect.pairs import Pairs
from globular.backends.cpu.expect.remembered import Kept
from globular.backends.cpu.shard import CpuShard
from globular.model.groups import group_by
from globular.model.statistics import F64, Claim
from globular.seam.mixture_passes import RowsOf
from globular.threads import even_ranges, map_all, run_all

ROWS_AT_ONCE, DRAWN_AT_ONCE = 4096, 1 << 16
SMALLEST_SHARE = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


@CpuShard.implements(RowsOf)
def rows_of(shard: CpuShard, work: RowsOf) -> list[Claim]:
    mixture, components, rates, seed = work.mixture, work.components, work.rates, work.seed
    kept = shard.recall(Kept)
    if work.remembered and kept is not None:
        return _claim_pairs(shard, kept.pairs, work)

    blocks = blocks_for(shard, mixture)

    def claim(block: Span) -> list[Claim]:
        rows = block_rows(shard, block)
        weights = shard.weights[slice(*block)] if len(shard.weights) else np.ones(len(rows))
        q, _ = blocks.posterior(blocks.rows(rows, np.empty(0)))
        drawn = _draw(seed, shard.first_row + block[0], len(rows))
        found = []
        for component, rate in zip(components, rates, strict=True):
            chosen = np.flatnonzero((q[:, component] > SMALLEST_SHARE) & (drawn < rate) & (weights > 0))
            found.append(Claim(rows[chosen], weights[chosen] * q[chosen, component] / rate))
        return found

    parts = map_all(claim, even_ranges(shard.n_rows, ROWS_AT_ONCE), shard.n_threads)
    none = Claim(np.empty((0, shard.n_columns)), np.empty(0))
    return [Claim.join([none, *(part[i] for part in parts)]) for i in range(len(components))]


def _claim_pairs(shard: CpuShard, pairs: Pairs, work: RowsOf) -> list[Claim]:
    """The same from pairs that were kept; rows that nobody draws are left alone."""
    drawn, rates = np.empty(shard.n_rows), np.zeros(work.mixture.n_components)
    rates[work.components] = work.rates

    def draw(span: Span) -> None:
        drawn[slice(*span)] = _draw(work.seed, shard.first_row + span[0], span[1] - span[0])

    run_all(draw, even_ranges(shard.n_rows, DRAWN_AT_ONCE), shard.n_threads)
    pairs = pairs.drawn_by(rates, drawn, shard.n_threads)
    q, owners = np.empty(len(pairs)), pairs.owners(shard.n_threads)
    pairs.e_step(shard, work.mixture, q)
    kept = np.flatnonzero((q > SMALLEST_SHARE) & (drawn[owners] < rates[pairs.components]))
    bounds, order = group_by(pairs.components[kept], work.mixture.n_components, shard.n_threads)
    kept = kept[order]
    owners, components = owners[kept], pairs.components[kept]
    rows, weights = shard.take(owners), q[kept] * shard.take(owners, "weights") / rates[components]
    held = (slice(bounds[component], bounds[component + 1]) for component in work.components)
    return [Claim(rows[those], weights[those]) for those in held]


def _draw(seed: int, first_row: int, n: int) -> F64:
    """A number in [0, 1) for each of n rows; it depends on the row's place in the whole data alone, (n,)."""
    return np.random.Generator(np.random.PCG64([seed, 0]).advance(first_row)).random(n)
