"""E-steps and answers of mixtures with linear log-densities, on dense and on sparse rows; and what is to be known of
rows before.

Dense rows are multiplied as those of Gaussians are (`ChunkBlocks` without quadratic forms). A sparse row is multiplied
with the slopes of all components at once, nonzero by nonzero, so a pass costs what the nonzeros of the rows cost.
Slopes and sums therefore have a line for every column, (D, C).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.kernels.rows import multiply_csr_row
from globular.model.covariances import FAMILIES
from globular.model.exponential import ExponentialMixture, LinearMixture, LinearStatistics, Surveyed
from globular.model.statistics import F64, I64
from globular.passes.cpu.engine.densities import NOTHING, find_largest, scale_lines, softmax_block, weight_of
from globular.passes.cpu.expect.all import answered, check_columns
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks, Spans, add_in_order, block_size
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN
from globular.seam.answers import Answer
from globular.seam.mixture_passes import ExpectLinear, Survey
from globular.threads import even_ranges, map_all, run_all

NO_BACKGROUND = -np.inf
"""There is no noise."""


class SparseForm(NamedTuple):
    """A mixture as linear functions of sparse rows."""

    slopes: Any  # (D, C)
    constants: Any  # (C,)


class SparseBlock(NamedTuple):
    """Scratch of a thread for B rows."""

    joint: Any  # (C, B) log p(c, x), then w p(c | x)
    product: Any  # (C,)
    chosen: Any  # (C,) components with a share in a row
    largest: Any  # (B,)
    densities: Any  # (B,)
    totals: Any  # (B,)


class SparseTally(NamedTuple):
    """What spans add up, weighted by the responsibilities."""

    sums: Any  # (spans, D, C)
    counts: Any  # (spans, C)
    totals: Any  # (spans, 2) Σ w log p(x), Σ w


@kernel
def joint_of_csr(
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty: factors of the rows
    first: int,  # IN
    n: int,  # IN  rows first … first + n − 1
    form: Any,  # IN
    block: Any,  # OUT its joint
) -> None:
    """log p(c, x) of some rows under all components. O(nnz·C)."""
    C = form.constants.shape[0]
    for i in range(n):
        scale = scales[first + i] if scales.shape[0] else 1.0
        multiply_csr_row(rows, first + i, scale, form.slopes, 0, block.product)
        for c in range(C):
            block.joint[c, i] = block.product[c] + form.constants[c]


@inline
def add_csr_row(rows: Any, i: int, scale: float, joint: Any, at: int, least: float, block: Any, sums: Any) -> None:
    """sums[:, c] += w q(c) x for the components whose share is more than `least`. O(nnz·C), mostly O(nnz)."""
    data, indices, indptr = rows
    C, m = joint.shape[0], 0
    for c in range(C):
        share = joint[c, at]
        if share > least:
            block.product[m] = scale * share
            block.chosen[m] = c
            m += 1
    for k in range(indptr[i], indptr[i + 1]):
        line = sums[indices[k]]
        for j in range(m):
            line[block.chosen[j]] += block.product[j] * data[k]


@kernel
def expect_csr(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty
    counted: Any,  # IN  (N,) or empty: how much each row counts
    form: Any,  # IN
    block: Scratch,  # scratch of this thread
    tally: Any,  # OUT
) -> None:
    """An E-step and what an M-step needs of it. O(nnz·C)."""
    N, B, C = rows[2].shape[0] - 1, block.densities.shape[0], form.constants.shape[0]
    span = take_number(queue)
    while span < tally.counts.shape[0]:
        sums, counts, totals = tally.sums[span], tally.counts[span], tally.totals[span]
        sums[:] = 0.0
        counts[:] = 0.0
        totals[:] = 0.0
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_of_csr(rows, scales, first, n, form, block)
            softmax_block(block.joint, n, NO_BACKGROUND, block.largest, block.totals, block.densities)
            for i in range(n):
                weight = weight_of(counted, first + i)
                totals[0] += weight * block.densities[i]
                totals[1] += weight
                block.totals[i] = weight / block.totals[i]
            scale_lines(block.joint, n, block.totals)
            for c in range(C):
                for i in range(n):
                    counts[c] += block.joint[c, i]
            for i in range(n):
                scale = scales[first + i] if scales.shape[0] else 1.0
                least = NOTHING * weight_of(counted, first + i)
                add_csr_row(rows, first + i, scale, block.joint, i, least, block, sums)
        span = take_number(queue)


@kernel
def answer_csr(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty
    form: Any,  # IN
    block: Scratch,  # scratch of this thread
    components: Any,  # OUT (N,) the one of largest p(c | x), the lowest on ties; or empty
    densities: Any,  # OUT (N,) log p(x), or empty
    table: Any,  # OUT (N, C) p(c | x), or empty
) -> None:
    """What a mixture says of every row. O(nnz·C)."""
    N, B, C = rows[2].shape[0] - 1, block.densities.shape[0], form.constants.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_of_csr(rows, scales, first, n, form, block)
            if components.shape[0]:
                find_largest(block.joint, n, block.largest, components[first : first + n])
            if densities.shape[0]:
                softmax_block(block.joint, n, NO_BACKGROUND, block.largest, block.totals, densities[first : first + n])
                if table.shape[0]:
                    for i in range(n):
                        for c in range(C):
                            table[first + i, c] = block.joint[c, i] / block.totals[i]
        span = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


NONZEROS_PER_SUM = 2
"""Least nonzeros of a span for each column, whose sums shall cost less than they save."""


class LinearBlocks(ChunkBlocks):
    """Linear functions of dense rows, as kernels take those of a Gaussian mixture: without offset or tight ones."""

    def __init__(self, mixture: LinearMixture) -> None:
        C, D = mixture.slopes.shape
        self.kind, self.offset, self.means = FAMILIES["tied_spherical"].scatter, np.zeros(D), np.zeros((C, D))
        self.constants, self.background = np.maximum(mixture.constants, ABSENT), -np.inf
        self.precisions, self.tight = np.empty((C, 0)), np.empty(0, dtype=np.int64)
        self.coefficients = np.hstack([mixture.slopes, self.constants[:, None]])
        self.width = max(self.coefficients.shape)


class SparseBlocks:
    """The same for sparse rows."""

    def __init__(self, mixture: LinearMixture, rows: CSRRows, n_threads: int) -> None:
        self._rows, self._n_threads = rows, n_threads
        constants = np.maximum(mixture.constants, ABSENT)
        self.form = SparseForm(read_only(np.ascontiguousarray(mixture.slopes.T)), read_only(constants))
        dense = LinearBlocks(mixture).spans(rows.shape[0])
        n = max(1, min(dense.n, len(rows.data) // (NONZEROS_PER_SUM * rows.shape[1])))
        per_span = max(1, -(-rows.shape[0] // n))
        self.spans = Spans(-(-rows.shape[0] // per_span), per_span, min(per_span, block_size(len(constants))))

    def block(self) -> SparseBlock:
        """Scratch of a thread."""
        C, B = len(self.form.constants), self.spans.rows_per_block
        largest, densities, totals = np.empty((3, B))
        return SparseBlock(np.empty((C, B)), np.empty(C), np.empty(C, dtype=np.int64), largest, densities, totals)

    def on_threads(self, work: Callable[[NDArray[np.int64], Any, SparseBlock], object]) -> None:
        """Call a kernel with the queue of all spans, the rows and scratch; see `share`."""
        queue, everyone = new_queue(), self._rows.kernel_rows(0, self._rows.shape[0])
        threads = min(self._n_threads, max(1, self.spans.n))
        share_kernel(lambda: work(queue, everyone, self.block()), queue, threads, calls_blas=False)


@CpuShard.implements(ExpectLinear)
def expect_linear(shard: CpuShard, work: ExpectLinear) -> LinearStatistics:
    """Sums weighted by the responsibilities. Memory: sums of spans and a block per thread."""
    C, D = work.mixture.slopes.shape
    check_columns(shard, D)
    n_distances = shard.n_rows * C
    if not isinstance(shard.rows, CSRRows):
        found = LinearBlocks(work.mixture).moments(shard, shard.weights, shard.n_threads)
        return LinearStatistics(
            found.raw[:, -1].copy(), found.raw[:, :-1].copy(), found.bound, found.weight, n_distances
        )
    blocks = SparseBlocks(work.mixture, shard.rows, shard.n_threads)
    n = blocks.spans.n
    tally = SparseTally(np.empty((n, D, C)), np.empty((n, C)), np.empty((n, 2)))
    weights, scales = read_only(shard.weights), read_only(shard.scales)
    blocks.on_threads(
        lambda queue, rows, block: expect_csr(
            queue, blocks.spans.rows, rows, scales, weights, blocks.form, block, tally
        )
    )
    sums, counts, (bound, weight) = (add_in_order(each, shard.n_threads) for each in tally)
    return LinearStatistics(counts, np.ascontiguousarray(sums.T), float(bound), float(weight), n_distances)


@CpuShard.implements(Answer, ExponentialMixture)
def answer_linear(shard: CpuShard, work: Answer) -> list[Any]:
    """As of a Gaussian mixture: "log_densities", their "total", "probabilities" or "components"."""
    linear, n_threads = work.model.linear, shard.n_threads
    check_columns(shard, linear.slopes.shape[1])

    def write(components: I64, densities: F64, table: F64) -> None:
        if isinstance(shard.rows, CSRRows):
            blocks, scales = SparseBlocks(linear, shard.rows, n_threads), read_only(shard.scales)
            blocks.on_threads(
                lambda queue, rows, block: answer_csr(
                    queue, blocks.spans.rows, rows, scales, blocks.form, block, components, densities, table
                )
            )
        else:
            LinearBlocks(linear).answer(shard, n_threads, components=components, densities=densities, table=table)
        if work.want in ("log_densities", "total"):
            _add_log_base(shard, type(work.model), densities)

    return answered(shard, work.want, len(linear.constants), write)


def _add_log_base(shard: CpuShard, family: type[ExponentialMixture], densities: F64) -> None:
    """Add log h(x) of every row."""
    if family.log_base(np.zeros(1)) is None:
        return

    def add(span: tuple[int, int]) -> None:
        densities[slice(*span)] += _log_base(family, shard.rows.block(*span))

    run_all(add, even_ranges(shard.n_rows, RUN), shard.n_threads)


def _log_base(family: type[ExponentialMixture], rows: Any) -> F64:
    """log h(x) of the rows of a block, dense or sparse."""
    if isinstance(rows, np.ndarray):
        dense: F64 = np.asarray(family.log_base(rows.astype(np.float64)))
        return dense.sum(axis=1)
    terms: F64 = np.asarray(family.log_base(rows.data.astype(np.float64)))
    row_of = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    return np.asarray(np.bincount(row_of, terms, minlength=rows.shape[0]), dtype=np.float64)


@CpuShard.implements(Survey)
def survey(shard: CpuShard, work: Survey) -> Surveyed:
    """Block by block."""
    if work.family.unit_rows:
        zeros = np.flatnonzero(shard.scales == 0)
        return Surveyed(len(zeros), 0.0, shard.first_row + int(zeros[0])) if len(zeros) else Surveyed(0, 0.0)
    has_base = work.family.log_base(np.zeros(1)) is not None

    def look(span: tuple[int, int]) -> Surveyed:
        rows: Any = shard.rows.block(*span)
        invalid = work.family.are_invalid(rows if isinstance(rows, np.ndarray) else rows.data)
        if invalid is not None and invalid.any():
            first = np.flatnonzero(invalid)[0]
            row = first // rows.shape[1] if invalid.ndim == 2 else np.searchsorted(rows.indptr, first, "right") - 1
            return Surveyed(int(np.count_nonzero(invalid)), 0.0, shard.first_row + span[0] + int(row))
        if not has_base:
            return Surveyed(0, 0.0)
        base, weights = _log_base(work.family, rows), shard.weights[slice(*span)]
        return Surveyed(0, float(weights @ base if len(weights) else base.sum()))

    found = map_all(look, even_ranges(shard.n_rows, RUN), shard.n_threads)
    return sum(found, start=Surveyed(0, 0.0))
