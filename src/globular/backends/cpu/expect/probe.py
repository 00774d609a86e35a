"""The probing pass of mixtures: K(n) becomes the best of the old K(n) and the components of a few cells.

The log-joint of a row and a component with a diagonal covariance is an inner product of [x] (one variance a component)
or [x, x²] (one a column) with parameters of the component, plus what depends on one of the two alone. So the components
of a cell are compared by a matrix product, in the kernel that also chooses the C′ best (`kernels.expect_probe`).
Cells are visited by distance, whatever the variances.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.assign.neighbors import kept_members
from globular.backends.cpu.assign.probe import closest_cells
from globular.backends.cpu.cells import BLOCK_ROWS, BLOCK_SCORES, CellShare, for_cells
from globular.backends.cpu.expect.neighbors import Costs, soft_sums
from globular.backends.cpu.rows import KernelRows, on_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import NONE, RUN, runs_of, threads_for_runs
from globular.kernels import expect_probe as kernels
from globular.kernels.probe import HEAT
from globular.kernels.queue import new_queue
from globular.model.cells import CenterCells
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Labels
from globular.threads import on_all_threads

EXPONENTIAL = 8
"""Numbers that are read in the time of one exponential, about."""


@CpuShard.implements(Expect, Probe)
def expect_probe(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture with diagonal covariances among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    mixture, cells = work.mixture, work.among.cells
    itself = np.arange(mixture.n_components, dtype=np.int32)[:, None]
    members = kept_members(shard, itself, work.among.n_candidates)
    weighed = Costs(mixture)
    costs = np.empty(members.shape)
    n_distances = _own_costs(shard, mixture.means, weighed, members, costs)
    before = np.nan
    if cells is not None:
        before = _free_energy(shard, weighed, costs)
        n_distances += _search(shard, mixture.means, weighed, cells, work.among.n_probes, members, costs)
    shard.labels[:] = members[:, 0]
    bound = _shares(shard, weighed, costs)
    sums = soft_sums(shard, mixture, members, costs)
    gain = 0.0 if cells is None else bound - before
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances, gain=gain)


def _search(
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

        def visit(share: CellShare, numbers: NDArray[np.int64]) -> None:
            kernels.visit_cells(
                *share, self._offset, self._starts, self._components, self._factors, self._norms, self._curvatures,
                self._means, weighed.search_precisions, weighed.search_biases, members, costs,
                np.empty((most, self._factors.shape[1]), dtype=dtype),
                np.empty(max(BLOCK_SCORES, least * self._largest), dtype=dtype), np.empty(most),
                np.empty(-(-self._largest // HEAT) * HEAT, dtype=f"i{dtype.itemsize}"),
            )  # fmt: skip

        sizes = np.diff(self._starts)
        _, rows_of_cells = for_cells(self._shard, cell_of, len(sizes), visit)
        return int(rows_of_cells @ sizes)


def _own_costs(shard: CpuShard, means: F64, weighed: Costs, members: NDArray[np.int32], costs: F64) -> int:
    """The costs of K(n), which is sorted by them; returns their number."""
    n_costs = np.empty(-(-shard.n_rows // RUN), dtype=np.int64)

    def measure(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        kernels.own_costs(
            queue, RUN, rows, means, weighed.search_precisions, weighed.search_biases, members[part], costs[part],
            n_costs[runs_of(part)],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, members.shape[1] * shard.n_columns), measure, calls_blas=False)
    return int(n_costs.sum())


def _shares(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    """The free energy; costs become w q(c)."""
    return _on_costs(shard, kernels.shares_of_costs, weighed, costs)


def _free_energy(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    return _on_costs(shard, kernels.free_energy, weighed, costs)


def _on_costs(shard: CpuShard, kernel: Callable[..., None], weighed: Costs, costs: F64) -> float:
    """What a kernel finds in runs of rows, added up."""
    totals, queue = np.empty(-(-shard.n_rows // RUN)), new_queue()
    threads = threads_for_runs(shard, EXPONENTIAL * costs.shape[1])
    on_all_threads(
        lambda: kernel(queue, RUN, costs, weighed.unit, weighed.base, shard.weights, totals), threads, calls_blas=False
    )
    return float(totals.sum())
