"""Rows of a batch against all centres: scores −2 x·m by matrix products, labels from them, and bounds.

All centres at once, in blocks of rows that suit the cache; no exact distance is computed where one score is clearly the
lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import batch_products as kernels
from globular.kernels.batch import SAFETY
from globular.model.columns import ColumnMeans
from globular.model.statistics import F64, I64, Floats
from globular.passes.cpu.rows import CSRRows, KernelRows, can_be_indexed, gather_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import GATHERED_AT_ONCE, NO_NUMBERS, ROWS_PER_PRODUCT
from globular.seam.passes import Labels
from globular.threads import cached_property, even_ranges, run_all

SCORES_PER_BLOCK = 2**17
"""About how many scores a product of a batch has: they stay in the second-level cache; larger = fewer blocks."""
BLOCKS = 32
"""Blocks that even a small batch is cut into, if they have enough rows."""
BYTES_AT_ONCE = 2**24
"""Most bytes of rows that are brought together, where rows have to be converted; larger = more memory."""
ROWS_PER_SEARCH = 64
"""Rows that a thread searches in one go; rows are brought together in a multiple of it."""
LEAST_ROWS = 256
"""Rows to look at for which another thread is worth waking."""


class BatchRows(NamedTuple):
    """What a kernel is to do: blocks of some rows of a batch."""

    positions: I64
    """Which rows of the batch."""
    rows: KernelRows
    places: I64
    """Where those lie in `rows`; empty: where their numbers in the shard say."""


def on_positions(
    shard: CpuShard, batch: I64, positions: I64, work: Callable[[NDArray[np.int64], BatchRows, slice], None]
) -> None:
    """Call a kernel that takes blocks of some rows of the batch from a queue, once per thread; see `rows.on_rows`."""
    n = len(positions)
    if can_be_indexed(shard.rows):
        queue, some = new_queue(), BatchRows(positions, shard.rows.kernel_rows(0, shard.n_rows), NO_NUMBERS)
        share_kernel(lambda: work(queue, some, slice(0, n)), queue, min(shard.n_threads, 1 + n // LEAST_ROWS))
        return

    def gathered(span: tuple[int, int]) -> None:
        part = slice(*span)
        rows = gather_rows(shard.rows, batch[positions[part]])
        work(new_queue(), BatchRows(positions[part], rows, np.arange(span[1] - span[0])), part)

    fitting = BYTES_AT_ONCE // (shard.rows.dtype.itemsize * max(1, shard.n_columns))
    size = min(GATHERED_AT_ONCE, max(1, fitting // ROWS_PER_SEARCH) * ROWS_PER_SEARCH)
    run_all(gathered, even_ranges(n, size), shard.n_threads)


class BoundState(NamedTuple):
    """Bounds as kernels take them; see `kernels.batch`."""

    group_of: I64
    drift: F64
    group_drift: F64
    upper: NDArray[np.float32]
    lower: NDArray[np.float32]

    @classmethod
    def none(cls) -> BoundState:
        """Where a search has none."""
        floats = np.empty((0, 0), dtype=np.float32)
        return cls(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), floats[0:0].ravel(), floats)


@dataclass(frozen=True, slots=True)
class RowProducts:
    """What sparse votes need of the rows of a batch that were multiplied; nothing of the others."""

    own: F64
    """x · m with the centre that a row has now, (n,)."""
    former: F64
    """The same with the one it had, (n,)."""
    lengths: F64
    """‖x‖, (n,)."""

    @classmethod
    def empty(cls, n: int) -> RowProducts:
        return cls(np.empty(n), np.empty(n), np.empty(n))


def center_scores(shard: CpuShard, centers: F64 | ColumnMeans, n_rows: int) -> DenseScores | ColumnScores:
    """The scores that suit the rows, for a batch of so many."""
    if not isinstance(shard.rows, CSRRows):
        assert not isinstance(centers, ColumnMeans)
        return DenseScores(shard, centers)
    if isinstance(centers, ColumnMeans):
        return ColumnScores(shard, centers, RowProducts.empty(n_rows))
    return ColumnScores(shard, ColumnMeans.of(np.ascontiguousarray(centers), shard.n_threads))


class DenseScores:
    """Products by BLAS in the rows' precision; doubtful labels are decided by exact distances.

    `score_norms` are ‖m − offset‖² in that precision, whose round-off and smallest normal number are `unit` and `tiny`;
    `longest` is the largest ‖m − offset‖.
    """

    kept: RowProducts | None = None

    def __init__(self, shard: CpuShard, centers: F64) -> None:
        self.shard, self.rows, self.scales = shard, shard.rows, shard.scales
        self.offset: F64 = np.empty(0) if shard.offset is None else shard.offset
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        dtype = self.rows.dtype
        self.unit, self.tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
        with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
            self.norms: F64 = np.einsum("ij,ij->i", self.centers, self.centers)
            shifted = self.centers - self.offset if len(self.offset) else self.centers
            self.factors = np.ascontiguousarray((-2.0 * shifted.T), dtype=dtype)
            norms = np.einsum("ij,ij->i", shifted, shifted) if len(self.offset) else self.norms
            self.score_norms: Floats = norms.astype(dtype)
        self.longest = float(np.sqrt(norms.max()))

    @cached_property
    def rounded(self) -> tuple[Floats, F64, float]:
        """For distances in the rows' precision: the centres in it, and what may be wrong with a distance.

        That is what rounding the centre changes, with what is lost to underflow, per centre, and a share of the
        distance itself. It includes what exact distances lose.
        """
        D = self.centers.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            centers = self.centers.astype(self.rows.dtype)
            difference = self.centers - centers
            errors = np.sqrt(np.einsum("ij,ij->i", difference, difference)) + np.sqrt((D + 4.0) * self.tiny)
            if len(self.scales):  # a scale is rounded too, and its product with every entry
                errors += 4.0 * self.unit * np.sqrt(self.norms)
        return centers, errors * (1.0 + SAFETY), (D + 16.0) * self.unit + SAFETY

    def label(self, batch: I64, positions: I64, labels: Labels, bounds: BoundState) -> None:
        """Write the closest centre of these rows of the batch to `labels`, and make their bounds."""
        dtype, (C, D) = self.rows.dtype, self.centers.shape

        def multiply(queue: NDArray[np.int64], some: BatchRows, _: slice) -> None:
            B = _rows_per_block(len(some.positions), C)
            kernels.label_by_products(
                queue, *some, self.scales, batch, self.offset, self.factors, self.centers, self.norms,
                self.score_norms, self.longest, self.unit, self.tiny, *bounds, labels, np.empty((B, D), dtype=dtype),
                np.empty((B, C), dtype=dtype), np.empty((2, B), dtype=np.int64), np.empty((3, B)),
                np.empty(B, dtype=np.int32), np.empty(len(bounds.group_drift)),
            )  # fmt: skip

        on_positions(self.shard, batch, positions, multiply)


class ColumnScores:
    """Products of sparse rows with centres that are kept column by column, in float64.

    Attributes as in `DenseScores`; `slack` is what may be wrong with the norms, `kept` what votes will need.
    """

    def __init__(self, shard: CpuShard, means: ColumnMeans, kept: RowProducts | None = None) -> None:
        self.shard, self.scales, self.means, self.kept = shard, shard.scales, means, kept
        self.score_norms: F64 = means.norms
        self.unit, self.tiny = 2.0**-53, 2.0**-1022
        self.longest = float(np.sqrt(self.score_norms.max()))
        self.slack = means.norm_share * float(self.score_norms.max())

    def label(self, batch: I64, positions: I64, labels: Labels, bounds: BoundState) -> None:
        """The same; products of the rows are kept."""
        width, kept = self.means.places.shape[1], self.kept or RowProducts.empty(0)

        def multiply(queue: NDArray[np.int64], some: BatchRows, _: slice) -> None:
            B = _rows_per_block(len(some.positions), width)
            kernels.label_by_columns(
                queue, *some, self.scales, batch, self.means.places, self.means.factors, self.score_norms,
                self.longest, self.slack, self.unit, self.tiny, *bounds, labels, kept.own, kept.former, kept.lengths,
                np.empty((B, width)), np.empty((2, B), dtype=np.int64), np.empty((3, B)),
                np.empty((2, B), dtype=np.int32), np.empty(len(bounds.group_drift)),
            )  # fmt: skip

        on_positions(self.shard, batch, positions, multiply)


def _rows_per_block(n_rows: int, width: int) -> int:
    """Fewer for a small batch, so that there is a block for every thread; threads play no part."""
    return min(ROWS_PER_PRODUCT, max(16, SCORES_PER_BLOCK // width), max(LEAST_ROWS // 2, n_rows // BLOCKS))
