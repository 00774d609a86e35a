"""Truncated passes over chunks: each cell keeps few components K(A), so a pass costs neither rows nor components.

The search is that of truncated variational EM (Forster & Lücke 2018) with cells for rows: K(A) becomes the best C′ of
the neighbourhoods of its components.
Children inherit K(A), so the bound never falls when a cell is opened. A new frontier starts from the C′ best of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import inline, kernel
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, PairStatistics, SoftStatistics
from globular.passes.cpu.assign.neighbors import search_space
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.engine.densities import add_square
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks
from globular.passes.host import SEARCHED_AT_ONCE, HostShard
from globular.passes.tree.cells import frontier_of
from globular.passes.tree.frontier import Frontier
from globular.seam.among import Neighbors
from globular.seam.tree_passes import ExpectCells
from globular.threads import even_ranges, map_all, run_all

_COMPONENTS_PER_TASK = 64

Members = NDArray[np.int32]
Span = tuple[int, int]
BoundsOf = Callable[[Chunks, I64], F64]
"""From chunks, and the place of the node that each one is of, to their parts of F per unit weight."""


class Cells(NamedTuple):
    """Chunks as kernels take them."""

    means: Any  # (B, D)
    spread: Any  # (B, S) scatter / weight, or (B, 0)
    weights: Any  # (B,)


class Components(NamedTuple):
    """−2 ⟨log p(c, x)⟩ = ⟨(x − μ)ᵀ Σ⁻¹ (x − μ)⟩ + bias; precisions are packed."""

    means: Any  # (C, D)
    precisions: Any  # (C, S)
    biases: Any  # (C,) what log-weights and determinants add to a cost


class Space(NamedTuple):
    """Workspace of a search: the components that a cell looks at."""

    stamps: Any  # (C,) int64, zeros at first
    former: Any  # (C′,)
    costs: Any  # (C′,)
    seen: Any  # (C′·G + n_random,) int32
    seen_costs: Any  # (the same,)


class Entries(NamedTuple):
    """What cells have of the components that they keep, by component."""

    shares: Any  # (M·C′,) w q(c)
    C_prime: int
    order: Any  # entries i·C′ + a grouped by their component
    starts: Any  # (≥ C + 1,)


class Sums(NamedTuple):
    """Statistics of the truncated M-step."""

    counts: Any  # (C,) Σ w q
    firsts: Any  # (C, D) Σ w q (x − μ)
    scatter: Any  # (C, S) Σ w q of the packed second moment about μ


@inline
def _cost(cells: Any, i: int, components: Any, c: int) -> float:
    """−2 ⟨log p(c, x)⟩ over a cell, from differences, which lose nothing. O(S)."""
    means, centers, precisions = cells.means, components.means, components.precisions
    D, S = centers.shape[1], precisions.shape[1]
    total = 0.0
    if S == D:
        for d in range(D):
            difference = means[i, d] - centers[c, d]
            total += precisions[c, d] * difference * difference
    elif S == 1:
        for d in range(D):
            difference = means[i, d] - centers[c, d]
            total += difference * difference
        total *= precisions[c, 0]
    else:
        place = 0
        for d in range(D):
            left = means[i, d] - centers[c, d]
            for e in range(d, D):
                total += precisions[c, place] * left * (means[i, e] - centers[c, e])
                place += 1
    for s in range(cells.spread.shape[1]):
        total += precisions[c, s] * cells.spread[i, s]
    return total + components.biases[c]


@kernel
def search_cells(
    cells: Any,  # IN
    first: int,  # IN  number of the first of these cells, for the random components
    components: Any,  # IN
    graph: Any,  # IN  (C, G)
    n_random: int,  # IN
    seed: Any,  # IN  uint64
    members: Any,  # IN/OUT (B, C′) K(A), best first; −1 where there is none
    pairs: Any,  # OUT (2, B·(C′·G + n_random)), or (2, 0) when no estimates are wanted
    sums: Any,  # OUT the same shape: Σ w cost, Σ w
    space: Any,  # scratch
) -> tuple[int, int]:
    """K(A) becomes the C′ components of largest joint among ∪ G_c, c ∈ K(A), and a few at random.

    Returns the densities evaluated and the number of pairs. O(B·C′·G·S).
    """
    seen, weights = space.seen, cells.weights
    n_distances, n_pairs = 0, 0
    for i in range(weights.shape[0]):
        n_seen = search_space(members, i, graph, n_random, seed, first + i, space)
        n_kept = 0
        for s in range(n_seen):
            space.seen_costs[s] = _cost(cells, i, components, seen[s])
            n_kept = insert(space.seen_costs[s], seen[s], space.costs, members[i], n_kept)
        for a in range(n_kept, members.shape[1]):
            members[i, a] = -1
        n_distances += n_seen
        if pairs.shape[1] and weights[i] > 0.0:
            for s in range(n_seen):
                if seen[s] != members[i, 0]:
                    pairs[0, n_pairs], pairs[1, n_pairs] = members[i, 0], seen[s]
                    sums[0, n_pairs], sums[1, n_pairs] = weights[i] * space.seen_costs[s], weights[i]
                    n_pairs += 1
    return n_distances, n_pairs


@kernel
def share_cells(
    cells: Any,  # IN
    components: Any,  # IN
    members: Any,  # IN  (P, C′)
    owners: Any,  # IN  (B,) the row of `members` that belongs to each cell
    shares: Any,  # OUT (B, C′) w q(c), the shared responsibilities renormalised over K(A)
    bounds: Any,  # OUT (B,) log Σ_{c∈K(A)} exp ⟨log p(c, x)⟩
) -> None:
    """Truncated responsibilities of cells. O(B·C′·S)."""
    for i in range(bounds.shape[0]):
        largest = -np.inf
        for a in range(members.shape[1]):
            c = members[owners[i], a]
            shares[i, a] = -np.inf
            if c >= 0:
                shares[i, a] = -0.5 * _cost(cells, i, components, c)
            largest = max(largest, shares[i, a])
        norm = 0.0
        for a in range(members.shape[1]):
            shares[i, a] = np.exp(shares[i, a] - largest)
            norm += shares[i, a]
        for a in range(members.shape[1]):
            shares[i, a] *= cells.weights[i] / norm
        bounds[i] = largest + np.log(norm)


@kernel
def sum_shares(
    means: Any,  # IN  (M, D) of all cells
    spread: Any,  # IN  (n_nodes, S); the cells after these have none
    entries: Any,  # IN
    first: int,  # IN  components first … last − 1
    last: int,  # IN
    centers: Any,  # IN  (C, D)
    sums: Any,  # OUT
    difference: Any,  # scratch (D,)
) -> None:
    """Statistics of the truncated M-step, in component order, about the old means. O(entries·S)."""
    D, S = centers.shape[1], sums.scatter.shape[1]
    for c in range(first, last):
        for k in range(entries.starts[c], entries.starts[c + 1]):
            share = entries.shares[entries.order[k]]
            if share <= 0.0:
                continue
            i = entries.order[k] // entries.C_prime
            sums.counts[c] += share
            for d in range(D):
                difference[d] = means[i, d] - centers[c, d]
                sums.firsts[c, d] += share * difference[d]
            add_square(sums.scatter, c, share, difference)
            if i < spread.shape[0]:
                for s in range(S):
                    sums.scatter[c, s] += share * spread[i, s]


class _Costs:
    """The components of a mixture, and chunks, in the form that kernels take."""

    def __init__(self, mixture: GaussianParameters) -> None:
        self.kind = mixture.family.scatter
        biases = -2.0 * np.maximum(mixture.log_constants, ABSENT)
        self.components = Components(mixture.means, self.kind.dual(mixture.each(mixture.precisions)), biases)

    def cells(self, chunks: Chunks) -> Cells:
        """Chunks with their scatter per unit weight."""
        spread = chunks.scatter
        if spread.shape[1]:
            packed = chunks.kind.coarsen(spread, self.kind, chunks.means.shape[1])
            spread = packed / np.where(chunks.weights > 0, chunks.weights, np.inf)[:, None]
        return Cells(chunks.means, spread, chunks.weights)


@HostShard.implements(ExpectCells, Neighbors)
def expect_neighbors(shard: HostShard, work: ExpectCells) -> SoftStatistics:
    """Every cell against the neighbourhoods of its K(A)."""
    assert isinstance(work.among, Neighbors)
    frontier, mixture, n_threads = frontier_of(shard), work.mixture, shard.n_threads
    costs = _Costs(mixture)
    C_prime = min(work.among.search.n_candidates, mixture.n_components)
    n_distances = 0
    if frontier.members is None or frontier.members.shape[1] != C_prime:
        frontier.members = _best_members(frontier, mixture, C_prime, n_threads)
        n_distances = len(frontier) * mixture.n_components
    members = frontier.members
    shares, bounds = np.empty(members.shape), np.empty(len(members))
    found, searched = _search(frontier, costs, work.among, shares, bounds, n_threads)
    weights = np.concatenate([part.weights for part in frontier.parts()])
    sums = _sum_shares(frontier, costs, members, shares, n_threads)
    return SoftStatistics(
        sums.counts, sums.firsts, costs.kind.unpack(sums.scatter, mixture.n_features), float(weights @ bounds),
        float(weights.sum()), n_distances + searched, found,
    )  # fmt: skip


def bounds_of_members(frontier: Frontier, mixture: GaussianParameters, n_threads: int) -> tuple[BoundsOf, int]:
    """What finds the bounds of chunks that have the components of their cells, and how many these are."""
    if frontier.members is None:
        raise RuntimeError("truncated gains need the components of a pass among Neighbors; run that first")
    members, costs = frontier.members, _Costs(mixture)

    def bounds_of(chunks: Chunks, owners: I64) -> F64:
        bounds = np.empty(len(chunks))

        def of_span(span: Span) -> None:
            some = slice(*span)
            cells, shares = costs.cells(chunks.pick(some)), np.empty((span[1] - span[0], members.shape[1]))
            share_cells(cells, costs.components, members, owners[some], shares, bounds[some])

        run_all(of_span, even_ranges(len(chunks), SEARCHED_AT_ONCE), n_threads)
        return bounds

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
    frontier: Frontier, costs: _Costs, among: Neighbors, shares: F64, bounds: F64, n_threads: int
) -> tuple[PairStatistics, int]:
    """Renew K(A) in place, and find shares and bounds; the pairs for Eq. 8 and the densities it took."""
    graph, search, members = among.graph, among.search, cast(Members, frontier.members)
    C, C_prime = len(graph), members.shape[1]
    width = C_prime * graph.shape[1] + search.n_random

    def of_cells(task: tuple[slice, Chunks]) -> tuple[PairStatistics, int]:
        rows, cells = task[0], costs.cells(task[1])
        n_pairs = width * len(cells.weights) if search.estimate else 0
        pairs, sums = np.empty((2, n_pairs), dtype=np.int32), np.empty((2, n_pairs), dtype=np.float32)
        space = Space(
            np.zeros(C, dtype=np.int64), np.empty(C_prime, dtype=np.int32), np.empty(C_prime),
            np.empty(width, dtype=np.int32), np.empty(width),
        )  # fmt: skip
        n_distances, n_pairs = search_cells(
            cells, rows.start, costs.components, graph, search.n_random, np.uint64(search.seed), members[rows], pairs,
            sums, space,
        )  # fmt: skip
        share_cells(cells, costs.components, members[rows], np.arange(len(cells.weights)), shares[rows], bounds[rows])
        return PairStatistics(pairs[:, :n_pairs], sums[:, :n_pairs]), int(n_distances)

    found = map_all(of_cells, _tasks(frontier), n_threads)
    return PairStatistics.of_pieces([piece for pairs, _ in found for piece in pairs.pieces]), sum(n for _, n in found)


def _sum_shares(frontier: Frontier, costs: _Costs, members: Members, shares: F64, n_threads: int) -> Sums:
    """Counts, sums and packed scatter: the entries of K(A) sorted by component."""
    centers, precisions, _ = costs.components
    (C, D), (nodes, rows) = centers.shape, frontier.parts()
    starts, order = group_by(np.where(members < 0, C, members).ravel(), C + 1)  # those of nobody behind the last
    entries = Entries(shares.ravel(), members.shape[1], order, starts)
    sums = Sums(np.zeros(C), np.zeros((C, D)), np.zeros((C, precisions.shape[1])))
    means, spread = np.concatenate([nodes.means, rows.means]), costs.cells(nodes).spread

    def add(span: Span) -> None:
        sum_shares(means, spread, entries, *span, centers, sums, np.empty(D))

    run_all(add, even_ranges(C, _COMPONENTS_PER_TASK), n_threads)
    return sums
