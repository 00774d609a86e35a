"""Rows in memory, passes by numba kernels and BLAS on our own threads: each pass is one module beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.backends.cpu import (
    bounded,
    chunks,
    claims,
    d2,
    hard,
    kept,
    nested,
    picked,
    probed,
    probed_soft,
    projected,
    routed,
    soft,
    truncated,
)
from globular.backends.cpu.direct import HeldChunks
from globular.backends.cpu.grouped import Grouping
from globular.backends.cpu.kept import Kept
from globular.backends.cpu.planted import PlantedShard
from globular.backends.cpu.rows import CSRRows, DenseRows, Rows
from globular.backends.protocol import Index, Labels, Route
from globular.backends.state import PointState
from globular.data.tree import PartitionTree
from globular.kernels.hard import row_lengths
from globular.kernels.random import random_labels
from globular.model.cells import CellTree, CenterCells
from globular.model.chunks import Chunks
from globular.model.columns import ColumnMeans
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.groups import CenterGroups
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.search import Search
from globular.model.statistics import (
    F64,
    I64,
    CellStatistics,
    Claim,
    FarRows,
    HardStatistics,
    PotentialStatistics,
    ProbedStatistics,
    SoftStatistics,
    TruncatedStatistics,
)
from globular.model.subspace import Subspace
from globular.threads import cached_property, even_ranges, map_all

_NONE = np.empty(0)
"""Stands for absent weights or scales in kernel calls: kernels look at its length."""


class CpuShard(PlantedShard):
    """A matrix in memory with its weights and per-point state.

    Parameters
    ----------
    matrix : 2-D ndarray of any real dtype, or CSR. Never modified. Copied whole only by long truncated fits, and only
        if it is small (see `grouped`).
    weights : one float64 per row, or None.
    first_row : number of row 0 in the whole data, for random numbers that do not depend on the split.
    unit_rows : whether rows count as scaled to unit length (cosine). Rows of zeros stay zero.
    """

    def __init__(
        self,
        matrix: NDArray[np.generic] | sparse.csr_matrix | sparse.csr_array,
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        n_threads: int = 1,
        state: PointState | None = None,
        first_row: int = 0,
    ) -> None:
        self.rows: Rows = CSRRows(matrix) if sparse.issparse(matrix) else DenseRows(matrix)
        self.n_rows, self.n_columns = int(matrix.shape[0]), int(matrix.shape[1])
        self.weights: F64 = _NONE if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        self.n_threads = n_threads
        self.first_row = first_row
        self.state = PointState(self.n_rows) if state is None else state
        self.n_seeds = 0
        """Seeds given since the restart of the d2 state; set it when that state was made by another shard."""
        self.batch_rows: tuple[Batch, I64] | None = None
        """The rows of the last batch: the next one is often the same."""
        self.potential_runs: F64 | None = None
        self.weight_runs: F64 | None = None
        self.grouping: Grouping | None = None
        """Rows by their label as of the last truncated pass."""
        self.kept: Kept | None = None
        """Rows with the components that matter to them, as the last `kept_pass` that looked at all has left them."""
        self._held: HeldChunks | None = None
        """What the last `chunk_pass` was about: the next one is often about the same."""
        self.scales: F64 = _NONE
        if unit_rows:
            parts = map_all(self._inverse_lengths, even_ranges(self.n_rows, 8192), n_threads)
            self.scales = np.concatenate([_NONE, *parts])

    def _inverse_lengths(self, span: tuple[int, int]) -> F64:
        lengths = np.empty(span[1] - span[0])
        row_lengths(self.rows.kernel_rows(*span), lengths)
        with np.errstate(over="ignore"):
            scales = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        if not np.isfinite(lengths).all() or np.isinf(scales).any():
            raise ValueError(
                "X has rows whose length, or its inverse, overflows in float64; scale these rows to length 1"
            )
        return scales

    @cached_property
    def total_weight(self) -> float:
        return float(self.weights.sum()) if len(self.weights) else float(self.n_rows)

    @cached_property
    def offset(self) -> F64 | None:
        """What kernels subtract from the rows before squaring them; see `hard.row_offset`."""
        return hard.row_offset(self)

    @property
    def passes(self) -> Mapping[str, str]:
        sparse_reason = "" if isinstance(self.rows, DenseRows) else "X is sparse and this model needs dense rows"
        return {
            "hard_pass": "",
            "bounded_pass": "",
            "soft_pass": sparse_reason,
            "claim_pass": sparse_reason,
            "kept_pass": sparse_reason,
            "truncated_pass": "",
            "probing_pass": "",
            "nested_pass": "",
            "truncated_soft_pass": sparse_reason,
            "probing_soft_pass": sparse_reason,
            "cell_pass": sparse_reason,
            "d2_pass": "",
            "trial_pass": "",
            "routed_pass": "",
            "take": "",
            "farthest": "",
            "column_moments": "",
            "within": sparse_reason,
        }

    @property
    def casts_ballots(self) -> bool:
        return isinstance(self.rows, CSRRows)

    @property
    def labels(self) -> Labels:
        return cast(Labels, self.state.get("labels", np.int32, -1))

    def hard_pass(self, centers: F64, *, accumulate: bool = True) -> HardStatistics:
        return hard.hard_pass(self, centers, accumulate)

    def bounded_pass(self, centers: F64, groups: CenterGroups, shifts: F64 | None) -> HardStatistics:
        return bounded.bounded_pass(self, centers, groups, shifts)

    def soft_pass(self, mixture: GaussianParameters) -> SoftStatistics:
        return soft.soft_pass(self, mixture)

    def kept_pass(self, mixture: GaussianParameters, *, renew: bool) -> SoftStatistics:
        return kept.kept_pass(self, mixture, renew)

    def claim_pass(
        self, mixture: GaussianParameters, components: Index, rates: F64, seed: int, *, kept: bool = False
    ) -> list[Claim]:
        return claims.claim_pass(self, mixture, components, rates, seed, kept)

    def truncated_pass(
        self, centers: F64, graph: Graph, search: Search, *, moved_only: bool = False
    ) -> TruncatedStatistics[HardStatistics]:
        return truncated.truncated_pass(self, centers, graph, search, moved_only)

    def truncated_soft_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        return truncated.truncated_soft_pass(self, mixture, graph, search)

    def probing_pass(
        self, centers: F64, cells: CenterCells, n_probes: int, *, accumulate: bool = True
    ) -> HardStatistics:
        return probed.probing_pass(self, centers, cells, n_probes, accumulate)

    def probing_soft_pass(
        self, mixture: GaussianParameters, cells: CenterCells | None, n_probes: int, n_candidates: int
    ) -> ProbedStatistics:
        return probed_soft.probing_soft_pass(self, mixture, cells, n_probes, n_candidates)

    def nested_pass(
        self, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch
    ) -> NestedStatistics:
        return nested.nested_pass(self, centers, origin, batch, search)

    def pick(self, indices: Index) -> CpuShard:
        return picked.pick(self, indices)

    def scatter_labels(self, n_clusters: int, seed: int) -> None:
        random_labels(np.uint64(seed), self.first_row, n_clusters, self.labels)

    def label_by_seeds(self) -> None:
        self.labels[:] = d2.closest_seeds(self)

    def label_sums(self, n_clusters: int) -> HardStatistics:
        return HardStatistics(*hard.cluster_sums(self, n_clusters), 0.0, 0, 0)

    def within(self, subspace: Subspace) -> CpuShard:
        coordinates = np.empty((self.n_rows, subspace.dimension), dtype=self.rows.dtype)
        projected.write_coordinates(self, subspace, coordinates)
        weights = self.weights if len(self.weights) else None
        return CpuShard(coordinates, weights, n_threads=self.n_threads, state=self.state, first_row=self.first_row)

    def relabel(self, names: NDArray[np.int32]) -> None:
        np.take(names, self.labels, out=self.labels)

    def d2_pass(self, centers: F64, *, restart: bool = False) -> PotentialStatistics:
        return d2.d2_pass(self, centers, restart)

    def locate(self, masses: F64) -> Index:
        return d2.locate(self, masses)

    def locate_weight(self, masses: F64) -> Index:
        return d2.locate_weight(self, masses)

    def trial_pass(self, centers: F64) -> F64:
        return d2.trial_pass(self, centers)

    def seed_weights(self, n_seeds: int) -> F64:
        return d2.seed_weights(self, n_seeds)

    def label_errors(self, n_clusters: int) -> F64:
        return d2.label_errors(self, n_clusters)

    def take(self, indices: Index) -> F64:
        if isinstance(self.rows, DenseRows):
            rows = self.rows.gather(indices).astype(np.float64)
        else:
            rows = self.rows.dense(indices)
        return rows * self.scales[indices, None] if len(self.scales) else rows

    def take_potential(self, indices: Index) -> F64:
        return d2.take_potential(self, indices)

    def take_weights(self, indices: Index) -> F64:
        return self.weights[indices] if len(self.weights) else np.ones(len(indices))

    def routed_pass(self, tree: CellTree, *, route: Route = "top", accumulate: bool = True) -> CellStatistics:
        return routed.routed_pass(self, tree, route, accumulate)

    def local(self, rows: F64, weights: F64 | None = None) -> CpuShard:
        with np.errstate(over="ignore"):
            single = rows.astype(np.float32)
        # rows that came from float32 go back to it without loss and at twice the speed
        return CpuShard(single if np.array_equal(single, rows) else rows, weights, n_threads=self.n_threads)

    def build_tree(self, kind: ScatterKind, leaf_size: int) -> PartitionTree:
        return chunks.build_tree(self, kind, leaf_size)

    def read_rows(self, numbers: NDArray[np.integer]) -> tuple[F64, F64]:
        return chunks.read_rows(self, numbers)

    def chunk_pass(self, chunks: Chunks, mixture: GaussianParameters) -> SoftStatistics:
        if self._held is None or self._held.chunks is not chunks:
            self._held = HeldChunks(chunks)
        return self._held.e_step(mixture)

    def cell_seeds(self, starts: Index, quotas: Index, uniforms: F64) -> Index:
        return d2.cell_seeds(self, starts, quotas, uniforms)

    def cell_neighbors(self, starts: Index, adjacent: Index, n_neighbors: int) -> Labels:
        return routed.cell_neighbors(self, starts, adjacent, n_neighbors)

    @cached_property
    def _moments(self) -> tuple[F64, F64]:
        return hard.column_moments(self)

    def column_moments(self) -> tuple[F64, F64]:
        return self._moments

    def farthest(self, n: int, centers: F64) -> FarRows:
        return hard.farthest(self, n, centers)
