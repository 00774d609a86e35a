"""The probing pass of mixtures: K(n) becomes the best of the old K(n) and the components of a few cells.

The log-joint of a row and a component with a diagonal covariance is an inner product of [x] (one variance a component)
or [x, x²] (one a column) with parameters of the component, plus what depends on one of the two alone. So the components
of a cell are compared by a matrix product as in `probed`; `kernels.probed_soft` fuses the choice of the C′ best.
Cells are visited by distance, whatever the variances.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.assign.neighbors import kept_members
from globular.backends.cpu.assign.probe import closest_cells
from globular.backends.cpu.cells import cell_tasks
from globular.backends.cpu.expect.neighbors import Costs, soft_sums
from globular.backends.cpu.products import CenterProduct, ScoreChunk
from globular.backends.cpu.rows import Floats, KernelRows, gather_rows, read_only
from globular.backends.cpu.shard import CpuShard
from globular.kernels import expect_probe as kernels
from globular.kernels.nearest import row_lengths
from globular.kernels.probe import HEAT
from globular.model.cells import CenterCells
from globular.model.groups import group_by
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Probe
from globular.seam.passes import Expect
from globular.threads import even_ranges, map_all, run_all

ROWS_PER_TASK = 2048


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
    sizes = np.diff(cells.starts)
    for a in range(visits.shape[1]):
        _visit(shard, product, np.ascontiguousarray(visits[:, a]), members, costs)
        n_distances += int(sizes[visits[:, a]].sum())
    return n_distances


class JointProduct(CenterProduct):
    """Components by cell, prepared for costs by matrix products.

    These are lowered by a share of the terms that they are sums of, more than rounding takes from them.
    """

    def __init__(self, shard: CpuShard, means: F64, weighed: Costs, cells: CenterCells) -> None:
        self.weighed = weighed
        self.is_diagonal = weighed.search_precisions.shape[1] > 1
        self.slack = 4 * float(np.finfo(shard.rows.dtype).eps) * (1 + np.sqrt(shard.n_columns))
        super().__init__(shard, means, np.split(cells.order, cells.starts[1:-1]))

    def _chunk(self, members: NDArray[np.intp]) -> ScoreChunk:
        means = self.centers[members] if self.offset is None else self.centers[members] - self.offset
        precisions, biases = self.weighed.search_precisions[members], self.weighed.search_biases[members]
        lowered = (1.0 - self.slack) * precisions
        factors = -2.0 * precisions * means
        if self.is_diagonal:
            factors = np.concatenate([factors, lowered], axis=1)
        norms = (lowered * means**2).sum(axis=1) + biases - self.slack * np.abs(biases)
        with np.errstate(over="ignore"):  # what overflows is not found, and K(n) stays as it is
            rounded = np.ascontiguousarray(factors.T, dtype=self.rows.dtype)
            return ScoreChunk(members, rounded, norms.astype(self.rows.dtype), 0.0)

    def curvatures(self, chunk: ScoreChunk) -> Floats:
        """What a cost has of ‖x − offset‖²; nothing where the squares of the columns are in the product."""
        precisions = self.weighed.search_precisions[chunk.members, 0]
        with np.errstate(over="ignore"):
            return ((0.0 if self.is_diagonal else 1.0 - self.slack) * precisions).astype(self.rows.dtype)

    def heats(self, chunk: ScoreChunk) -> NDArray[np.generic]:
        """Scratch for the keys of a cell."""
        key_type = np.int32 if self.rows.dtype == np.float32 else np.int64
        return np.empty(-(-len(chunk.members) // HEAT) * HEAT, dtype=key_type)

    def seen(self, rows: KernelRows) -> KernelRows:
        (about,) = super().seen(rows)
        return (read_only(np.concatenate([about, about**2], axis=1)) if self.is_diagonal else about,)


def _own_costs(shard: CpuShard, means: F64, weighed: Costs, members: NDArray[np.int32], costs: F64) -> int:
    """The costs of K(n), which is sorted by them; returns their number."""

    def measure(span: tuple[int, int]) -> int:
        part = slice(*span)
        return kernels.own_costs(
            shard.rows.kernel_rows(*span), means, weighed.search_precisions, weighed.search_biases,
            members[part], costs[part],
        )  # fmt: skip

    return sum(map_all(measure, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads))


def _visit(
    shard: CpuShard, product: JointProduct, cell_of: NDArray[np.int32], members: NDArray[np.int32], costs: F64
) -> None:
    """One round: every row against the components of one cell; no two threads touch a row."""
    starts, order = group_by(cell_of, len(product.chunks), shard.n_threads)
    weighed = product.weighed

    def search(task: tuple[int, int, int]) -> None:
        cell, begin, end = task
        chosen, chunk = order[begin:end], product.chunks[cell]
        rows = gather_rows(shard.rows, chosen)
        seen = product.seen(rows)
        lengths = np.zeros(len(chosen))
        if not product.is_diagonal:
            row_lengths(seen, lengths)
        kernels.check_cell(
            rows, chosen, lengths, product.scores(seen, None, chunk), chunk.norms,
            product.curvatures(chunk), chunk.members,
            product.centers, weighed.search_precisions, weighed.search_biases, members, costs, product.heats(chunk),
        )  # fmt: skip

    run_all(search, cell_tasks(starts, ROWS_PER_TASK).tolist(), shard.n_threads)


def _shares(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    """The free energy; costs become w q(c)."""

    def settle(span: tuple[int, int]) -> float:
        part = slice(*span)
        return kernels.shares_of_costs(costs[part], weighed.unit, weighed.base, shard.weights[part])

    return float(sum(map_all(settle, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads)))


def _free_energy(shard: CpuShard, weighed: Costs, costs: F64) -> float:
    def of_rows(span: tuple[int, int]) -> float:
        part = slice(*span)
        return kernels.free_energy(costs[part], weighed.unit, weighed.base, shard.weights[part])

    return float(sum(map_all(of_rows, even_ranges(shard.n_rows, ROWS_PER_TASK), shard.n_threads)))
