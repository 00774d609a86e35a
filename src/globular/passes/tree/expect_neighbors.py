"""Truncated passes over chunks: each cell keeps few components K(A), so a pass costs neither rows nor components.

The search is that of truncated variational EM (Forster & Lücke 2018) with cells for rows: K(A) becomes the best C′ of
the neighbourhoods of its components.
Children inherit K(A), so the bound never falls when a cell is opened. A new frontier starts from the C′ best of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.kernels import chunks as kernels
from globular.model.chunks import BoundGap, ChunkGains, Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph, Search
from globular.model.groups import group_by
from globular.model.statistics import F64, I64, PairStatistics, SoftStatistics
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks
from globular.passes.host import SEARCHED_AT_ONCE, HostShard
from globular.passes.tree.cells import frontier_of
from globular.passes.tree.expect import collect_gains, sampled_gap
from globular.passes.tree.frontier import Children, Frontier
from globular.seam.among import Neighbors
from globular.seam.tree_passes import ExpectCells, Gains, Gap
from globular.threads import even_ranges, map_all, run_all

_COMPONENTS_PER_TASK = 64

Members = NDArray[np.int32]
Span = tuple[int, int]


class _Costs:
    """−2 ⟨log p(c, x)⟩ = ⟨(x − μ)ᵀ Σ⁻¹ (x − μ)⟩ + bias, and the chunks in the form that kernels take."""

    def __init__(self, mixture: GaussianParameters) -> None:
        self.mixture, self.kind = mixture, mixture.family.scatter
        self.precisions = self.kind.dual(mixture.each(mixture.precisions))
        self.biases = -2.0 * np.maximum(mixture.log_constants, ABSENT)

    def spread(self, chunks: Chunks) -> F64:
        """Scatter per unit weight, (B, S) or (B, 0)."""
        if chunks.scatter.shape[1] == 0:
            return chunks.scatter
        packed = chunks.kind.coarsen(chunks.scatter, self.kind, chunks.means.shape[1])
        weights = np.where(chunks.weights > 0, chunks.weights, np.inf)
        return packed / weights[:, None]

    def share(self, chunks: Chunks, members: Members, owners: I64) -> tuple[F64, F64]:
        """w q(c) over K(A), (B, C′), and the bound per unit weight, (B,)."""
        shares, bounds = np.empty((len(chunks), members.shape[1])), np.empty(len(chunks))
        kernels.share_chunks(
            chunks.means, self.spread(chunks), chunks.weights, self.mixture.means, self.precisions, self.biases,
            members, owners, shares, bounds,
        )  # fmt: skip
        return shares, bounds

    def bounds(self, chunks: Chunks, members: Members, owners: I64, n_threads: int) -> F64:
        """The bound per unit weight of every chunk, (M,)."""

        def of_span(span: Span) -> F64:
            return self.share(chunks.pick(slice(*span)), members, owners[slice(*span)])[1]

        parts = map_all(of_span, even_ranges(len(chunks), SEARCHED_AT_ONCE), n_threads)
        return np.concatenate([np.empty(0), *parts])


@HostShard.implements(ExpectCells, Neighbors)
def expect_neighbors(shard: HostShard, work: ExpectCells) -> SoftStatistics:
    """Every cell against the neighbourhoods of its K(A)."""
    assert isinstance(work.among, Neighbors)
    frontier, mixture, n_threads = frontier_of(shard), work.mixture, shard.n_threads
    graph, search = work.among.graph, work.among.search
    costs = _Costs(mixture)
    C_prime = min(search.n_candidates, mixture.n_components)
    n_distances = 0
    if frontier.members is None or frontier.members.shape[1] != C_prime:
        frontier.members = _best_members(frontier, mixture, C_prime, n_threads)
        n_distances = len(frontier) * mixture.n_components
    members = frontier.members
    found, searched = _search(frontier, costs, graph, search, members, n_threads)
    shares, bounds = np.empty(members.shape), np.empty(len(members))

    def share(work: tuple[Chunks, Span, int]) -> None:
        chunks, (begin, end), first = work
        rows = slice(first + begin, first + end)
        shares[rows], bounds[rows] = costs.share(chunks.pick(slice(begin, end)), members[rows], np.arange(end - begin))

    run_all(share, _tasks(frontier), n_threads)
    weights = np.concatenate([part.weights for part in frontier.parts()])
    counts, sums, scatter = _sum_shares(frontier, costs, members, shares, n_threads)
    return SoftStatistics(
        counts, sums, costs.kind.unpack(scatter, mixture.n_features), float(weights @ bounds), float(weights.sum()),
        n_distances + searched, found,
    )  # fmt: skip


@HostShard.implements(Gains, Neighbors)
def gains_of_members(shard: HostShard, work: Gains) -> ChunkGains:
    """Gains in the bound when children keep the components of their parents."""
    frontier = frontier_of(shard)
    members, costs = _members(frontier), _Costs(work.mixture)

    def bounds_of(chunks: Chunks, owners: I64) -> F64:
        return costs.bounds(chunks, members, owners, shard.n_threads)

    return collect_gains(shard, work, bounds_of, members.shape[1])


@HostShard.implements(Gap, Neighbors)
def gap_of_members(shard: HostShard, work: Gap) -> BoundGap:
    """How far the truncated bound is below that of single rows, each with the components of its cell."""
    frontier = frontier_of(shard)
    members, costs = _members(frontier), _Costs(work.mixture)

    def of_sample(places: I64, rows: Children) -> F64:
        held, nodes = members[places], frontier.some_chunks(places)
        of_nodes = costs.bounds(nodes, held, np.arange(len(places)), shard.n_threads)
        of_rows = costs.bounds(rows.chunks, held, rows.parents, shard.n_threads)
        return of_rows - of_nodes[rows.parents]

    return sampled_gap(frontier, of_sample, members.shape[1])


def _members(frontier: Frontier) -> Members:
    if frontier.members is None:
        raise RuntimeError("truncated gains need the components of a pass among Neighbors; run that first")
    return frontier.members


def _tasks(frontier: Frontier) -> list[tuple[Chunks, Span, int]]:
    nodes, rows = frontier.parts()
    return [
        (part, span, first)
        for part, first in ((nodes, 0), (rows, len(nodes)))
        for span in even_ranges(len(part), SEARCHED_AT_ONCE)
    ]


def _best_members(frontier: Frontier, mixture: GaussianParameters, C_prime: int, n_threads: int) -> Members:
    """The C′ best of all components for every cell, best first. O(M·C·S), once per frontier."""
    blocks = ChunkBlocks(mixture, frontier.offset)
    members = np.empty((len(frontier), C_prime), dtype=np.int32)

    def select(work: tuple[Chunks, Span, int]) -> None:
        chunks, span, first = work
        for begin, end in even_ranges(span[1] - span[0], 128):
            part = chunks.pick(slice(span[0] + begin, span[0] + end))
            joint = blocks.log_joint(blocks.observed(part))
            best = np.argpartition(-joint, C_prime - 1, axis=1)[:, :C_prime]
            ranks = np.argsort(-np.take_along_axis(joint, best, axis=1), axis=1, kind="stable")
            rows = slice(first + span[0] + begin, first + span[0] + end)
            members[rows] = np.take_along_axis(best, ranks, axis=1)

    run_all(select, _tasks(frontier), n_threads)
    return members


def _search(
    frontier: Frontier, costs: _Costs, graph: Graph, search: Search, members: Members, n_threads: int
) -> tuple[PairStatistics, int]:
    """Renew K(A) in place; the pairs for Eq. 8 and the densities it took."""
    C, C_prime = costs.mixture.n_components, members.shape[1]
    width = C_prime * graph.shape[1] + search.n_random

    def of_block(work: tuple[Chunks, Span, int]) -> tuple[PairStatistics, int]:
        chunks, (begin, end), first = work
        part = chunks.pick(slice(begin, end))
        n_pairs = width * len(part) if search.estimate else 0
        pairs, sums = np.empty((2, n_pairs), dtype=np.int32), np.empty((2, n_pairs), dtype=np.float32)
        n_distances, n_pairs = kernels.search_chunks(
            part.means, costs.spread(part), part.weights, first + begin, costs.mixture.means, costs.precisions,
            costs.biases, graph, search.n_random, np.uint64(search.seed), members[first + begin : first + end],
            pairs, sums, np.zeros(C, dtype=np.int64), np.empty(C_prime, dtype=np.int32), np.empty(C_prime),
            np.empty(width, dtype=np.int32), np.empty(width),
        )  # fmt: skip
        return PairStatistics(pairs[:, :n_pairs], sums[:, :n_pairs]), int(n_distances)

    found = map_all(of_block, _tasks(frontier), n_threads)
    return PairStatistics.of_pieces([piece for pairs, _ in found for piece in pairs.pieces]), sum(n for _, n in found)


def _sum_shares(
    frontier: Frontier, costs: _Costs, members: Members, shares: F64, n_threads: int
) -> tuple[F64, F64, F64]:
    """Counts, sums and packed scatter: the entries of K(A) sorted by component."""
    C, D = costs.mixture.means.shape
    entries = np.where(members < 0, C, members).ravel()  # entries without a component go behind the last
    starts, order = group_by(entries, C + 1)
    counts, sums, scatter = np.zeros(C), np.zeros((C, D)), np.zeros((C, costs.precisions.shape[1]))
    nodes, rows = frontier.parts()
    means, spread = np.concatenate([nodes.means, rows.means]), costs.spread(nodes)
    flat = shares.ravel()

    def add(span: Span) -> None:
        kernels.sum_chunk_shares(
            means, spread, flat, members.shape[1], order, starts, *span, costs.mixture.means, counts, sums, scatter,
            np.empty(D),
        )  # fmt: skip

    run_all(add, even_ranges(C, _COMPONENTS_PER_TASK), n_threads)
    return counts, sums, scatter
