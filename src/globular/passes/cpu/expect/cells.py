"""The components of a few cells against those that rows keep, by matrix products; cells are visited by distance.

A cost is −2 log p(c, x) up to what all components share, lower is better. Costs from a matrix product carry rounding
errors; here they come lowered by more than that, so that whatever could enter K(n) is looked at, and its cost in
float64 decides. K(n) only ever exchanges a component for a better one: the free energy does not fall.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.blas import multiply_rows
from globular.jit.memory import as_matrix, order_key, prefetch_row
from globular.model.cells import CenterCells
from globular.model.statistics import F64
from globular.passes.cpu.assign.probe import closest_cells
from globular.passes.cpu.cells import BLOCK_ROWS, HEAT, for_cells, lowest_of_heat
from globular.passes.cpu.engine.decide import insert
from globular.passes.cpu.engine.rows import AHEAD, copy_row
from globular.passes.cpu.engine.rows import length as length_of
from globular.passes.cpu.engine.score import Visit
from globular.passes.cpu.expect.neighbors import Costs, Members, exact_cost
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS


class Cells(NamedTuple):
    """Components in the order of their cells, prepared for costs by matrix products."""

    starts: Any  # (cells + 1,)
    components: Any  # (C,) which they are
    factors: Any  # (C, D) or (C, 2D) what a product takes of each
    norms: Any  # (C,) the part of a cost that is the same for all rows, lowered
    curvatures: Any  # (C,) what a cost has of ‖x − offset‖², lowered


class CellWorkspace(NamedTuple):
    """Scratch of a thread for B rows."""

    seen: Any  # (B, D), or (B, 2D): the squares too
    scores: Any  # the products of a block
    lengths: Any  # (B,) ‖x − offset‖; 0 where costs do not need it
    keys: Any  # (largest cell rounded up to a multiple of HEAT,) integers as wide as a score


@kernel
def visit_cells(
    queue: Queue,  # IN/OUT tasks
    visit: Any,  # IN  a `Visit`
    cells: Any,  # IN  a `Cells`
    weighed: Any,  # IN
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    scratch: Scratch,  # scratch a `CellWorkspace`
) -> None:
    """Each row against the components of one cell. O(N · D · components)."""
    x, tasks, places, (seen, scores, lengths, _) = visit.rows[0], visit.tasks, visit.places, scratch
    D = x.shape[1]
    t = take_number(queue)
    while t < tasks.shape[0]:
        first, stop = cells.starts[tasks[t, 0]], cells.starts[tasks[t, 0] + 1]
        B = min(lengths.shape[0], scores.shape[0] // (stop - first))
        for begin in range(tasks[t, 1], tasks[t, 2], B):
            end = min(begin + B, tasks[t, 2])
            m = end - begin
            for k in range(m):
                if k + AHEAD < m:
                    prefetch_row(x, places[begin + k + AHEAD])
                copy_row(x, places[begin + k], visit.given.offset, seen, k)
                if seen.shape[1] > D:
                    for j in range(D):
                        seen[k, D + j] = seen[k, j] * seen[k, j]
                lengths[k] = length_of(seen[k], 0, D) if seen.shape[1] == D else 0.0
            block = as_matrix(scores, m, stop - first)
            multiply_rows(seen, 0, m, cells.factors, first, stop - first, block)
            check_cell(visit, begin, cells, first, block, weighed, members, costs, lengths, scratch.keys)
        t = take_number(queue)


@kernel
def check_cell(
    visit: Any,  # IN
    begin: int,  # IN  rows order[begin], …, as many as there are scores
    cells: Any,  # IN
    first: int,  # IN  the first component of the cell
    scores: Any,  # IN  (n, components of the cell) the part of the costs that is a product
    weighed: Any,  # IN
    members: Any,  # IN/OUT (N, C′)
    costs: Any,  # IN/OUT (N, C′) ascending
    lengths: Any,  # IN  (≥ n,)
    keys: Any,  # scratch
) -> None:
    """K(n) = the C′ best of K(n) and the cell. O(n · components), and O(D) for each that may beat the worst of K(n)."""
    (n, n_components), last = scores.shape, members.shape[1] - 1
    stop, n_heats = first + n_components, (n_components + HEAT - 1) // HEAT
    norms, curvatures, components = cells.norms[first:stop], cells.curvatures[first:stop], cells.components[first:stop]
    chosen = visit.order[begin : begin + n]
    for g in range(n_components, n_heats * HEAT):
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
        for heat in range(n_heats):
            if lowest_of_heat(keys, heat) > limit:
                continue
            for g in range(heat * HEAT, min((heat + 1) * HEAT, n_components)):
                if keys[g] > limit or is_member(components[g], members, i):
                    continue
                c = components[g]
                cost = exact_cost(visit.rows[0], visit.places[begin + k], weighed, c, weighed.biases[c])
                if cost < costs[i, last]:
                    insert(cost, c, costs[i], members[i], last)
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
    shard: CpuShard, weighed: Costs, cells: CenterCells, n_probes: int, members: Members, costs: F64
) -> int:
    """Lower the costs of K(n) by the components of the closest cells; returns the number of distances."""
    visits, n_distances = closest_cells(shard, cells, n_probes)
    ready, (least, most) = _prepared(shard, weighed, cells), BLOCK_ROWS
    sizes, dtype = np.diff(ready.starts), ready.factors.dtype
    largest = int(sizes.max(initial=1))

    def visit(queue: NDArray[np.int64], rows: Visit) -> None:
        scratch = CellWorkspace(
            np.empty((most, ready.factors.shape[1]), dtype=dtype),
            np.empty(max(CACHED_NUMBERS, least * largest), dtype=dtype), np.empty(most),
            np.empty(-(-largest // HEAT) * HEAT, dtype=f"i{dtype.itemsize}"),
        )  # fmt: skip
        visit_cells(queue, rows, ready, weighed.search, members, costs, scratch)

    for a in range(visits.shape[1]):  # every row against the components of one cell; no two threads touch a row
        n_distances += int(for_cells(shard, np.ascontiguousarray(visits[:, a]), len(sizes), visit) @ sizes)
    return n_distances


def _prepared(shard: CpuShard, weighed: Costs, cells: CenterCells) -> Cells:
    """Components for costs that are lowered by more than rounding takes: by a share of the terms that they add up."""
    dtype, is_diagonal = shard.dtype, weighed.search_precisions.shape[1] > 1
    slack = 4 * float(np.finfo(dtype).eps) * (1 + np.sqrt(shard.n_columns))
    about = weighed.search.means[cells.order] - (0.0 if shard.offset is None else shard.offset)
    precisions, biases = weighed.search_precisions[cells.order], weighed.search_biases[cells.order]
    lowered = (1.0 - slack) * precisions
    factors = -2.0 * precisions * about
    if is_diagonal:
        factors = np.concatenate([factors, lowered], axis=1)
    norms = (lowered * about**2).sum(axis=1) + biases - slack * np.abs(biases)
    # what a cost has of ‖x − offset‖²; nothing where the squares of the columns are in the product
    curvatures = np.zeros(len(about)) if is_diagonal else lowered[:, 0]
    with np.errstate(over="ignore"):  # what overflows is not found, and K(n) stays as it is
        lines = factors.astype(dtype), norms.astype(dtype), curvatures.astype(dtype)
    return Cells(np.asarray(cells.starts, dtype=np.int64), cells.order, *lines)
