"""The probing pass: each row searches its p closest cells of centres exactly, by matrix products.

A second source of candidates for truncated E-steps: where neighbourhoods alone stall in local minima of the cluster
graph, probing frees the rows. Every row keeps what it has unless a centre found is closer: the objective never rises.
Rounds: in round a each row visits its a-th closest cell, rows grouped by cell, so that no two threads touch a row.
"""

from __future__ import annotations

import numpy as np

from globular.model.cells import VISITS_ABOVE, CenterCells
from globular.model.statistics import HardStatistics
from globular.passes.cpu.cells import CellProduct, Known
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import wanted_sums
from globular.passes.host import settle
from globular.seam.among import Probe
from globular.seam.passes import Assign, Labels


@CpuShard.implements(Assign, Probe)
def assign_probe(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the centres of its closest cells, and its own."""
    assert isinstance(work.among, Probe) and work.among.cells is not None
    cells, best, labels = work.among.cells, shard.squared_distances, shard.labels
    former = labels.copy()
    visits, n_distances = closest_cells(shard, cells, work.among.n_probes)
    product = CellProduct(shard, work.centers, cells.order, cells.starts)
    for a in range(visits.shape[1]):
        n_distances += product.search(visits[:, a], best, labels, Known.DISTANCES if a else Known.LABELS)
    n_distances += shard.n_rows
    objective, n_changed = settle(shard, former)
    return HardStatistics(*wanted_sums(shard, work), objective, n_changed, n_distances)


def closest_cells(shard: CpuShard, cells: CenterCells, n_probes: int) -> tuple[Labels, int]:
    """The cells that every row visits, closest first, (N, p), and the number of distances to find them."""
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        return CellProduct(shard, cells.middles).closest(n_visits), shard.n_rows * len(cells.middles)
    return _closest_by_cells_above(shard, cells, cells.above, n_visits)


def _closest_by_cells_above(
    shard: CpuShard, cells: CenterCells, above: CenterCells, n_visits: int
) -> tuple[Labels, int]:
    """Among the cells in the few closest cells of cells."""
    routes = CellProduct(shard, above.middles).closest(min(VISITS_ABOVE, len(above.middles)))
    product = CellProduct(shard, cells.middles, None, above.starts)
    found: Labels = np.full((n_visits, shard.n_rows), -1, dtype=np.int32).T
    dtype = shard.rows.dtype
    costs = np.full((shard.n_rows, n_visits), np.finfo(dtype).max, dtype=dtype)
    n_distances = shard.n_rows * len(above.middles)
    for a in range(routes.shape[1]):
        n_distances += product.merge_closest(routes[:, a], costs, found)
    # where so few cells are near, visit the closest again
    for a in range(1, n_visits):
        np.copyto(found[:, a], found[:, 0], where=found[:, a] < 0)
    return found, n_distances
