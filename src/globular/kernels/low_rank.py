"""Pairs (row, component) of mixtures of factor analysers, brought together by component.

All rows that look at a component are its *pairs*, one after the other in `order`: they share its parameters, and their
products with its directions are products of matrices. A pair is a number n · width + a, the a-th component that row n
looks at; results go where the pair says, and sums are those of a component, which one thread takes from its first row
to its last: the same bits for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from globular.jit import inline, kernel, take_number
from globular.jit.blas import add_product, multiply_rows

TILE = 32  # rows that are brought together: with 784 columns a fifth of a megabyte
CANCELLED = 1e-5  # squared distances below this share of the squares that they come from are computed again


class Shape(NamedTuple):
    """A mixture as kernels take it."""

    means: Any  # (C, D)
    precisions: Any  # (C, D) of the noise
    directions: Any  # (C·q, D)
    biases: Any  # (C,)
    loadings: Any  # (C·q, D)
    triangles: Any  # (C·q, q)


class Pairs(NamedTuple):
    """Which rows look at which components."""

    order: Any  # (P,) pairs, those of a component together
    starts: Any  # (C + 1,) or more; component c has order[starts[c]] … order[starts[c + 1] − 1]
    width: Any  # components that a row looks at


class Work(NamedTuple):
    """What the threads of a pass share."""

    queue: Any  # IN/OUT tasks
    tasks: Any  # (T + 1,) task t has the components tasks[t] … tasks[t + 1] − 1
    x: Any  # (N, D) all rows, or (gathered) those of the pairs of the only task
    gathered: bool
    pairs: Any  # `Pairs`
    shape: Any  # `Shape`


class Tile(NamedTuple):
    """Some pairs of a component: scratch of a thread."""

    away: Any  # (TILE, D) x − μ
    inner: Any  # (TILE, q) u = V (x − μ)
    turned: Any  # (q, TILE) the same, weighted
    squares: Any  # (TILE,) Σ (x − μ)² / ψ
    factors: Any  # (q,)
    place: Any  # (5,) int64, zeros at first: see `At`


class Places(NamedTuple):
    """What the numbers of a tile's `place` are: its pairs are order[begin] … order[begin + size − 1]."""

    COMPONENT: int = 0
    BEGIN: int = 1
    SIZE: int = 2
    STOP: int = 3  # of the task: the component after its last
    BASE: int = 4  # of the task: the first of its pairs


At = Places()
"""Plain numbers: numba 0.61 takes no enumeration as an index."""


@inline
def next_place(work: Any, place: Any) -> bool:
    """Where the next pairs of one component are, in the task at hand or in another; False if there are none left."""
    starts, c, begin = work.pairs.starts, place[At.COMPONENT], place[At.BEGIN] + place[At.SIZE]
    while c >= place[At.STOP] or begin >= starts[c + 1]:
        c += 1
        if c >= place[At.STOP]:
            task = take_number(work.queue)
            if task >= work.tasks.shape[0] - 1:
                return False
            c = work.tasks[task]
            place[At.STOP], place[At.BASE] = work.tasks[task + 1], starts[c]
        begin = starts[c]
    place[At.COMPONENT], place[At.BEGIN], place[At.SIZE] = c, begin, min(TILE, starts[c + 1] - begin)
    return True


@inline
def bring_together(work: Any, tile: Any) -> bool:
    """Of the next pairs, differences from the mean and products with the directions; False after the last. O(m·D·q)."""
    if not next_place(work, tile.place):
        return False
    x, pairs, shape, q = work.x, work.pairs, work.shape, tile.inner.shape[1]
    c, begin, m = tile.place[At.COMPONENT], tile.place[At.BEGIN], tile.place[At.SIZE]
    for k in range(m):
        r = begin + k - tile.place[At.BASE] if work.gathered else pairs.order[begin + k] // pairs.width
        total = 0.0
        for d in range(x.shape[1]):
            y = x[r, d] - shape.means[c, d]
            tile.away[k, d] = y
            total += y * y * shape.precisions[c, d]
        tile.squares[k] = total
    multiply_rows(tile.away, 0, m, shape.directions, c * q, q, tile.inner)
    return True


@inline
def squared_length(k: int, c: int, shape: Any, tile: Any) -> float:
    """(x − μ)ᵀ Σ⁻¹ (x − μ) = y·(y/ψ) − u·u of a pair; where that cancels, ‖z‖² + r·(r/ψ) with r = y − Λᵀ z. O(q)."""
    q, total = tile.inner.shape[1], tile.squares[k]
    for j in range(q):
        total -= tile.inner[k, j] * tile.inner[k, j]
    if total >= CANCELLED * tile.squares[k]:
        return total
    total = 0.0
    for j in range(q - 1, -1, -1):  # z = L⁻ᵀ u
        value = tile.inner[k, j]
        for i in range(j + 1, q):
            value -= shape.triangles[c * q + i, j] * tile.factors[i]
        tile.factors[j] = value / shape.triangles[c * q + j, j]
        total += tile.factors[j] * tile.factors[j]
    for d in range(tile.away.shape[1]):
        rest = tile.away[k, d]
        for j in range(q):
            rest -= shape.loadings[c * q + j, d] * tile.factors[j]
        total += rest * rest * shape.precisions[c, d]
    return total


@kernel
def pair_costs(
    work: Any,  # IN  `Work`
    tile: Any,  # scratch `Tile`
    costs: Any,  # OUT (N·width,) −2 log p(c, x)
    inner: Any,  # OUT (N·width, q) u, or (0, q)
) -> None:
    """Densities of the pairs. O(P · D · q)."""
    while bring_together(work, tile):
        c, begin = tile.place[At.COMPONENT], tile.place[At.BEGIN]
        for k in range(tile.place[At.SIZE]):
            pair = work.pairs.order[begin + k]
            costs[pair] = work.shape.biases[c] + squared_length(k, c, work.shape, tile)
            if inner.shape[0]:
                for j in range(tile.inner.shape[1]):
                    inner[pair, j] = tile.inner[k, j]


@kernel
def pair_sums(
    work: Any,  # IN  `Work`
    tile: Any,  # scratch `Tile`
    shares: Any,  # IN  (N·width,) w q(c)
    counts: Any,  # IN/OUT (C,) += Σ w q
    sums: Any,  # IN/OUT (C, D) += Σ w q (x − μ)
    squares: Any,  # IN/OUT (C, D) += Σ w q (x − μ)²
    cross: Any,  # IN/OUT (C, q, D) += Σ w q u (x − μ)ᵀ
) -> None:
    """Statistics of the M-step, about the old means. O(P · D · q)."""
    while bring_together(work, tile):
        c, begin, m = tile.place[At.COMPONENT], tile.place[At.BEGIN], tile.place[At.SIZE]
        for k in range(m):
            share = shares[work.pairs.order[begin + k]]
            counts[c] += share
            for j in range(tile.inner.shape[1]):
                tile.turned[j, k] = share * tile.inner[k, j]
            for d in range(sums.shape[1]):
                y = tile.away[k, d]
                sums[c, d] += share * y
                squares[c, d] += share * y * y
        add_product(tile.turned, tile.away, 0, m, cross[c])


@kernel
def pair_reconstructions(
    work: Any,  # IN  `Work` of one thread, all rows
    tile: Any,  # scratch `Tile`
    shares: Any,  # IN  (N·width,) q(c)
    noise: Any,  # IN  (C, D) what of the variances is noise
    out: Any,  # IN/OUT (N, D) += q(c) (x − noise Σ⁻¹ (x − μ))
) -> None:
    """Expected rows without noise. O(P · D · q)."""
    x, pairs, shape, q = work.x, work.pairs, work.shape, tile.inner.shape[1]
    while bring_together(work, tile):
        c, begin = tile.place[At.COMPONENT], tile.place[At.BEGIN]
        for k in range(tile.place[At.SIZE]):
            r, share = pairs.order[begin + k] // pairs.width, shares[pairs.order[begin + k]]
            for d in range(x.shape[1]):
                tile.away[k, d] *= shape.precisions[c, d]
            for j in range(q):
                for d in range(x.shape[1]):
                    tile.away[k, d] -= tile.inner[k, j] * shape.directions[c * q + j, d]
            for d in range(x.shape[1]):
                out[r, d] += share * (x[r, d] - noise[c, d] * tile.away[k, d])
