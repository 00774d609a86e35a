"""Rows that components of a mixture are responsible for, copied out: what a component can be split on.

Every block is evaluated under all components, and rows with a noticeable share of a wanted component leave with that
share as their weight. A component that holds many rows gives only a random part of them, weighted up.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.expect.all import Span, evaluate_blocks
from globular.backends.cpu.expect.pairs import Pairs, held_by
from globular.backends.cpu.expect.remembered import Kept
from globular.backends.cpu.shard import CpuShard
from globular.kernels.expect import softmax_rows
from globular.model.statistics import F64, Claim
from globular.seam.passes import RowsOf

SMALLEST_SHARE = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


@CpuShard.implements(RowsOf)
def rows_of(shard: CpuShard, work: RowsOf) -> list[Claim]:
    mixture, components, rates, seed = work.mixture, work.components, work.rates, work.seed
    kept = shard.recall(Kept)
    if work.remembered and kept is not None:
        return _claim_pairs(shard, kept.pairs, work)

    def claim(block: Span, rows: F64, joint: F64) -> list[Claim]:
        weights = shard.weights[slice(*block)]
        softmax_rows(joint, weights, np.empty(len(joint)))
        largest = weights if len(weights) else np.ones(len(joint))
        drawn = _draw(seed, shard.first_row + block[0], len(joint))
        found = []
        for component, rate in zip(components, rates, strict=True):
            q = joint[:, component]
            chosen = np.flatnonzero((q > SMALLEST_SHARE * largest) & (drawn < rate))
            found.append(Claim(rows[chosen], q[chosen] / rate))
        return found

    parts = evaluate_blocks(shard, mixture, claim)
    none = Claim(np.empty((0, shard.n_columns)), np.empty(0))
    return [Claim.join([none, *(part[i] for part in parts)]) for i in range(len(components))]


def _claim_pairs(shard: CpuShard, pairs: Pairs, work: RowsOf) -> list[Claim]:
    """The same from pairs that were kept."""
    q, _ = pairs.normalise(pairs.joint(held_by(shard.rows, shard.scales), work.mixture, shard.n_threads))
    drawn = _draw(work.seed, shard.first_row, shard.n_rows)
    found = []
    for component, rate in zip(work.components, work.rates, strict=True):
        held = pairs.of(int(component))
        held = held[(q[held] > SMALLEST_SHARE) & (drawn[pairs.rows[held]] < rate)]
        rows = pairs.rows[held]
        found.append(Claim(shard.take(rows), q[held] * shard.take(rows, "weights") / rate))
    return found


def _draw(seed: int, first_row: int, n: int) -> F64:
    """A number in [0, 1) for each of n rows; it depends on the row's place in the whole data alone, (n,)."""
    return np.random.Generator(np.random.PCG64([seed, 0]).advance(first_row)).random(n)
