"""E-steps and answers of mixtures with linear log-densities, on dense and on sparse rows; and what is to be known of
rows before.

Dense rows are multiplied as those of Gaussians are (`ChunkBlocks` without quadratic forms). A sparse row is multiplied
with the slopes of all components at once, nonzero by nonzero, so a pass costs what the nonzeros of the rows cost.
Slopes and sums therefore have a line for every column, (D, C).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, Scratch, kernel, new_queue, share_kernel, take_number
from globular.model.covariances import FAMILIES
from globular.model.exponential import ExponentialMixture, LinearMixture, LinearStatistics, Surveyed
from globular.model.statistics import F64
from globular.passes.cpu.engine.densities import NOTHING, Observed, scale_lines, softmax_block, weight_of
from globular.passes.cpu.engine.moments import Answers, Tally, answer_block
from globular.passes.cpu.engine.rows import multiply_csr_row
from globular.passes.cpu.expect.all import answered, check_columns
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks, RawMoments, Spans, block_size
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN
from globular.seam.answers import Answer
from globular.seam.mixture_passes import ExpectLinear, Survey
from globular.threads import even_ranges, map_all, run_all

NO_BACKGROUND = -np.inf
"""There is no noise."""


class SparseBlock(NamedTuple):
    """Scratch of a thread for B rows."""

    joint: Any  # (C, B) log p(c, x), then w p(c | x)
    product: Any  # (C,)
    chosen: Any  # (C,) components with a share in a row
    largest: Any  # (B,)
    densities: Any  # (B,)
    totals: Any  # (B,)


class Sparse(NamedTuple):
    """Sparse rows, and a mixture as linear functions of them."""

    rows: Any  # CSR
    scales: Any  # (N,) or empty: factors of the rows
    counted: Any  # (N,) or empty: how much each row counts
    slopes: Any  # (D, C)
    constants: Any  # (C,)


@kernel
def expect_or_answer_csr(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    seen: Any,  # IN  `Sparse`
    block: Scratch,  # scratch of this thread
    tally: Any,  # OUT a `Tally` of (spans, D + 1, C) sums, the last line of which are counts; or empty
    answers: Any,  # OUT where the tally is empty
) -> None:
    """`expect_or_answer` for sparse rows. O(nnz·C)."""
    N, B, C = seen.rows[2].shape[0] - 1, block.densities.shape[0], seen.constants.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        if tally.totals.shape[0]:
            tally.raw[span] = 0.0
            tally.totals[span] = 0.0
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            for i in range(n):
                scale = weight_of(seen.scales, first + i)
                multiply_csr_row(seen.rows, first + i, scale, seen.slopes, 0, block.product)
                for c in range(C):
                    block.joint[c, i] = block.product[c] + seen.constants[c]
            if tally.totals.shape[0]:
                add_csr(seen, first, n, block, tally.raw[span], tally.totals[span])
            else:
                answer_block(first, n, NO_BACKGROUND, block, answers)
        span = take_number(queue)


@kernel
def add_csr(
    seen: Any,  # IN  `Sparse`
    first: int,  # IN
    n: int,  # IN  rows first … first + n − 1
    block: Any,  # IN/OUT log-joint, then shares
    sums: Any,  # IN/OUT (D + 1, C) += w q(c) x, and w q(c)
    totals: Any,  # IN/OUT (2,)
) -> None:
    """Add some rows to the sums of a span. O(nnz·C), mostly O(nnz)."""
    (data, indices, indptr), joint, counts = seen.rows, block.joint, sums[sums.shape[0] - 1]
    softmax_block(joint, n, NO_BACKGROUND, block.largest, block.totals, block.densities)
    for i in range(n):
        weight = weight_of(seen.counted, first + i)
        totals[0] += weight * block.densities[i]
        totals[1] += weight
        block.totals[i] = weight / block.totals[i]
    scale_lines(joint, n, block.totals)
    for c in range(counts.shape[0]):
        for i in range(n):
            counts[c] += joint[c, i]
    for i in range(n):
        scale, m = weight_of(seen.scales, first + i), 0
        least = NOTHING * weight_of(seen.counted, first + i)
        for c in range(joint.shape[0]):
            share = joint[c, i]
            if share > least:
                block.product[m] = scale * share
                block.chosen[m] = c
                m += 1
        for k in range(indptr[first + i], indptr[first + i + 1]):
            line = sums[indices[k]]
            for j in range(m):
                line[block.chosen[j]] += block.product[j] * data[k]


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


class SparseBlocks(LinearBlocks):
    """The same for sparse rows."""

    def __init__(self, mixture: LinearMixture, rows: CSRRows) -> None:
        super().__init__(mixture)
        self._rows = rows
        self._slopes = read_only(np.ascontiguousarray(mixture.slopes.T))

    def spans(self, n_rows: int, n_pairs: int | None = None) -> Spans:
        n = max(1, min(super().spans(n_rows).n, len(self._rows.data) // (NONZEROS_PER_SUM * self._rows.shape[1])))
        per_span = max(1, -(-n_rows // n))
        return Spans(-(-n_rows // per_span), per_span, min(per_span, block_size(len(self.constants))))

    def new_tally(self, n_spans: int) -> Tally:
        (C, W), none = self.coefficients.shape, np.empty((n_spans, 0, 0))
        return Tally(np.empty((n_spans, W, C)), none, none, np.empty((n_spans, 2)))

    def total(self, tally: Tally, n_threads: int) -> RawMoments:
        found = super().total(tally, n_threads)
        found.raw = np.ascontiguousarray(found.raw.T)
        return found

    def run(self, seen: Observed | CpuShard, counted: F64, n_threads: int, tally: Tally, answers: Answers) -> None:
        assert isinstance(seen, CpuShard)
        spans, queue, everyone = self.spans(seen.n_rows), new_queue(), self._rows.kernel_rows(0, seen.n_rows)
        given = read_only(seen.scales), read_only(counted), self._slopes, read_only(self.constants)
        sparse, C, B = Sparse(everyone, *given), len(self.constants), spans.rows_per_block
        sums = tally if len(tally.totals) else self.new_tally(0)

        def work() -> None:
            block = SparseBlock(np.empty((C, B)), np.empty(C), np.empty(C, dtype=np.int64), *np.empty((3, B)))
            expect_or_answer_csr(queue, spans.rows, sparse, block, sums, answers)

        share_kernel(work, queue, min(n_threads, max(1, spans.n)), calls_blas=False)


def _blocks(shard: CpuShard, mixture: LinearMixture) -> LinearBlocks:
    check_columns(shard, mixture.slopes.shape[1])
    return SparseBlocks(mixture, shard.rows) if isinstance(shard.rows, CSRRows) else LinearBlocks(mixture)


@CpuShard.implements(ExpectLinear)
def expect_linear(shard: CpuShard, work: ExpectLinear) -> LinearStatistics:
    """Sums weighted by the responsibilities. Memory: sums of spans and a block per thread."""
    found = _blocks(shard, work.mixture).moments(shard, shard.weights, shard.n_threads)
    counts, sums = found.raw[:, -1].copy(), found.raw[:, :-1].copy()
    return LinearStatistics(counts, sums, found.bound, found.weight, shard.n_rows * len(counts))


@CpuShard.implements(Answer, ExponentialMixture)
def answer_linear(shard: CpuShard, work: Answer) -> list[Any]:
    """As of a Gaussian mixture: "log_densities", their "total", "probabilities" or "components"."""
    blocks = _blocks(shard, work.model.linear)

    def write(answers: Answers) -> None:
        blocks.answer(shard, shard.n_threads, answers)
        if work.want in ("log_densities", "total"):
            _add_log_base(shard, type(work.model), answers.densities)

    return answered(shard, work.want, len(blocks.constants), write)


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
