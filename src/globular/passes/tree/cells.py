"""A tree over the rows of a shard, the frontier it is opened to, and the passes that plant, open and read it.

After the tree is built rows are read only where leaves are opened, by `Shard.take`: so this serves every shard whose
state is in this process, wherever its rows are.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import kernel
from globular.model.chunks import Chunks, Claims, NodeValue
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64
from globular.passes.cpu.engine.moments import Answers
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.expect.rows_of import SMALLEST_CLAIM, claims_of
from globular.passes.host import ROWS_AT_ONCE, HostShard
from globular.passes.tree.frontier import Frontier
from globular.passes.tree.partition import PartitionTree
from globular.seam import tree_passes as passes
from globular.threads import even_ranges, map_all

_ENTRIES_AT_ONCE = 2**17
"""Numbers in the matrices of nodes that are looked at together: a megabyte, which the cache holds."""
MOMENTS_AT_ONCE = 2**23
"""Numbers in the means and scatters of children, or in responsibilities, that are held together: 64 MB."""


def frontier_of(shard: HostShard) -> Frontier:
    """The cells that the tree over a shard's rows is opened to."""
    if shard.frontier is None:
        raise RuntimeError("there is no tree over these rows yet; run Plant first")
    return cast(Frontier, shard.frontier)


@HostShard.implements(passes.Plant)
def plant(shard: HostShard, work: passes.Plant) -> int:
    known = cast(Frontier | None, shard.frontier)
    if known is None or (known.tree.kind, known.leaf_size) != (work.scatter, work.leaf_size):
        trees = [
            PartitionTree.build(
                rows, shard.weights[begin : begin + len(rows)], work.scatter, work.leaf_size,
                first_row=shard.first_row + begin, n_threads=shard.n_threads,
            )
            for begin, rows in shard.row_blocks()
        ]  # fmt: skip

        def read(numbers: NDArray[np.integer]) -> tuple[F64, F64]:
            places = np.asarray(numbers, dtype=np.intp) - shard.first_row
            return shard.take(places), shard.take(places, "weights")

        shard.frontier = Frontier(PartitionTree.join(trees, shard.n_threads), read, work.leaf_size, shard.n_threads)
    frontier = frontier_of(shard)
    frontier.reset(work.largest, work.depth)
    return len(frontier)


@HostShard.implements(passes.TakeCells)
def take_cells(shard: HostShard, work: passes.TakeCells) -> Chunks:
    return frontier_of(shard).chunks


@HostShard.implements(passes.OpenGaining)
def open_gaining(shard: HostShard, work: passes.OpenGaining) -> int:
    frontier = frontier_of(shard)
    if frontier.gains is None:
        raise RuntimeError("OpenGaining opens what Gains has found; run that first")
    frontier.open(np.flatnonzero((frontier.gains >= work.smallest) & (frontier.gains > 0.0)))
    return len(frontier)


@HostShard.implements(passes.OpenRows)
def open_rows(shard: HostShard, work: passes.OpenRows) -> int:
    frontier = frontier_of(shard)
    while len(frontier.nodes):
        frontier.open(np.arange(len(frontier.nodes)))
    return len(frontier)


@kernel
def part_nodes(
    children: Any,  # IN  (n_nodes, 2)
    weights: Any,  # IN  (n_nodes,)
    gain: float,  # IN  what parting has to gain per unit of weight
    worth: Any,  # IN what each node is worth as a cluster, OUT what the best of its partitions is worth
    parted: Any,  # OUT (n_nodes,) whether that is one of its children's
) -> None:
    """The best partition that the tree contains, from the leaves up. O(nodes)."""
    for node in range(children.shape[0] - 1, -1, -1):
        a, b = children[node, 0], children[node, 1]
        parted[node] = a >= 0 and worth[a] + worth[b] > worth[node] + gain * weights[node]
        if parted[node]:
            worth[node] = worth[a] + worth[b]


def best_parts(tree: PartitionTree, value: NodeValue, gain: float, n_threads: int = 1) -> NDArray[np.bool_]:
    """The nodes that are better left for their children, by `gain` per unit of weight, (n_nodes,).

    From the leaves up a node is worth what it is worth as one cluster, or what its children are worth together if that
    is more. One look at every node answers for all partitions that the tree contains, of two clusters or of a million.
    """
    step = max(1, _ENTRIES_AT_ONCE // tree.means.shape[1] ** 2)
    blocks = even_ranges(tree.n_nodes, step)
    worth = np.concatenate(map_all(lambda block: value(tree.chunks(np.arange(*block))), blocks, n_threads))
    parted = np.empty(tree.n_nodes, dtype=bool)
    part_nodes(tree.children, tree.weights, gain, worth, parted)
    return parted


def parts_below(tree: PartitionTree, parted: NDArray[np.bool_]) -> I64:
    """The nodes that remain when those are left for their children."""
    found, front = [], np.zeros(1, dtype=np.int64)
    while len(front):
        found.append(front[~parted[front]])
        front = tree.children[front[parted[front]]].ravel()
    return np.concatenate(found)


@HostShard.implements(passes.BestCut)
def best_cut(shard: HostShard, work: passes.BestCut) -> Chunks:
    frontier = frontier_of(shard)
    frontier.parted = best_parts(frontier.tree, work.value, work.gain, shard.n_threads)
    return frontier.tree.chunks(parts_below(frontier.tree, frontier.parted))


@HostShard.implements(passes.OpenCut)
def open_cut(shard: HostShard, work: passes.OpenCut) -> int:
    frontier = frontier_of(shard)
    while len(places := np.flatnonzero(frontier.parted[frontier.nodes])):
        frontier.open(places)
    return len(frontier)


@HostShard.implements(passes.ForgetMembers)
def forget_members(shard: HostShard, work: passes.ForgetMembers) -> None:
    frontier_of(shard).members = None


@HostShard.implements(passes.ReadFrontier)
def read_frontier(shard: HostShard, work: passes.ReadFrontier) -> list[passes.FrontierState | None]:
    state = frontier_of(shard).state
    return [state if state.n_bytes <= work.most_bytes else None]


@HostShard.implements(passes.PutFrontier)
def put_frontier(shard: HostShard, work: passes.PutFrontier) -> None:
    frontier_of(shard).restore(work.state, work.gains)


@HostShard.implements(passes.CellsOf)
def cells_of(shard: HostShard, work: passes.CellsOf) -> Claims:
    frontier, mixture = frontier_of(shard), work.mixture
    blocks, at_once = ChunkBlocks(mixture, frontier.offset), max(1, MOMENTS_AT_ONCE // mixture.n_components)
    found = list[Claims]()
    for part in frontier.parts():
        for span in even_ranges(len(part), at_once):
            found += _claimed(blocks, part.pick(slice(*span)), work.components, shard.n_threads)
    return Claims.join(found)


def _claimed(blocks: ChunkBlocks, cells: Chunks, components: NDArray[np.integer], n_threads: int) -> list[Claims]:
    """What components hold of some cells, piece by piece."""
    q, _ = blocks.posterior(blocks.observed(cells), n_threads)

    def claim(span: tuple[int, int]) -> Claims:
        shares = np.take(q[slice(*span)], components, axis=1)
        return claims_of(cells.pick(slice(*span)), shares, shares > SMALLEST_CLAIM)

    return map_all(claim, even_ranges(len(cells), ROWS_AT_ONCE), n_threads)


@HostShard.implements(passes.OpenHeld)
def open_held(shard: HostShard, work: passes.OpenHeld) -> int:
    frontier, mixture, components, least = frontier_of(shard), work.mixture, work.components, work.least
    holders = _holders(frontier, mixture, shard.n_threads)
    n_cells = np.bincount(holders, minlength=mixture.n_components)
    wanted = np.zeros(mixture.n_components, dtype=bool)
    wanted[components] = True
    holders = holders[: len(frontier.nodes)]
    while len(places := np.flatnonzero((wanted & (n_cells < least))[holders] & frontier.spread)):
        n_cells += np.bincount(holders[places], frontier.n_children(places) - 1, minlength=mixture.n_components).astype(
            np.int64
        )
        inner = places[~frontier.tree.is_leaf(frontier.nodes[places])]
        holders = np.concatenate([np.delete(holders, places), np.repeat(holders[inner], 2)])  # the order of `open`
        frontier.open(places)
    return len(frontier)


def _holders(frontier: Frontier, mixture: GaussianParameters, n_threads: int) -> NDArray[np.integer]:
    """The component of largest responsibility for every cell, (n_cells,)."""
    if frontier.members is not None:
        return np.maximum(frontier.members[:, 0], 0)
    blocks = ChunkBlocks(mixture, frontier.offset)
    found = [np.empty(len(part), dtype=np.int64) for part in frontier.parts()]
    for part, components in zip(frontier.parts(), found, strict=True):
        blocks.answer(blocks.observed(part), n_threads, Answers(components))
    return np.concatenate(found)
