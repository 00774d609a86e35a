"""A tree over the rows of a shard, the frontier it is opened to, and the passes that plant, open and read it.

After the tree is built rows are read only where leaves are opened, by `Shard.take`: so this serves every shard whose
state is in this process, wherever its rows are.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.host import HostShard
from globular.backends.tree.best_cut import best_parts, parts_below
from globular.backends.tree.frontier import Frontier
from globular.backends.tree.partition import PartitionTree
from globular.model.chunks import Chunks
from globular.model.statistics import F64
from globular.seam.tree_passes import (
    BestCut,
    ForgetMembers,
    FrontierState,
    OpenCut,
    OpenGaining,
    OpenRows,
    Plant,
    PutFrontier,
    ReadFrontier,
    TakeCells,
)


def frontier_of(shard: HostShard) -> Frontier:
    """The cells that the tree over a shard's rows is opened to."""
    if shard.frontier is None:
        raise RuntimeError("there is no tree over these rows yet; run Plant first")
    return cast(Frontier, shard.frontier)


@HostShard.implements(Plant)
def plant(shard: HostShard, work: Plant) -> int:
    known = cast(Frontier | None, shard.frontier)
    if known is None or (known.tree.kind, known.leaf_size) != (work.scatter, work.leaf_size):
        trees = [_tree_of(shard, work, begin, rows) for begin, rows in shard.row_blocks()]

        def read(numbers: NDArray[np.integer]) -> tuple[F64, F64]:
            places = np.asarray(numbers, dtype=np.intp) - shard.first_row
            return shard.take(places), shard.take(places, "weights")

        shard.frontier = Frontier(PartitionTree.join(trees, shard.n_threads), read, work.leaf_size, shard.n_threads)
    frontier = frontier_of(shard)
    frontier.reset(work.largest, work.depth)
    return len(frontier)


def _tree_of(shard: HostShard, work: Plant, begin: int, rows: NDArray[Any]) -> PartitionTree:
    weights, first = shard.weights[begin : begin + len(rows)], shard.first_row + begin
    return PartitionTree.build(rows, weights, work.scatter, work.leaf_size, first_row=first, n_threads=shard.n_threads)


@HostShard.implements(TakeCells)
def take_cells(shard: HostShard, work: TakeCells) -> Chunks:
    return frontier_of(shard).chunks


@HostShard.implements(OpenGaining)
def open_gaining(shard: HostShard, work: OpenGaining) -> int:
    frontier = frontier_of(shard)
    if frontier.gains is None:
        raise RuntimeError("OpenGaining opens what Gains has found; run that first")
    frontier.open(np.flatnonzero((frontier.gains >= work.smallest) & (frontier.gains > 0.0)))
    return len(frontier)


@HostShard.implements(OpenRows)
def open_rows(shard: HostShard, work: OpenRows) -> int:
    frontier = frontier_of(shard)
    while len(frontier.nodes):
        frontier.open(np.arange(len(frontier.nodes)))
    return len(frontier)


@HostShard.implements(BestCut)
def best_cut(shard: HostShard, work: BestCut) -> Chunks:
    frontier = frontier_of(shard)
    frontier.parted = best_parts(frontier.tree, work.value, work.gain, shard.n_threads)
    return frontier.tree.chunks(parts_below(frontier.tree, frontier.parted))


@HostShard.implements(OpenCut)
def open_cut(shard: HostShard, work: OpenCut) -> int:
    frontier = frontier_of(shard)
    while len(places := np.flatnonzero(frontier.parted[frontier.nodes])):
        frontier.open(places)
    return len(frontier)


@HostShard.implements(ForgetMembers)
def forget_members(shard: HostShard, work: ForgetMembers) -> None:
    frontier_of(shard).members = None


@HostShard.implements(ReadFrontier)
def read_frontier(shard: HostShard, work: ReadFrontier) -> list[FrontierState | None]:
    state = frontier_of(shard).state
    return [state if state.n_bytes <= work.most_bytes else None]


@HostShard.implements(PutFrontier)
def put_frontier(shard: HostShard, work: PutFrontier) -> None:
    frontier_of(shard).restore(work.state, work.gains)
