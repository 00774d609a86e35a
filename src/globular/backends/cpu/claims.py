"""Rows or cells that components of a mixture are responsible for, copied out: what a component can be split on.

Every block is evaluated under all components, and rows with a noticeable share of a wanted component leave with that
share as their weight. A component that holds many rows gives only a random part of them, weighted up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.chunk_blocks import ChunkBlocks
from globular.backends.cpu.pairs import Pairs, held_by
from globular.backends.cpu.soft import Span, evaluate_blocks
from globular.backends.protocol import Index
from globular.data.tree import Frontier
from globular.kernels.soft import softmax_rows
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, Claim
from globular.threads import even_ranges, map_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

_CELLS_AT_ONCE = 1024
_NONE = np.empty(0)
SMALLEST_SHARE = 1e-4
"""Rows with a smaller responsibility are left out; together they weigh nothing."""


def claim_pass(
    shard: CpuShard, mixture: GaussianParameters, components: Index, rates: F64, seed: int, kept: bool = False
) -> list[Claim]:
    """See `Shard.claim_pass`."""
    if kept and shard.kept is not None:
        return _claim_pairs(shard, shard.kept.pairs, mixture, components, rates, seed)

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


def _claim_pairs(
    shard: CpuShard, pairs: Pairs, mixture: GaussianParameters, components: Index, rates: F64, seed: int
) -> list[Claim]:
    """The same from pairs that were kept."""
    q, _ = pairs.normalise(pairs.joint(held_by(shard.rows, shard.scales), mixture, shard.n_threads))
    drawn = _draw(seed, shard.first_row, shard.n_rows)
    found = []
    for component, rate in zip(components, rates, strict=True):
        held = pairs.of(int(component))
        held = held[(q[held] > SMALLEST_SHARE) & (drawn[pairs.rows[held]] < rate)]
        rows = pairs.rows[held]
        found.append(Claim(shard.take(rows), q[held] * shard.take_weights(rows) / rate))
    return found


def _draw(seed: int, first_row: int, n: int) -> F64:
    """A number in [0, 1) for each of n rows; it depends on the row's place in the whole data alone, (n,)."""
    return np.random.Generator(np.random.PCG64([seed, 0]).advance(first_row)).random(n)


def claim_chunks(
    frontier: Frontier, mixture: GaussianParameters, components: NDArray[np.integer], n_threads: int
) -> list[Chunks]:
    """See `Shard.claim_chunks`."""
    blocks = ChunkBlocks(mixture, frontier.offset)

    def claim(part: Chunks) -> list[Chunks]:
        q = blocks.log_joint(part, blocks.features(part))
        softmax_rows(q, _NONE, np.empty(len(part)))
        found = []
        for component in components:
            chosen = np.flatnonzero(q[:, component] > SMALLEST_SHARE)
            held, share = part.pick(chosen), q[chosen, component]
            # the scatter is summed, so that it shrinks with the weight
            found.append(Chunks(held.weights * share, held.means, held.scatter * share[:, None], held.kind))
        return found

    spans = [(chunks, span) for chunks in frontier.parts() for span in even_ranges(len(chunks), _CELLS_AT_ONCE)]
    parts = map_all(lambda work: claim(work[0].pick(slice(*work[1]))), spans, n_threads)
    return [Chunks.join([part[i] for part in parts]) for i in range(len(components))]


def open_claimed(
    frontier: Frontier, mixture: GaussianParameters, components: NDArray[np.integer], least: int, n_threads: int
) -> int:
    """See `Shard.open_claimed`."""
    holders = _holders(frontier, mixture, n_threads)
    n_cells = np.bincount(holders, minlength=mixture.n_components)
    wanted = np.zeros(mixture.n_components, dtype=bool)
    wanted[components] = True
    holders = holders[: len(frontier.nodes)]
    while True:
        short = wanted & (n_cells < least)
        places = np.flatnonzero(short[holders] & (frontier.node_chunks.scatter != 0.0).any(axis=1))
        if not len(places):
            return len(frontier)
        n_cells += np.bincount(holders[places], frontier.n_children(places) - 1, minlength=mixture.n_components).astype(
            np.int64
        )
        inner = places[~frontier.tree.is_leaf(frontier.nodes[places])]
        holders = np.concatenate([np.delete(holders, places), np.repeat(holders[inner], 2)])  # the order of `open`
        frontier.open(places)


def _holders(frontier: Frontier, mixture: GaussianParameters, n_threads: int) -> NDArray[np.integer]:
    """The component of largest responsibility for every cell, (n_cells,)."""
    if frontier.members is not None:
        return np.maximum(frontier.members[:, 0], 0)
    blocks = ChunkBlocks(mixture, frontier.offset)

    def find(part: Chunks) -> NDArray[np.integer]:
        return np.asarray(blocks.log_joint(part, blocks.features(part)).argmax(axis=1))

    spans = [(chunks, span) for chunks in frontier.parts() for span in even_ranges(len(chunks), _CELLS_AT_ONCE)]
    return np.concatenate(map_all(lambda work: find(work[0].pick(slice(*work[1]))), spans, n_threads))
