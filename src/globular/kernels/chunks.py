"""Kernels over chunks: coefficients of features, and E-steps restricted to few components per chunk.

Second moments are packed as in `model.chunks`: one number, one per column, or the upper triangle of a matrix. Packed
precisions have the entries off the diagonal doubled, so that xᵀ Σ⁻¹ x is a plain product with the packed xxᵀ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.kernels.members import renormalise
from globular.kernels.moments import add_square
from globular.kernels.neighbors import insert, search_space


@kernel
def packed_coefficients(
    factors: Any,  # IN  (C, D, D) upper triangular, U Uᵀ = Σ⁻¹; or (1, D, D) for all
    means: Any,  # IN  (C, D) about the offset
    constants: Any,  # IN  (C,)
    typical: Any,  # IN  (D,) how far out a typical row is
    precisions: Any,  # OUT (C, S) packed
    coefficients: Any,  # OUT (C, D + S + 1) what the features are multiplied with
    sizes: Any,  # OUT (C,) of the terms of the expanded square, for rows as far out as the mean or a typical row
    pulls: Any,  # scratch (D,)
) -> None:
    """Gaussians with whole matrices as linear functions of the features. O(C·D³)."""
    C, D = means.shape
    S = precisions.shape[1]
    for c in range(C):
        factor = factors[min(c, factors.shape[0] - 1)]
        sizes[c] = 0.0
        for d in range(D):
            pulls[d] = 0.0
        place = 0
        for d in range(D):
            reach = max(abs(means[c, d]), typical[d])
            for e in range(d, D):
                entry = 0.0
                for j in range(e, D):
                    entry += factor[d, j] * factor[e, j]
                pulls[d] += entry * means[c, e]
                if e > d:
                    pulls[e] += entry * means[c, d]
                    entry *= 2.0
                precisions[c, place] = entry
                coefficients[c, D + place] = -0.5 * entry
                sizes[c] += abs(entry) * reach * max(abs(means[c, e]), typical[e])
                place += 1
        remoteness = 0.0
        for d in range(D):
            coefficients[c, d] = pulls[d]
            remoteness += pulls[d] * means[c, d]
        coefficients[c, D + S] = constants[c] - 0.5 * remoteness


@kernel
def column_coefficients(
    factors: Any,  # IN  (C, D) or (C, 1), the roots of precisions; or one line for all
    means: Any,  # IN  (C, D) about the offset
    constants: Any,  # IN  (C,)
    typical: Any,  # IN  (D,) how far out a typical row is, or (1,) where columns share a variance
    precisions: Any,  # OUT (C, S)
    coefficients: Any,  # OUT (C, D + S + 1)
    sizes: Any,  # OUT (C,)
) -> None:
    """`packed_coefficients` of Gaussians without correlations. O(C·D)."""
    C, D = means.shape
    S = precisions.shape[1]
    for c in range(C):
        line = min(c, factors.shape[0] - 1)
        remoteness, size = 0.0, 0.0
        for s in range(S):
            precision = factors[line, s] * factors[line, s]
            precisions[c, s] = precision
            coefficients[c, D + s] = -0.5 * precision
        for d in range(D):
            mean, precision = means[c, d], precisions[c, min(d, S - 1)]
            reach = max(abs(mean), typical[min(d, typical.shape[0] - 1)])
            coefficients[c, d] = precision * mean
            remoteness += precision * mean * mean
            size += precision * reach * reach
        coefficients[c, D + S] = constants[c] - 0.5 * remoteness
        sizes[c] = size


@kernel
def column_moments_about(
    raw: Any,  # IN  (C, D + S + 1) features summed with responsibilities
    means: Any,  # IN  (C, D) about the offset
    sums: Any,  # OUT (C, D) about the means
    scatter: Any,  # OUT (C, S) about the means; never negative
) -> None:
    """`moments_about` for the squares of columns, or their sum. O(C·D)."""
    C, D = means.shape
    S, count = scatter.shape[1], raw.shape[1] - 1
    for c in range(C):
        for s in range(S):
            scatter[c, s] = raw[c, D + s]
        for d in range(D):
            sums[c, d] = raw[c, d] - raw[c, count] * means[c, d]
            scatter[c, min(d, S - 1)] -= means[c, d] * (raw[c, d] + sums[c, d])
        for s in range(S):
            scatter[c, s] = max(scatter[c, s], 0.0)


@kernel
def moments_about(
    raw: Any,  # IN  (C, D + S + 1) features summed with responsibilities
    means: Any,  # IN  (C, D) about the offset
    sums: Any,  # OUT (C, D) about the means
    scatter: Any,  # OUT (C, D, D) about the means
) -> None:
    """Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − μ (Σ x)ᵀ − (Σ (x − μ)) μᵀ. O(C·S)."""
    C, D = means.shape
    count = raw.shape[1] - 1
    for c in range(C):
        for d in range(D):
            sums[c, d] = raw[c, d] - raw[c, count] * means[c, d]
        place = D
        for d in range(D):
            for e in range(d, D):
                entry = raw[c, place] - means[c, d] * raw[c, e] - sums[c, d] * means[c, e]
                scatter[c, d, e] = scatter[c, e, d] = entry
                place += 1


@inline
def _chunk_cost(means: Any, spread: Any, i: int, centers: Any, precisions: Any, c: int) -> float:
    """⟨(x − μ)ᵀ Σ⁻¹ (x − μ)⟩ over a chunk, from differences, which lose nothing. O(S)."""
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
    for s in range(spread.shape[1]):
        total += precisions[c, s] * spread[i, s]
    return total


@kernel
def search_chunks(
    means: Any,  # IN  (B, D)
    spread: Any,  # IN  (B, S) scatter / weight, or (B, 0)
    weights: Any,  # IN  (B,)
    first: int,  # IN  number of the first of these chunks, for the random components
    centers: Any,  # IN  (C, D)
    precisions: Any,  # IN  (C, S) packed
    biases: Any,  # IN  (C,) what log-weights and determinants add to a cost
    graph: Any,  # IN  (C, G)
    n_random: int,  # IN
    seed: Any,  # IN  uint64
    members: Any,  # IN/OUT (B, C′) K(A), best first; −1 where there is none
    pairs: Any,  # OUT (2, B·(C′·G + n_random)), or (2, 0) when no estimates are wanted
    sums: Any,  # OUT the same shape: Σ w cost, Σ w
    stamps: Any,  # scratch (C,) int64, zeros at first
    former: Any,  # scratch (C′,)
    costs: Any,  # scratch (C′,)
    seen: Any,  # scratch (C′·G + n_random,) int32
    seen_costs: Any,  # scratch (the same,)
) -> tuple[int, int]:
    """K(A) becomes the C′ components of largest joint among ∪ G_c, c ∈ K(A), and a few at random.

    Returns the densities evaluated and the number of pairs. O(B·C′·G·S).
    """
    C_prime = members.shape[1]
    n_distances, n_pairs = 0, 0
    for i in range(means.shape[0]):
        n_seen = search_space(members, i, graph, n_random, seed, first + i, stamps, former, seen)
        n_kept = 0
        for s in range(n_seen):
            seen_costs[s] = _chunk_cost(means, spread, i, centers, precisions, seen[s]) + biases[seen[s]]
            n_kept = insert(seen_costs[s], seen[s], costs, members, i, n_kept)
        for a in range(n_kept, C_prime):
            members[i, a] = -1
        n_distances += n_seen
        if pairs.shape[1] and weights[i] > 0.0:
            for s in range(n_seen):
                if seen[s] != members[i, 0]:
                    pairs[0, n_pairs], pairs[1, n_pairs] = members[i, 0], seen[s]
                    sums[0, n_pairs], sums[1, n_pairs] = weights[i] * seen_costs[s], weights[i]
                    n_pairs += 1
    return n_distances, n_pairs


@kernel
def share_chunks(
    means: Any,  # IN  (B, D)
    spread: Any,  # IN  (B, S) or (B, 0)
    weights: Any,  # IN  (B,)
    centers: Any,  # IN  (C, D)
    precisions: Any,  # IN  (C, S)
    biases: Any,  # IN  (C,)
    members: Any,  # IN  (P, C′)
    owners: Any,  # IN  (B,) the row of `members` that belongs to each chunk
    shares: Any,  # OUT (B, C′) w q(c), the shared responsibilities renormalised over K(A)
    bounds: Any,  # OUT (B,) log Σ_{c∈K(A)} exp ⟨log p(c, x)⟩
) -> None:
    """Truncated responsibilities of chunks. O(B·C′·S)."""
    C_prime = members.shape[1]
    for i in range(means.shape[0]):
        largest = -np.inf
        for a in range(C_prime):
            c = members[owners[i], a]
            shares[i, a] = -np.inf
            if c >= 0:
                shares[i, a] = -0.5 * (_chunk_cost(means, spread, i, centers, precisions, c) + biases[c])
            largest = max(largest, shares[i, a])
        bounds[i] = renormalise(shares, i, largest, weights[i])


@kernel
def sum_chunk_shares(
    means: Any,  # IN  (M, D) of all chunks
    spread: Any,  # IN  (n_nodes, S); the chunks after these have none
    shares: Any,  # IN  (M·C′,) w q(c)
    C_prime: int,  # IN
    order: Any,  # IN  entries i·C′ + a grouped by their component
    starts: Any,  # IN  (≥ last + 1,)
    first: int,  # IN  components first … last − 1
    last: int,  # IN
    centers: Any,  # IN  (C, D)
    counts: Any,  # OUT (C,) Σ w q
    sums: Any,  # OUT (C, D) Σ w q (x − μ)
    scatter: Any,  # OUT (C, S) Σ w q of the packed second moment about μ
    difference: Any,  # scratch (D,)
) -> None:
    """Statistics of the truncated M-step, in component order, about the old means. O(entries·S)."""
    D, S = centers.shape[1], scatter.shape[1]
    for c in range(first, last):
        for k in range(starts[c], starts[c + 1]):
            share = shares[order[k]]
            if share <= 0.0:
                continue
            i = order[k] // C_prime
            counts[c] += share
            for d in range(D):
                difference[d] = means[i, d] - centers[c, d]
                sums[c, d] += share * difference[d]
            add_square(scatter, c, share, difference)
            if i < spread.shape[0]:
                for s in range(S):
                    scatter[c, s] += share * spread[i, s]
