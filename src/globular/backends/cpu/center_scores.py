"""Rows of a batch against all centres: scores −2 x·m by matrix products, and labels from them.

All centres at once, in blocks of rows that suit the cache, where `hard.CenterProduct` has chunks of centres; no exact
distance is computed where one score is clearly the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from globular.backends.cpu.rows import CSRRows, Floats, KernelRows, Rows, load_rows
from globular.backends.cpu.shard import CpuShard
from globular.kernels import columns as column_kernels
from globular.kernels import scores as kernels
from globular.kernels.batch import SAFETY
from globular.model.columns import ColumnMeans
from globular.model.statistics import F64, I64
from globular.seam.passes import Labels
from globular.threads import cached_property, even_ranges

ROWS_PER_BLOCK = 512
"""Rows that are put together for one product: they and their scores stay in the second-level cache."""
BYTES_PER_BLOCK = 2**20
TASKS, SMALLEST_TASK, LARGEST_TASK = 8, 512, 2048
SCORES_PER_TASK, BYTES_PER_TASK = 2**20, 2**24
"""Tasks that a batch is cut into, and how many rows, scores and bytes of rows that must be converted these may have."""


class Scored(NamedTuple):
    """What bounds can be made from."""

    block: KernelRows
    at: I64
    lengths: F64
    scales: F64
    scores: Floats
    best: F64
    """No less than the squared distance to the closest centre."""


@dataclass(frozen=True, slots=True)
class RowProducts:
    """What sparse votes need of the rows of a batch that were multiplied; the others are left as they are."""

    own: F64
    """x · m with the centre that a row has now, (n,)."""
    former: F64
    """The same with the one it had, (n,)."""
    lengths: F64
    """‖x‖, (n,)."""

    @classmethod
    def empty(cls, n: int) -> RowProducts:
        return cls(np.empty(n), np.empty(n), np.empty(n))

    def take(self, positions: I64, scored: Scored, labels: Labels, former: Labels) -> None:
        """Keep those of these rows."""
        column_kernels.keep_products(
            scored.scores, scored.lengths, labels, former, positions, self.own, self.former, self.lengths
        )


def center_scores(shard: CpuShard, centers: F64 | ColumnMeans) -> DenseScores | ColumnScores:
    """The scores that suit the rows."""
    if isinstance(shard.rows, CSRRows):
        if not isinstance(centers, ColumnMeans):
            centers = ColumnMeans.of(np.ascontiguousarray(centers), shard.n_threads)
        return ColumnScores(shard.rows, shard.scales, centers)
    assert not isinstance(centers, ColumnMeans)
    return DenseScores(shard, centers)


def product_tasks(shard: CpuShard, n_rows: int, n_clusters: int) -> list[tuple[int, int]]:
    """Spans of rows, one task each, whatever the number of threads: few, as waking one takes as long as many rows."""
    most = min(LARGEST_TASK, max(64, SCORES_PER_TASK // n_clusters), rows_at_once(shard))
    return even_ranges(n_rows, min(most, max(SMALLEST_TASK, -(-n_rows // TASKS))))


def rows_at_once(shard: CpuShard) -> int:
    """How many rows one may ask for: they are copied if they must be converted."""
    row_bytes = shard.rows.dtype.itemsize * (1 if isinstance(shard.rows, CSRRows) else shard.n_columns)
    return max(64, BYTES_PER_TASK // row_bytes)


class DenseScores:
    """Products by BLAS in the rows' precision; doubtful labels are decided by exact distances.

    `score_norms` are ‖m − offset‖² in that precision, whose round-off and smallest normal number are `unit` and `tiny`;
    `longest` is the largest ‖m − offset‖; norms are sums of `n_terms`, and `slack` is what else may be wrong with them.
    """

    def __init__(self, shard: CpuShard, centers: F64) -> None:
        self.rows, self.scales = shard.rows, shard.scales
        self.offset: F64 = np.empty(0) if shard.offset is None else shard.offset
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        dtype = self.rows.dtype
        self.unit, self.tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
        self.slack, self.n_terms = 0.0, shard.n_columns
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

    def label(self, chosen: I64, labels: Labels) -> Scored:
        """Write the closest centre of these rows to `labels`."""
        scales = entries_of(self.scales, chosen)
        lengths, best = np.empty(len(chosen)), np.empty(len(chosen))
        scores = np.empty((len(chosen), len(self.centers)), dtype=self.rows.dtype)
        block, at = in_place(self.rows, chosen)
        n_together = min(len(chosen), ROWS_PER_BLOCK, max(64, BYTES_PER_BLOCK // block[0][:1].nbytes))
        seen = np.empty((n_together, self.n_terms), dtype=self.rows.dtype)
        kernels.score_rows(block[0], at, self.offset, self.factors, seen, scores, lengths)
        kernels.decide(
            block, at, lengths, scales, scores, self.score_norms, self.centers, self.norms, self.unit, self.tiny,
            best, labels,
        )  # fmt: skip
        return Scored(block, at, lengths, scales, scores, best)


class ColumnScores:
    """Products of sparse rows with centres that are kept column by column, in float64.

    Attributes as in `DenseScores`.
    """

    def __init__(self, rows: CSRRows, scales: F64, means: ColumnMeans) -> None:
        self.rows, self.scales, self.means = rows, scales, means
        self.score_norms: F64 = means.norms
        self.unit, self.tiny = column_kernels.UNIT, column_kernels.TINY
        self.longest = float(np.sqrt(self.score_norms.max()))
        self.slack, self.n_terms = means.norm_share * float(self.score_norms.max()), 0

    def label(self, chosen: I64, labels: Labels) -> Scored:
        """Write the closest centre of these rows to `labels`."""
        scales = entries_of(self.scales, chosen)
        lengths, best = np.empty(len(chosen)), np.empty(len(chosen))
        scores = np.empty((len(chosen), self.means.places.shape[1]))
        block, at = in_place(self.rows, chosen)
        column_kernels.column_scores(block, at, self.means.places, self.means.factors, scores, lengths)
        column_kernels.closest_by_scores(
            block, at, lengths, scales, scores, self.score_norms, self.slack, self.means.places, self.means.factors,
            best, labels,
        )  # fmt: skip
        return Scored(block, at, lengths, scales, scores, best)


def entries_of(values: F64, rows: I64) -> F64:
    """The entries of these rows, where there are any entries."""
    return values[rows] if len(values) else values


def in_place(rows: Rows, chosen: I64) -> tuple[KernelRows, I64]:
    """Rows as kernels take them, copied only if they must be converted, and where the chosen ones lie in them."""
    loaded, gathered = load_rows(rows, chosen)
    return loaded, np.arange(len(chosen)) if gathered else chosen
