"""Passes over the frontier of a partition tree: E-steps of Chunky EM whose cost is that of the cells, not of the rows.

The functions take a `Frontier`, so they serve rows in memory and streamed rows alike: after the tree is built the rows
are read only where leaves are opened. Cells go in fixed blocks, nodes before single rows, results in block order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from globular.model.chunks import BoundGap, ChunkGains, Within
from globular.model.statistics import F64, I64, SoftStatistics
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.host import HostShard
from globular.passes.tree.cells import NUMBERS_AT_ONCE, frontier_of
from globular.passes.tree.expect_neighbors import BoundsOf, bounds_of_members
from globular.passes.tree.frontier import Children, Frontier
from globular.seam.among import All
from globular.seam.tree_passes import ExpectCells, Gains, Gap

SAMPLED_ROWS = 2**12
"""Rows that tell how far the bound is below the log-likelihood; larger = a closer estimate, whose standard error on
pixels is 0.007 nats a row."""


@HostShard.implements(ExpectCells, All)
def expect_all(shard: HostShard, work: ExpectCells) -> SoftStatistics:
    """Every cell against all components."""
    frontier, n_threads = frontier_of(shard), shard.n_threads
    blocks = ChunkBlocks(work.mixture, frontier.offset)
    blocks.rule = work.rule
    counted = [part.weights for part in frontier.parts()]
    if work.within is not None:
        counted = _held_weights(frontier, work.within, n_threads)
    found = [
        blocks.moments(blocks.observed(part), weights, n_threads)
        for part, weights in zip(frontier.parts(), counted, strict=True)
        if len(part)  # mostly no cell is a single row
    ]
    total = found[0] if len(found) == 1 else found[0] + found[1]
    return blocks.statistics(total, len(frontier))


def _held_weights(frontier: Frontier, within: Within, n_threads: int) -> list[F64]:
    """w q(component) of every cell, nodes and rows; the normalisers are kept with the frontier."""
    if frontier.densities is None or frontier.densities[0] is not within.mixture:
        blocks = ChunkBlocks(within.mixture, frontier.offset)
        found = [blocks.densities(blocks.observed(part), n_threads) for part in frontier.parts()]
        frontier.densities = within.mixture, np.concatenate(found)
    alone = ChunkBlocks(within.mixture.pick(slice(within.component, within.component + 1)), frontier.offset)
    found, first = [], 0
    for part in frontier.parts():
        joint = alone.densities(alone.observed(part), n_threads)  # of one component its log-joint
        norms = frontier.densities[1][first : first + len(part)]
        found.append(part.weights * np.exp(np.minimum(joint - norms, 0.0)))
        first += len(part)
    return found


def _bounds(shard: HostShard, work: Gains | Gap) -> tuple[BoundsOf, int]:
    """What finds the bounds of chunks, of all components or of those that cells keep, and how many these are."""
    frontier, n_threads = frontier_of(shard), shard.n_threads
    if work.truncated:
        return bounds_of_members(frontier, work.mixture, n_threads)
    blocks = ChunkBlocks(work.mixture, frontier.offset)
    return lambda chunks, _: blocks.densities(blocks.observed(chunks), n_threads), work.mixture.n_components


def per_parent(children: Children, values: F64, n_parents: int) -> F64:
    """Values of children summed by their parents, (n_parents,)."""
    return np.asarray(np.bincount(children.parents, values, minlength=n_parents), dtype=np.float64)


def _rises(shard: HostShard, work: Gap, bounds_of: BoundsOf, places: I64, rows: Children) -> F64:
    """How far each of some rows is above the bound of its cell."""
    frontier, n_threads = frontier_of(shard), shard.n_threads
    nodes = frontier.some_chunks(places)
    if work.truncated:
        return bounds_of(rows.chunks, places[rows.parents]) - bounds_of(nodes, places)[rows.parents]
    blocks = ChunkBlocks(work.mixture, frontier.offset)
    q, bounds = blocks.posterior(blocks.observed(nodes), n_threads)
    single, weights = blocks.observed(rows.chunks), rows.chunks.weights
    rises = blocks.densities(single, n_threads) - bounds[rows.parents]
    # Σ_s q_A(s) log p(s, x), whose mean over the cell is known, tells by regression how rows differ from their cell
    expected = bounds + (q * np.log(np.maximum(q, 1e-300))).sum(axis=1)
    joint = blocks.log_joint(single, n_threads)
    off = np.einsum("rc,rc->r", q[rows.parents], joint) - expected[rows.parents]
    return rises - float(weights * rises @ off) / max(float(weights * off @ off), 1e-300) * off


@HostShard.implements(Gap)
def gap(shard: HostShard, work: Gap) -> BoundGap:
    """The gap from some rows of nodes, drawn by weight. All rows are read at once, maybe from disk.

    Cells without scatter have no gap; each of the others is looked at, unless they are more than the rows to be drawn.
    """
    frontier, (bounds_of, per_cell) = frontier_of(shard), _bounds(shard, work)
    spread = np.flatnonzero(frontier.spread)
    if not len(spread):
        return BoundGap(0.0, 0)
    rng, weights = np.random.default_rng(0), frontier.tree.weights[frontier.nodes[spread]]
    unit = float(weights.sum()) / SAMPLED_ROWS
    masses = unit * (np.arange(SAMPLED_ROWS) + rng.random(SAMPLED_ROWS))
    hit = np.searchsorted(np.cumsum(weights), masses, "right").clip(max=len(spread) - 1)
    counts = np.bincount(hit, minlength=len(spread))
    all_of_them = len(spread) <= SAMPLED_ROWS
    chosen = np.arange(len(spread)) if all_of_them else np.flatnonzero(counts)
    rows = frontier.sample(spread[chosen], counts[chosen].clip(min=1), rng)
    stand_for = weights if all_of_them else unit * counts[chosen]
    counted = per_parent(rows, rows.chunks.weights, len(chosen))
    sums = per_parent(rows, rows.chunks.weights * _rises(shard, work, bounds_of, spread[chosen], rows), len(chosen))
    total = float(stand_for @ (sums / np.where(counted > 0, counted, 1.0)))
    return BoundGap(total, (len(chosen) + len(rows.chunks)) * per_cell)


@HostShard.implements(Gains)
def gains(shard: HostShard, work: Gains) -> ChunkGains:
    """Gains of all nodes, per cell added, to the frontier; the n largest of them as the answer.

    Nodes without scatter are exact already: their gain is zero without looking. Those known from an earlier pass under
    the same mixture stay: only what was opened since is looked at.
    """
    frontier, (bounds_of, per_cell) = frontier_of(shard), _bounds(shard, work)
    if frontier.gains is None or frontier.gains_of is None or not work.continues(frontier.gains_of):
        frontier.gains = np.full(len(frontier.nodes), np.nan)
    frontier.gains_of = work
    added = np.maximum(frontier.n_children() - 1, 1)
    found, n_cells = frontier.gains * added, 0
    unknown = np.flatnonzero(np.isnan(found))
    found[unknown] = 0.0
    spread = unknown[frontier.spread[unknown]]
    D, width = frontier.tree.means.shape[1], frontier.tree.scatter.shape[1]
    for places in _by_children(frontier, spread, max(1, NUMBERS_AT_ONCE // (D + width))):
        nodes = frontier.some_chunks(places)
        # the children's parts of F minus their parents'
        gained = -nodes.weights * bounds_of(nodes, places)
        n_cells += len(places)
        for children in frontier.children(places, shard.n_threads):
            bounds = bounds_of(children.chunks, places[children.parents])
            gained += per_parent(children, children.chunks.weights * bounds, len(places))
            n_cells += len(children.chunks)
        found[places] = np.maximum(gained, 0.0)  # negative by rounding only
    frontier.gains = found / added
    best = largest_first(frontier.gains, work.n)
    return ChunkGains(frontier.gains[best], added[best], float(found.sum()), len(frontier), n_cells * per_cell)


def largest_first(values: F64, n: int) -> I64:
    """Places of the n largest values, the first of equal ones first; only those are sorted."""
    places = np.arange(len(values))
    if n < len(values):
        places = np.flatnonzero(values >= np.partition(values, len(values) - n)[len(values) - n])
    return places[np.argsort(-values[places], kind="stable")[:n]]


def _by_children(frontier: Frontier, places: I64, size: int) -> Iterator[I64]:
    """Places of nodes in blocks with about `size` children each."""
    ends = np.cumsum(frontier.n_children(places))
    begin = 0
    while begin < len(places):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield places[begin:end]
        begin = end
