"""The components of a few cells against those that rows keep, by matrix products; cells are visited by distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.kernels import expect_probe as kernels
from globular.kernels.probe import HEAT
from globular.model.cells import CenterCells
from globular.model.statistics import F64
from globular.passes.cpu.assign.probe import closest_cells
from globular.passes.cpu.cells import BLOCK_ROWS, for_cells
from globular.passes.cpu.engine.score import Visit
from globular.passes.cpu.expect.neighbors import Costs
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import CACHED_NUMBERS, NONE
from globular.seam.passes import Labels


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
            kernels.visit_cells(
                queue, *rows[:4], self._offset, self._starts, self._components, self._factors, self._norms,
                self._curvatures, self._means, weighed.search_precisions, weighed.search_biases, members, costs,
                np.empty((most, self._factors.shape[1]), dtype=dtype),
                np.empty(max(CACHED_NUMBERS, least * self._largest), dtype=dtype), np.empty(most),
                np.empty(-(-self._largest // HEAT) * HEAT, dtype=f"i{dtype.itemsize}"),
            )  # fmt: skip

        sizes = np.diff(self._starts)
        return int(for_cells(self._shard, cell_of, len(sizes), visit) @ sizes)
