"""Truncated passes over chunks: each cell keeps few components K(A), so a pass costs neither rows nor components.

The search is that of truncated variational EM (Forster & Lücke 2018) with cells for rows: K(A) becomes the best C′ of
the neighbourhoods of its components; costs, responsibilities and sums are those of rows (`cpu.expect.neighbors`).
Children inherit K(A), so the bound never falls when a cell is opened. A new frontier starts from the C′ best of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from globular.jit import kernel
from globular.model.chunks import Chunks
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, PairStatistics, SoftStatistics
from globular.passes.cpu.assign.neighbors import search_space
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks
from globular.passes.cpu.expect.neighbors import Members, Weighed, chunk_cost, costs_of, share_out, soft_sums
from globular.passes.cpu.rows import DenseRows
from globular.passes.host import NONE, SEARCHED_AT_ONCE, HostShard
from globular.passes.tree.cells import frontier_of
from globular.passes.tree.frontier import Frontier
from globular.seam.among import Neighbors
from globular.seam.tree_passes import ExpectCells
from globular.threads import even_ranges, map_all, run_all

BoundsOf = Callable[[Chunks, I64], F64]
"""From chunks, and the place of the node that each one is of, to their parts of F per unit weight."""


class Space(NamedTuple):
    """Workspace of a search: the components that a cell looks at."""

    stamps: Any  # (C,) int64, zeros at first
    former: Any  # (C′,)
    seen: Any  # (C′·G + n_random,) int32
    seen_costs: Any  # (the same,)


@kernel
def search_cells(
    chunks: Any,  # IN  means, (B, D), spread, (B, S) or (B, 0), and weights, (B,)
    first: int,  # IN  number of the first of these cells, for the random components
    weighed: Any,  # IN  a `Weighed`
    graph: Any,  # IN  (C, G)
    n_random: int,  # IN
    seed: Any,  # IN  uint64
    members: Any,  # IN/OUT (B, C′) K(A), best first; −1 where there is none
    costs: Any,  # OUT (B, C′) of these; inf where there is none
    pairs: Any,  # OUT (2, B·(C′·G + n_random)), or (2, 0) when no estimates are wanted
    sums: Any,  # OUT the same shape: Σ w cost, Σ w
    space: Any,  # scratch
) -> tuple[int, int]:
    """K(A) becomes the C′ components of largest joint among ∪ G_c, c ∈ K(A), and a few at random.

    Returns the densities evaluated and the number of pairs. O(B·C′·G·S).
    """
    seen, (means, spread, weights) = space.seen, chunks
    n_distances, n_pairs = 0, 0
    for i in range(weights.shape[0]):
        n_seen = search_space(members, i, graph, n_random, seed, first + i, space)
        n_kept = 0
        for s in range(n_seen):
            space.seen_costs[s] = chunk_cost(means, spread, i, weighed, seen[s])
            n_kept = insert(space.seen_costs[s], seen[s], costs[i], members[i], n_kept)
        for a in range(n_kept, members.shape[1]):
            members[i, a] = -1
            costs[i, a] = np.inf
        n_distances += n_seen
        if pairs.shape[1] and weights[i] > 0.0:
            for s in range(n_seen):
                if seen[s] != members[i, 0]:
                    pairs[0, n_pairs], pairs[1, n_pairs] = members[i, 0], seen[s]
                    sums[0, n_pairs], sums[1, n_pairs] = weights[i] * space.seen_costs[s], weights[i]
                    n_pairs += 1
    return n_distances, n_pairs


# --- drivers ---------------------------------------------------------------------------------------------------------


def _weighed(mixture: GaussianParameters) -> Weighed:
    """−2 ⟨log p(c, x)⟩ of the components of a mixture; precisions are packed."""
    precisions = mixture.family.scatter.dual(mixture.each(mixture.precisions))
    return Weighed(mixture.means, precisions, -2.0 * np.maximum(mixture.log_constants, ABSENT))


def _spread(chunks: Chunks, kind: ScatterKind) -> F64:
    """Scatter of this kind per unit weight."""
    if not chunks.scatter.shape[1]:
        return chunks.scatter
    packed = chunks.kind.coarsen(chunks.scatter, kind, chunks.means.shape[1])
    return np.asarray(packed / np.where(chunks.weights > 0, chunks.weights, np.inf)[:, None])


@HostShard.implements(ExpectCells, Neighbors)
def expect_neighbors(shard: HostShard, work: ExpectCells) -> SoftStatistics:
    """Every cell against the neighbourhoods of its K(A)."""
    assert isinstance(work.among, Neighbors)
    frontier, mixture, n_threads = frontier_of(shard), work.mixture, shard.n_threads
    C_prime, n_distances = min(work.among.search.n_candidates, mixture.n_components), 0
    if frontier.members is None or frontier.members.shape[1] != C_prime:
        frontier.members = _best_members(frontier, mixture, C_prime, n_threads)
        n_distances = len(frontier) * mixture.n_components
    members, (nodes, rows) = frontier.members, frontier.parts()
    shares, pairs, searched = _search(frontier, mixture, work.among, members, n_threads)
    weights = np.concatenate([nodes.weights, rows.weights])
    bounds, _ = share_out(shares, weights, n_threads)
    means, spread = DenseRows(np.concatenate([nodes.means, rows.means])), _spread(nodes, mixture.family.scatter)
    return SoftStatistics(
        *soft_sums(means, mixture, members, shares, n_threads, spread), float(weights @ bounds), float(weights.sum()),
        n_distances + searched, pairs,
    )  # fmt: skip


def bounds_of_members(frontier: Frontier, mixture: GaussianParameters, n_threads: int) -> tuple[BoundsOf, int]:
    """What finds the bounds of chunks that have the components of their cells, and how many these are."""
    if frontier.members is None:
        raise RuntimeError("truncated gains need the components of a pass among Neighbors; run that first")
    members, weighed = frontier.members, _weighed(mixture)

    def bounds_of(chunks: Chunks, owners: I64) -> F64:
        means, spread = DenseRows(chunks.means), _spread(chunks, mixture.family.scatter)
        return share_out(costs_of(means, weighed, members[owners], n_threads, spread)[0], NONE, n_threads)[0]

    return bounds_of, members.shape[1]


def _tasks(frontier: Frontier) -> list[tuple[slice, Chunks]]:
    """Cells that are looked at together, and where they are among all: nodes, then rows."""
    found, first = [], 0
    for part in frontier.parts():
        spans = even_ranges(len(part), SEARCHED_AT_ONCE)
        found += [(slice(first + begin, first + end), part.pick(slice(begin, end))) for begin, end in spans]
        first += len(part)
    return found


def _best_members(frontier: Frontier, mixture: GaussianParameters, C_prime: int, n_threads: int) -> Members:
    """The C′ best of all components for every cell, best first. O(M·C·S), once per frontier."""
    blocks = ChunkBlocks(mixture, frontier.offset)
    members = np.empty((len(frontier), C_prime), dtype=np.int32)

    def select(task: tuple[slice, Chunks]) -> None:
        rows, chunks = task
        for span in even_ranges(len(chunks), 128):
            joint = blocks.log_joint(blocks.observed(chunks.pick(slice(*span))))
            best = np.argpartition(-joint, C_prime - 1, axis=1)[:, :C_prime]
            ranks = np.argsort(-np.take_along_axis(joint, best, axis=1), axis=1, kind="stable")
            members[rows][slice(*span)] = np.take_along_axis(best, ranks, axis=1)

    run_all(select, _tasks(frontier), n_threads)
    return members


def _search(
    frontier: Frontier, mixture: GaussianParameters, among: Neighbors, members: Members, n_threads: int
) -> tuple[F64, PairStatistics, int]:
    """Renew K(A) in place: its costs, the pairs for Eq. 8, and the densities it took."""
    graph, search, weighed, costs = among.graph, among.search, _weighed(mixture), np.empty(members.shape)
    C, C_prime = len(graph), members.shape[1]
    width = C_prime * graph.shape[1] + search.n_random

    def of_cells(task: tuple[slice, Chunks]) -> tuple[PairStatistics, int]:
        rows, chunks = task
        n_pairs = width * len(chunks) if search.estimate else 0
        pairs, sums = np.empty((2, n_pairs), dtype=np.int32), np.empty((2, n_pairs), dtype=np.float32)
        space = Space(
            np.zeros(C, dtype=np.int64), np.empty(C_prime, dtype=np.int32), np.empty(width, dtype=np.int32),
            np.empty(width),
        )  # fmt: skip
        n_distances, n_pairs = search_cells(
            (chunks.means, _spread(chunks, mixture.family.scatter), chunks.weights), rows.start, weighed, graph,
            search.n_random, np.uint64(search.seed), members[rows], costs[rows], pairs, sums, space,
        )  # fmt: skip
        return PairStatistics(pairs[:, :n_pairs], sums[:, :n_pairs]), int(n_distances)

    found = map_all(of_cells, _tasks(frontier), n_threads)
    pieces = PairStatistics.of_pieces([piece for pairs, _ in found for piece in pairs.pieces])
    return costs, pieces, sum(n for _, n in found)
