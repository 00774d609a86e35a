"""The probing pass: each row searches its p closest cells of centres exactly, by matrix products.

A second source of candidates for truncated E-steps: where neighbourhoods alone stall in local minima of the cluster
graph, probing frees the rows. Every row keeps what it has unless a centre found is closer: the objective never rises.
Rounds: in round a each row visits its a-th closest cell, rows grouped by cell, so that no two threads touch a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.assign.down import ROWS_PER_TASK, CellTask, cell_tasks
from globular.backends.cpu.products import CenterProduct
from globular.backends.cpu.rows import gather_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.cpu.sums import wanted_sums
from globular.kernels import nearest as hard_kernels
from globular.kernels import probe as kernels
from globular.kernels import thin
from globular.model.cells import VISITS_ABOVE, CenterCells
from globular.model.groups import group_by
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Probe
from globular.seam.passes import Assign
from globular.threads import even_ranges, run_all


@CpuShard.implements(Assign, Probe)
def assign_probe(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the centres of its closest cells, and its own."""
    assert isinstance(work.among, Probe) and work.among.cells is not None
    centers, cells, n_probes = work.centers, work.among.cells, work.among.n_probes
    former = shard.labels.copy()
    visits, n_distances = closest_cells(shard, cells, n_probes)
    members = [cells.order[a:b] for a, b in zip(cells.starts[:-1], cells.starts[1:], strict=True)]
    product = CenterProduct(shard, centers, members)
    best = _own_distances(shard, product, shard.squared_distances)
    n_distances += shard.n_rows
    sizes = np.diff(cells.starts)
    for a in range(visits.shape[1]):
        _visit(shard, product, np.ascontiguousarray(visits[:, a]), best)
        n_distances += int(sizes[visits[:, a]].sum())
    objective = float(best @ shard.weights if len(shard.weights) else best.sum())
    n_changed = int(np.count_nonzero(former != shard.labels))
    sums = wanted_sums(shard, work, former if work.want == "moves" else None)
    return HardStatistics(*sums, objective, n_changed, n_distances)


def closest_cells(shard: CpuShard, cells: CenterCells, n_probes: int) -> tuple[NDArray[np.int32], int]:
    """The cells that every row visits, closest first, (N, p), and the number of distances to find them."""
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        return _closest_of_all(shard, cells.middles, n_visits), shard.n_rows * len(cells.middles)
    return _closest_by_cells_above(shard, cells, cells.above, n_visits)


def _closest_of_all(shard: CpuShard, middles: F64, n_visits: int) -> NDArray[np.int32]:
    product = CenterProduct(shard, middles, [np.arange(len(middles))])
    cells = np.empty((shard.n_rows, n_visits), dtype=np.int32)
    key_type = np.int32 if shard.rows.dtype == np.float32 else np.int64
    n_heats = -(-len(middles) // kernels.HEAT)

    def route(span: tuple[int, int]) -> None:
        _, seen, scales = product.load(*span)
        scores = product.scores(seen, None, product.chunks[0])
        keys, winners = np.empty(n_heats * kernels.HEAT, dtype=key_type), np.empty(n_heats, dtype=key_type)
        kernels.closest_cells(scores, product.chunks[0].norms, scales, cells[slice(*span)], keys, winners)

    run_all(route, even_ranges(shard.n_rows, product.rows_per_block), shard.n_threads)
    return cells


def _closest_by_cells_above(
    shard: CpuShard, cells: CenterCells, above: CenterCells, n_visits: int
) -> tuple[NDArray[np.int32], int]:
    """Among the cells in the few closest cells of cells."""
    n_above = min(VISITS_ABOVE, len(above.middles))
    routes = _closest_of_all(shard, above.middles, n_above)
    sizes = np.diff(above.starts)
    product = CenterProduct(shard, cells.middles, np.split(np.arange(len(cells.middles)), above.starts[1:-1]))
    found = np.full((shard.n_rows, n_visits), -1, dtype=np.int32)
    dtype = shard.rows.dtype
    costs = np.full((shard.n_rows, n_visits), np.finfo(dtype).max, dtype=dtype)
    for a in range(n_above):
        starts, order = group_by(np.ascontiguousarray(routes[:, a]), len(above.middles))

        def merge(task: CellTask, order: NDArray[np.integer] = order) -> None:
            chosen, chunk = order[task.begin : task.end], product.chunks[task.cell]
            scores = product.scores(product.seen(gather_rows(shard.rows, chosen)), None, chunk)
            kernels.merge_closest(scores, chunk.norms, shard.scales, chosen, chunk.members, costs, found)

        run_all(merge, cell_tasks(starts), shard.n_threads)
    # where so few cells are near, visit the closest again
    found = np.where(found < 0, found[:, :1], found)
    return found, shard.n_rows * len(above.middles) + int(sizes[routes].sum())


def _own_distances(shard: CpuShard, product: CenterProduct, best: F64) -> F64:
    """Squared distances to the labels' centres, written to `best`."""

    def measure(span: tuple[int, int]) -> None:
        part = slice(*span)
        rows = shard.rows.kernel_rows(*span)
        hard_kernels.own_distances(
            rows, shard.scales[part], product.centers, product.norms, shard.labels[part], best[part]
        )

    run_all(measure, even_ranges(shard.n_rows, 4 * ROWS_PER_TASK), shard.n_threads)
    return best


def _visit(shard: CpuShard, product: CenterProduct, cell_of: NDArray[np.int32], best: F64) -> None:
    """One round: every row against the centres of one cell."""
    n_cells = len(product.chunks)
    starts, order = group_by(cell_of, n_cells)
    labels = shard.labels

    def search(task: CellTask) -> None:
        chosen = order[task.begin : task.end]
        chunk = product.chunks[task.cell]
        rows = gather_rows(shard.rows, chosen)
        seen = product.seen(rows)
        lengths = np.empty(len(chosen))
        hard_kernels.row_lengths(seen, lengths)
        if product.is_thin:
            scales = shard.scales[chosen] if len(shard.scales) else shard.scales
            thin.check_cell_of_thin(
                rows, seen[0], chosen, lengths, scales, chunk.factors, chunk.norms, chunk.members,
                product.centers, product.norms, best, labels, *product.lanes(),
            )  # fmt: skip
            return
        scores = product.scores(seen, None, chunk)
        kernels.check_cell(
            rows, chosen, lengths, shard.scales, scores, chunk.norms, chunk.members, product.centers, product.norms,
            best, labels, product.keys,
        )  # fmt: skip

    run_all(search, cell_tasks(starts), shard.n_threads)
