"""Passes over the frontier of a partition tree: E-steps of Chunky EM whose cost is that of the cells, not of the rows.

The functions take a `Frontier`, so they serve rows in memory and streamed rows alike: after the tree is built the rows
are read only where leaves are opened. Cells go in fixed blocks, nodes before single rows, results in block order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from globular.backends.cpu.expect.blocks import ChunkBlocks, Moments, block_size
from globular.backends.host import HostShard
from globular.backends.tree.cells import frontier_of
from globular.backends.tree.frontier import Children, Frontier
from globular.kernels.expect import softmax_rows
from globular.model.chunks import BoundGap, ChunkGains, Chunks, Within
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, SoftStatistics
from globular.seam.among import All
from globular.seam.tree_passes import ExpectCells, Gains, Gap
from globular.threads import even_ranges, map_all, ordered_map

_MAX_SPANS = 64
"""Statistics are C-sized; so few of them are added up, whatever the number of blocks."""
SAMPLED_ROWS, SAMPLED_CELLS = 4, 8192
"""4 rows of a cell, of at most 8,192 cells, tell how far the bound is below the log-likelihood."""
KEPT_FEATURES = 2**24
"""Numbers in the features of a frontier's nodes up to which they are kept from pass to pass: 128 MB."""
_NONE = np.empty(0)

Span = tuple[int, int]
GainOfBlock = Callable[[I64], tuple[F64, int]]
"""From places of nodes to their gains, and the cells that were looked at."""


@HostShard.implements(ExpectCells, All)
def expect_all(shard: HostShard, work: ExpectCells) -> SoftStatistics:
    """Every cell against all components."""
    frontier, n_threads = frontier_of(shard), shard.n_threads
    blocks = frontier_blocks(frontier, work.mixture)
    kept = node_features(frontier, blocks, n_threads)
    held = None if work.within is None else _Held(frontier, work.within, n_threads)

    def of_span(task: tuple[Chunks, list[Span], int]) -> Moments:
        chunks, spans, first = task
        total = blocks.no_moments()
        for begin, end in spans:
            part = chunks.pick(slice(begin, end))
            weights = None if held is None else held.weights(part, slice(first + begin, first + end))
            features = kept[begin:end] if kept is not None and chunks is frontier.node_chunks else None
            blocks.e_step(total, part, weights, work.rule, features)
        return total

    total = blocks.no_moments()
    for moments in ordered_map(of_span, _work(frontier, blocks.width), n_threads):
        total.add(moments)
    return blocks.statistics(total, len(frontier))


def frontier_blocks(frontier: Frontier, mixture: GaussianParameters) -> ChunkBlocks:
    """The mixture for passes over the whole frontier, packed where features may be kept."""
    D = mixture.n_features
    width = D + mixture.family.scatter.width(D) + 1
    return ChunkBlocks(mixture, frontier.offset, packed=len(frontier) * width <= KEPT_FEATURES)


def node_features(frontier: Frontier, blocks: ChunkBlocks, n_threads: int) -> F64 | None:
    """Features of all nodes, made when first asked for; None if they would take too much memory."""
    n, width = len(frontier.nodes), blocks.coefficients.shape[1]
    if n * width > KEPT_FEATURES:
        return None
    if width not in frontier.features:
        spans = even_ranges(n, block_size(width))
        parts = map_all(lambda span: blocks.features(frontier.node_chunks.pick(slice(*span))), spans, n_threads)
        frontier.features[width] = np.concatenate([np.empty((0, width)), *parts])
    return frontier.features[width]


def _work(frontier: Frontier, width: int) -> Iterator[tuple[Chunks, list[Span], int]]:
    """Blocks of cells, several to a task: (chunks, spans within them, number of their first cell)."""
    size = block_size(width)
    first = 0
    for chunks in frontier.parts():
        spans = even_ranges(len(chunks), size)
        per_task = max(1, -(-len(spans) // _MAX_SPANS))
        for begin, end in even_ranges(len(spans), per_task):
            yield chunks, spans[begin:end], first
        first += len(chunks)


class _Held:
    """The share of a component in every cell; the normalisers are kept with the frontier."""

    def __init__(self, frontier: Frontier, within: Within, n_threads: int) -> None:
        if frontier.densities is None or frontier.densities[0] is not within.mixture:
            frontier.densities = within.mixture, cell_densities(frontier, within.mixture, n_threads)
        self.densities = frontier.densities[1]
        self.blocks = ChunkBlocks(within.mixture.pick(slice(within.component, within.component + 1)), frontier.offset)

    def weights(self, chunks: Chunks, which: slice) -> F64:
        """w q(component)."""
        joint = self.blocks.log_joint(chunks, self.blocks.features(chunks))[:, 0]
        return chunks.weights * np.exp(np.minimum(joint - self.densities[which], 0.0))


def cell_densities(frontier: Frontier, mixture: GaussianParameters, n_threads: int) -> F64:
    """log Σ_c exp ⟨log p(c, x)⟩ of every cell, (M,)."""
    blocks = ChunkBlocks(mixture, frontier.offset)

    def of_span(work: tuple[Chunks, list[Span], int]) -> F64:
        chunks, spans, _ = work
        return np.concatenate([_densities(blocks, chunks.pick(slice(*span))) for span in spans])

    return np.concatenate([_NONE, *map_all(of_span, _work(frontier, blocks.width), n_threads)])


def _densities(blocks: ChunkBlocks, chunks: Chunks, features: F64 | None = None) -> F64:
    """log Σ_c exp ⟨log p(c, x)⟩, (B,)."""
    features = blocks.features(chunks) if features is None else features
    joint, densities = blocks.log_joint(chunks, features), np.empty(len(chunks))
    softmax_rows(joint, _NONE, densities)
    return densities


@HostShard.implements(Gains, All)
def gains_of_all(shard: HostShard, work: Gains) -> ChunkGains:
    frontier = frontier_of(shard)
    blocks = ChunkBlocks(work.mixture, frontier.offset)
    kept = frontier.features.get(blocks.coefficients.shape[1])  # if a pass has made them; a few nodes need not

    def of_block(places: I64) -> tuple[F64, int]:
        nodes = frontier.node_chunks.pick(places)
        # the children's parts of F minus their parents'
        gains = -nodes.weights * _densities(blocks, nodes, None if kept is None else kept[places])
        n_cells = len(places)
        for children in frontier.children(places):
            gains += per_parent(children, children.chunks.weights * _densities(blocks, children.chunks), len(places))
            n_cells += len(children.chunks)
        return gains, n_cells

    return collect_gains(shard, work, of_block, work.mixture.n_components, blocks.width)


def per_parent(children: Children, values: F64, n_parents: int) -> F64:
    """Values of children summed by their parents, (n_parents,)."""
    return np.asarray(np.bincount(children.parents, values, minlength=n_parents), dtype=np.float64)


@HostShard.implements(Gap, All)
def gap_of_all(shard: HostShard, work: Gap) -> BoundGap:
    frontier = frontier_of(shard)
    blocks = ChunkBlocks(work.mixture, frontier.offset)

    def of_block(places: I64, rows: Children) -> float:
        nodes = frontier.node_chunks.pick(places)
        expected = blocks.log_joint(nodes, blocks.features(nodes))
        found = blocks.log_joint(rows.chunks, blocks.features(rows.chunks))
        shares, bounds, densities = expected.copy(), np.empty(len(nodes)), np.empty(len(found))
        softmax_rows(shares, _NONE, bounds)
        # D(q_A ‖ p(s | x)) = Σ_s q_A(s) (⟨log p(s, x)⟩_A − log p(s, x)) − log Σ_s exp ⟨log p(s, x)⟩_A + log p(x); the
        # sum is zero in the mean over the cell, and keeps the estimate from varying.
        divergences = np.einsum("ij,ij->i", shares[rows.parents], expected[rows.parents] - found)
        softmax_rows(found, _NONE, densities)
        divergences += densities - bounds[rows.parents]
        return float(nodes.weights @ mean_of_sample(rows, divergences, len(nodes)))

    return sampled_gap(frontier, of_block, work.mixture.n_components, blocks.width, shard.n_threads)


def mean_of_sample(rows: Children, values: F64, n_parents: int) -> F64:
    """Weighted mean of values of rows, by cell, (n_parents,)."""
    counted = per_parent(rows, rows.chunks.weights, n_parents)
    return per_parent(rows, rows.chunks.weights * values, n_parents) / np.where(counted > 0, counted, 1.0)


def sampled_gap(
    frontier: Frontier, of_block: Callable[[I64, Children], float], per_cell: int, width: int, n_threads: int
) -> BoundGap:
    """Gaps from places of nodes and some of their rows, summed up. All rows are read at once: they may be on disk.

    Cells without scatter have no gap. Of very many cells some stand for the others, by their weight.
    """
    spread = np.flatnonzero(np.any(frontier.node_chunks.scatter != 0.0, axis=1))
    if not len(spread):
        return BoundGap(0.0, 0)
    chosen = spread[:: -(-len(spread) // SAMPLED_CELLS)]
    rows = frontier.sample(chosen, SAMPLED_ROWS)

    def of_span(span: Span) -> float:
        begin, end = span
        held = slice(*np.searchsorted(rows.parents, span))
        return of_block(chosen[begin:end], Children(rows.chunks.pick(held), rows.parents[held] - begin))

    spans = even_ranges(len(chosen), max(1, block_size(width) // SAMPLED_ROWS))
    total = sum(map_all(of_span, spans, n_threads))
    weights = frontier.node_chunks.weights
    share = weights[chosen].sum() / weights[spread].sum() if weights[chosen].sum() > 0 else 1.0
    return BoundGap(total / share, (len(chosen) + len(rows.chunks)) * per_cell)


def collect_gains(shard: HostShard, work: Gains, of_block: GainOfBlock, per_cell: int, width: int) -> ChunkGains:
    """Gains of all nodes, per cell added, to the frontier; the n largest of them as the answer.

    Nodes without scatter are exact already: their gain is zero without looking. Those known from an earlier pass under
    the same mixture stay: only what was opened since is looked at.
    """
    frontier = frontier_of(shard)
    if frontier.gains is None or frontier.gains_of is None or not work.continues(frontier.gains_of):
        frontier.gains = np.full(len(frontier.nodes), np.nan)
    frontier.gains_of = work
    added = np.maximum(frontier.n_children(np.arange(len(frontier.nodes))) - 1, 1)
    gains, n_cells = frontier.gains * added, 0
    unknown = np.flatnonzero(np.isnan(gains))
    gains[unknown] = 0.0
    spread = unknown[np.any(frontier.node_chunks.scatter[unknown] != 0.0, axis=1)]
    works = list(_by_children(frontier, spread, block_size(width)))
    for places, (found, looked_at) in zip(works, map_all(of_block, works, shard.n_threads), strict=True):
        gains[places] = np.maximum(found, 0.0)  # negative by rounding only
        n_cells += looked_at
    frontier.gains = gains / added
    best = np.argsort(-frontier.gains, kind="stable")[: work.n]
    return ChunkGains(frontier.gains[best], added[best], float(gains.sum()), len(frontier), n_cells * per_cell)


def _by_children(frontier: Frontier, places: I64, size: int) -> Iterator[I64]:
    """Places of nodes in blocks with about `size` children each."""
    ends = np.cumsum(frontier.n_children(places))
    begin = 0
    while begin < len(places):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield places[begin:end]
        begin = end
