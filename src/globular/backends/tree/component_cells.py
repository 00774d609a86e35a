"""Cells that components of a mixture are responsible for: what one can be split on, and what is opened for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.blocks import ChunkBlocks
from globular.backends.cpu.expect.rows_of import SMALLEST_SHARE
from globular.backends.host import HostShard
from globular.backends.tree.cells import frontier_of
from globular.backends.tree.frontier import Frontier
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.seam.tree_passes import CellsOf, OpenHeld
from globular.threads import even_ranges, map_all

_CELLS_AT_ONCE = 1024


@HostShard.implements(CellsOf)
def cells_of(shard: HostShard, work: CellsOf) -> list[Chunks]:
    frontier, mixture, components = frontier_of(shard), work.mixture, work.components
    blocks = ChunkBlocks(mixture, frontier.offset)

    def claim(part: Chunks) -> list[Chunks]:
        q, _ = blocks.posterior(blocks.observed(part))
        found = []
        for component in components:
            chosen = np.flatnonzero(q[:, component] > SMALLEST_SHARE)
            held, share = part.pick(chosen), q[chosen, component]
            # the scatter is summed, so that it shrinks with the weight
            found.append(Chunks(held.weights * share, held.means, held.scatter * share[:, None], held.kind))
        return found

    spans = [(chunks, span) for chunks in frontier.parts() for span in even_ranges(len(chunks), _CELLS_AT_ONCE)]
    parts = map_all(lambda task: claim(task[0].pick(slice(*task[1]))), spans, shard.n_threads)
    return [Chunks.join([part[i] for part in parts]) for i in range(len(components))]


@HostShard.implements(OpenHeld)
def open_held(shard: HostShard, work: OpenHeld) -> int:
    frontier, mixture, components, least = frontier_of(shard), work.mixture, work.components, work.least
    holders = _holders(frontier, mixture, shard.n_threads)
    n_cells = np.bincount(holders, minlength=mixture.n_components)
    wanted = np.zeros(mixture.n_components, dtype=bool)
    wanted[components] = True
    holders = holders[: len(frontier.nodes)]
    while True:
        short = wanted & (n_cells < least)
        places = np.flatnonzero(short[holders] & frontier.spread)
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
    found = [np.empty(len(part), dtype=np.int64) for part in frontier.parts()]
    for part, components in zip(frontier.parts(), found, strict=True):
        blocks.answer(blocks.observed(part), n_threads, components=components)
    return np.concatenate(found)
