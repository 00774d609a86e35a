"""Cells that components of a mixture are responsible for: what one can be split on, and what is opened for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.blocks import ChunkBlocks
from globular.backends.cpu.expect.rows_of import SMALLEST_SHARE
from globular.backends.cpu.rows import read_only
from globular.backends.host import SEARCHED_AT_ONCE, HostShard
from globular.backends.tree.cells import frontier_of
from globular.backends.tree.expect import NUMBERS_AT_ONCE
from globular.backends.tree.frontier import Frontier
from globular.jit import new_queue, share_kernel
from globular.kernels.claims import find_cells
from globular.model.chunks import Chunks, Claims
from globular.model.gaussian import GaussianParameters
from globular.model.groups import starts_of
from globular.seam.tree_passes import CellsOf, OpenHeld
from globular.threads import SECONDS_PER_NUMBER, even_ranges, worth_waking


@HostShard.implements(CellsOf)
def cells_of(shard: HostShard, work: CellsOf) -> Claims:
    frontier, mixture = frontier_of(shard), work.mixture
    blocks, at_once = ChunkBlocks(mixture, frontier.offset), max(1, NUMBERS_AT_ONCE // mixture.n_components)
    return Claims.join([
        _claimed(blocks, chunks.pick(slice(*span)), work.components, shard.n_threads)
        for chunks in frontier.parts()
        for span in even_ranges(len(chunks), at_once)
    ])  # fmt: skip


def _claimed(blocks: ChunkBlocks, cells: Chunks, components: NDArray[np.integer], n_threads: int) -> Claims:
    """What components hold of some cells: counted first, then copied."""
    q, _ = blocks.posterior(blocks.observed(cells), n_threads)
    n_spans, wanted = -(-len(cells) // SEARCHED_AT_ONCE), components.astype(np.int64)
    places = np.zeros((n_spans, len(components)), dtype=np.int64)
    held = [read_only(np.ascontiguousarray(each)) for each in (cells.weights, cells.means, cells.scatter)]
    n_threads = worth_waking(min(n_threads, n_spans), SECONDS_PER_NUMBER * q.size)

    def find(n: int) -> Chunks:
        weights, means, scatter = (np.empty((n, *each.shape[1:])) for each in held)
        queue, given = new_queue(), (*held, places, weights, means, scatter)
        share_kernel(
            lambda: find_cells(queue, SEARCHED_AT_ONCE, q, wanted, SMALLEST_SHARE, *given), queue, n_threads,
            calls_blas=False,
        )  # fmt: skip
        return Chunks(weights, means, scatter, cells.kind)

    find(0)
    starts = starts_of(places.T.ravel())  # what a component holds in all spans lies together
    places[:] = starts[:-1].reshape(places.T.shape).T
    return Claims(find(int(starts[-1])), starts[::n_spans].copy())


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
