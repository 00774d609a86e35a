"""The components of a few cells against those that rows keep, by matrix products; cells are visited by distance.

A cost is −2 log p(c, x) up to what all components share, lower is better. Costs from a matrix product carry rounding
errors; here they come lowered by more than that, so that whatever could enter K(n) is looked at, and its cost in
float64 decides. K(n) only ever exchanges a component for a better one: the free energy does not fall.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.bits import order_key
from globular.jit.blas import multiply_rows
from globular.jit.prefetch import prefetch_row
from globular.jit.views import as_matrix
from globular.kernels.probe import HEAT, lowest_of_heat
from globular.kernels.rows import AHEAD
from globular.kernels.rows import length as length_of
from globular.kernels.scores import copy_row
from globular.model.cells import CenterCells
from globular.model.statistics import F64
from globular.passes.cpu.assign.probe import closest_cells
from globular.passes.cpu.cells import BLOCK_ROWS, for_cells
from globular.passes.cpu.engine.score import Visit
from globular.passes.cpu.expect.neighbors import Costs
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE
from globular.seam.passes import Labels


@inline
def exact_cost(x: Any, r: int, means: Any, c: int, precisions: Any, biases: Any) -> float:
    """Σ_j precision_cj (x_j − μ_cj)² + bias_c in float64. O(D)."""
    total = 0.0
    if precisions.shape[1] == 1:
        for j in range(x.shape[1]):
            difference = x[r, j] - means[c, j]
            total += difference * difference
        return total * precisions[c, 0] + biases[c]
    for j in range(x.shape[1]):
        difference = x[r, j] - means[c, j]
        total += difference * difference * precisions[c, j]
    return total + biases[c]


@inline
def take_in(cost: float, c: int, costs: Any, members: Any, i: int, last: int) -> None:
    """Put a component into place last or before, where costs ascend; what was last is gone. O(C′)."""
    place = last
    while place > 0 and costs[i, place - 1] > cost:
        costs[i, place] = costs[i, place - 1]
        members[i, place] = members[i, place - 1]
        place -= 1
    costs[i, place] = cost
    members[i, place] = c


@kernel
def visit_cells(
    queue: Queue,  # IN/OUT tasks
    tasks: Any,  # IN  (T, 3) a cell, and its rows order[begin:end], which lie at places[begin:end]
    rows: Any,  # IN  (array,)
    order: Any,  # IN  (N,)
    places: Any,  # IN  (N,)
    offset: Any,  # IN  (D,) or empty
    starts: Any,  # IN  (cells + 1,)
    components: Any,  # IN  (C,) in the order of their cells
    factors: Any,  # IN  (C, D) or (C, 2D) what a product takes of each, in that order
    norms: Any,  # IN  (C,) in that order, as all that `check_cell` takes of a cell
    curvatures: Any,  # IN  (C,)
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    seen: Scratch,  # scratch (B, D), or (B, 2D): the squares too
    scores: Scratch,  # scratch
    lengths: Scratch,  # scratch (B,)
    keys: Scratch,  # scratch (largest cell rounded up to a multiple of HEAT,) integers as wide as a score
) -> None:
    """Each row against the components of one cell. O(N · D · components)."""
    D = rows[0].shape[1]
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = starts[tasks[t, 0]], starts[tasks[t, 0] + 1]
        B = min(lengths.shape[0], scores.shape[0] // (stop - first))
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            m = end - begin
            for k in range(m):
                if k + AHEAD < m:
                    prefetch_row(rows[0], places[begin + k + AHEAD])
                copy_row(rows[0], places[begin + k], offset, seen, k)
                if seen.shape[1] > D:
                    for j in range(D):
                        seen[k, D + j] = seen[k, j] * seen[k, j]
                lengths[k] = length_of(seen[k], 0, D) if seen.shape[1] == D else 0.0
            block = as_matrix(scores, m, stop - first)
            multiply_rows(seen, 0, m, factors, first, stop - first, block)
            check_cell(
                rows, places[begin:end], order[begin:end], lengths, block, norms[first:stop], curvatures[first:stop],
                components[first:stop], means, precisions, biases, members, costs,
                keys[: (stop - first + HEAT - 1) // HEAT * HEAT],
            )  # fmt: skip
        t = take_number(queue)


@kernel
def check_cell(
    rows: Any,  # IN  (array,)
    at: Any,  # IN  (n,) where the rows of a block lie
    chosen: Any,  # IN  (n,) their numbers in the shard
    lengths: Any,  # IN  (n,) ‖x − offset‖; 0 where costs do not need it
    scores: Any,  # IN  (n, components of the cell) the part of the costs that is a product
    norms: Any,  # IN  (components,) the part that is the same for all rows, lowered
    curvatures: Any,  # IN  (components,) what a cost has of ‖x − offset‖², lowered
    components: Any,  # IN  (components,) which they are
    means: Any,  # IN  (C, D) float64
    precisions: Any,  # IN  (C, 1) or (C, D) float64
    biases: Any,  # IN  (C,) float64
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    keys: Any,  # scratch (components rounded up to a multiple of HEAT,) integers as wide as a score
) -> None:
    """K(n) = the C′ best of K(n) and the cell. O(n · components), and O(D) for each that may beat the worst of K(n)."""
    n, n_components = scores.shape
    last = members.shape[1] - 1
    for g in range(n_components, keys.shape[0]):
        keys[g] = np.iinfo(keys.dtype).max
    for k in range(n):
        i = chosen[k]
        if k + AHEAD < n:
            prefetch_row(costs, chosen[k + AHEAD])
            prefetch_row(members, chosen[k + AHEAD])
        square = norms.dtype.type(lengths[k] * lengths[k])
        for g in range(n_components):
            keys[g] = order_key((norms[g] + curvatures[g] * square) + scores[k, g])
        limit = limit_key(costs[i, last], norms)
        for heat in range(keys.shape[0] // HEAT):
            if lowest_of_heat(keys, heat) > limit:
                continue
            for g in range(heat * HEAT, min((heat + 1) * HEAT, n_components)):
                if keys[g] > limit or is_member(components[g], members, i):
                    continue
                cost = exact_cost(rows[0], at[k], means, components[g], precisions, biases)
                if cost < costs[i, last]:
                    take_in(cost, components[g], costs, members, i, last)
                    limit = limit_key(costs[i, last], norms)


@inline
def limit_key(cost: float, like: Any) -> int:
    """The key of a cost, rounded up to the type of `like`."""
    return order_key(like.dtype.type(cost + 1e-6 * abs(cost)))


@inline
def is_member(c: int, members: Any, i: int) -> bool:
    """Whether K(n) of row i has this component. O(C′)."""
    known = False
    for a in range(members.shape[1]):
        known |= members[i, a] == c
    return known


# --- drivers ---------------------------------------------------------------------------------------------------------


def search_cells(
    shard: CpuShard, means: F64, weighed: Costs, cells: CenterCells, n_probes: int,
    members: NDArray[np.int32], costs: F64,
) -> int:  # fmt: skip
    """Lower the costs of K(n) by the components of the closest cells; returns the number of distances."""
    visits, n_distances = closest_cells(shard, cells, n_probes)
    product = JointProduct(shard, means, weighed, cells)
    for a in range(visits.shape[1]):
        n_distances += product.visit(np.ascontiguousarray(visits[:, a]), members, costs)
    return n_distances


class JointProduct:
    """Components by cell, prepared for costs by matrix products.

    These are lowered by a share of the terms that they are sums of, more than rounding takes from them.
    """

    def __init__(self, shard: CpuShard, means: F64, weighed: Costs, cells: CenterCells) -> None:
        self._shard, self._means, self._weighed = shard, np.ascontiguousarray(means, dtype=np.float64), weighed
        self._components, self._starts = cells.order, np.asarray(cells.starts, dtype=np.int64)
        self._offset, dtype = NONE if shard.offset is None else shard.offset, shard.dtype
        is_diagonal = weighed.search_precisions.shape[1] > 1
        slack = 4 * float(np.finfo(dtype).eps) * (1 + np.sqrt(shard.n_columns))
        about = self._means[cells.order]
        if len(self._offset):
            about -= self._offset
        precisions, biases = weighed.search_precisions[cells.order], weighed.search_biases[cells.order]
        lowered = (1.0 - slack) * precisions
        factors = -2.0 * precisions * about
        if is_diagonal:
            factors = np.concatenate([factors, lowered], axis=1)
        norms = (lowered * about**2).sum(axis=1) + biases - slack * np.abs(biases)
        # what a cost has of ‖x − offset‖²; nothing where the squares of the columns are in the product
        curvatures = np.zeros(len(about)) if is_diagonal else lowered[:, 0]
        with np.errstate(over="ignore"):  # what overflows is not found, and K(n) stays as it is
            self._factors = factors.astype(dtype)
            self._norms, self._curvatures = norms.astype(dtype), curvatures.astype(dtype)
        self._largest = int(np.diff(self._starts).max(initial=1))

    def visit(self, cell_of: Labels, members: NDArray[np.int32], costs: F64) -> int:
        """One round: every row against the components of one cell; no two threads touch a row. Returns distances."""
        weighed, (least, most), dtype = self._weighed, BLOCK_ROWS, self._factors.dtype

        def visit(queue: NDArray[np.int64], rows: Visit) -> None:
            visit_cells(
                queue, *rows[:4], self._offset, self._starts, self._components, self._factors, self._norms,
                self._curvatures, self._means, weighed.search_precisions, weighed.search_biases, members, costs,
                np.empty((most, self._factors.shape[1]), dtype=dtype),
                np.empty(max(CACHED_NUMBERS, least * self._largest), dtype=dtype), np.empty(most),
                np.empty(-(-self._largest // HEAT) * HEAT, dtype=f"i{dtype.itemsize}"),
            )  # fmt: skip

        sizes = np.diff(self._starts)
        return int(for_cells(self._shard, cell_of, len(sizes), visit) @ sizes)
