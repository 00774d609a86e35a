"""Sums of an E-step of a Gaussian mixture on chunks or rows, and what the mixture says of each, in blocks of rows.

One matrix product each way: the expected log-joint ⟨log p(c, x)⟩_A of a chunk is linear in its features φ (Eq. 11), and
the responsibilities times φ are the moments of the M-step (Eqs. 12–14). A row is a chunk without scatter. Everything is
taken about an offset near the mean of the data; where the expanded square would still cancel (components that are
tight, flat or far out) the part of the chunk's mean is computed from differences instead. The part of the scatter has
nothing to cancel with.

Rows come in spans, and a thread takes the next span until none is left. What is a span, and a block in it, depends on
the mixture and the number of rows alone, and what a span adds up goes to its own place: the same bits for any number of
threads. A span that says of which mixture it is, is a *stretch*: one kernel serves all rows under one mixture and many
small mixtures, each with rows of its own (`shares`). See `engine.densities` for what is done with a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, kernel, new_queue, share_kernel, take_number
from globular.lazy import cached_property
from globular.model.chunks import Chunks, ShareRule
from globular.model.covariances.scatter import CANCELLATION_LIMIT
from globular.model.gaussian import GaussianParameters, linear_coefficients
from globular.model.statistics import F64, Additive, Floats, SoftStatistics
from globular.passes.cpu.engine.densities import DENSITY_TILE, FEW_COLUMNS, Block, Form, Observed, new_differences
from globular.passes.cpu.engine.moments import Answers, Tally, answer_some, expect_some
from globular.passes.cpu.expect.features import central, linear_form
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NO_NUMBERS, NO_TABLE
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all

BLOCK_ENTRIES = 2**15
"""Numbers in the widest array of a block: a quarter of a megabyte, which the cache of a core holds."""
EXPECTED_SPANS, FEWEST_SPANS = 128, 16
"""Most spans, and those that there may be however large their sums are."""
SPAN_SUMS = 2**24
"""Numbers in the sums of all spans together, about, down to the fewest spans."""
SPAN_WORK, LEAST_ROWS = 2**17, 128
"""Least multiplications of a span, and least rows of a component in it: its sums shall cost less than they save."""
LEAST_PAIRS = 32
"""The same of rows where not all pairs are looked at, and a pair costs about as much as a component's sums."""
PAIR_WORK = 64
"""Multiplications that looking up a pair (row, component) is worth, where not all are looked at."""
TINY_WORK = 2**18
"""Multiplications of a product up to which BLAS takes one thread anyway."""
SUMMED_AT_ONCE = 2**10
"""Numbers of a sum that one thread adds up: few enough for the sums of some components to go to all threads."""
_NONE = read_only(np.empty(0))
ABSENT = -1e300
"""Stands for the log-weight of a component of weight zero: −∞ would make NaN in a matrix product."""


class Stretches(NamedTuple):
    """Some rows each, under one of some mixtures: what a thread takes at once."""

    mixture: Any  # (I,) ascending
    first: Any  # (I,) rows or chunks first … end − 1
    end: Any  # (I,)
    place: Any  # (I,) where the sums of its first component go, in those of all stretches


@kernel
def expect_or_answer(
    queue: Queue,  # IN/OUT stretches not taken yet
    stretches: Any,  # IN
    bounds: Any,  # IN  (G + 1,) the components of mixture g are bounds[g] … bounds[g + 1] − 1
    observed: Any,  # IN
    least: float,  # IN  rows with a smaller share of a tight component count, but move nothing
    form: Any,  # IN  all components; of several mixtures all are tight
    block: Scratch,  # scratch of this thread, for the largest mixture
    tally: Any,  # OUT of components, one stretch behind the other; or empty
    answers: Any,  # OUT where the tally is empty
) -> None:
    """E-steps and what M-steps need of them, or what a mixture says of every row.

    Nearly all of their code is the same: as two kernels it would be compiled twice. O(rows·components·S) of all
    stretches.
    """
    item = take_number(queue)
    while item < stretches.first.shape[0]:
        begin, end = bounds[stretches.mixture[item]], bounds[stretches.mixture[item] + 1]
        C, place = end - begin, stretches.place[item]
        mixture = Form(
            form.offset, form.coefficients[begin:end], form.tight[:C], form.means[begin:end], form.factors[begin:end],
            form.precisions[begin:end], form.constants[begin:end], form.background,
        )  # fmt: skip
        scratch = Block(
            block.features, block.joint[:C], block.bare, block.largest, block.densities, block.totals, block.differences
        )
        if tally.totals.shape[0]:
            T = mixture.means.shape[0]
            at = place if T == C else place // C * T  # where some are tight there is one mixture
            sums = Tally(
                tally.raw[place : place + C], tally.tight_sums[at : at + T], tally.tight_scatter[at : at + T],
                tally.totals[item],
            )  # fmt: skip
            expect_some(observed, stretches.first[item], stretches.end[item], least, mixture, scratch, sums)
        else:
            answer_some(observed, stretches.first[item], stretches.end[item], mixture, scratch, answers)
        item = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------

_NO_TALLY = Tally(NO_TABLE, NO_TABLE, NO_TABLE, NO_TABLE)


def block_size(width: int) -> int:
    """Chunks or rows that go together, `width` numbers each; nothing but the mixture decides it."""
    return min(max(BLOCK_ENTRIES // width, 32), 4096)


def new_block(C: int, W: int, n_rows: int, n_differing: int, rule: ShareRule = "optimal") -> Block:
    """Scratch of a thread for C components and W features; differences of `n_differing` columns are taken."""
    bare = np.empty((C, n_rows) if rule == "centroid" else (0, 0))
    largest, densities, totals = np.empty((3, n_rows))
    differences = new_differences(n_differing)
    return Block(np.empty((n_rows, W)), np.empty((C, n_rows)), bare, largest, densities, totals, differences)


def _fixed(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """As kernels take what they only read: one kind of array, so that they are compiled once."""
    return read_only(np.ascontiguousarray(values))


def _nothing(n_rows: int, dtype: type[np.floating] = np.float64) -> Floats:
    """Rows without columns, which kernels only read."""
    return read_only(np.empty((n_rows, 0), dtype))


class Spans(NamedTuple):
    """How rows are cut."""

    n: int
    rows: int
    """Rows of a span; the last may have fewer."""
    rows_per_block: int


Work = Callable[[NDArray[np.int64], Observed, slice, slice], object]
"""Calls a kernel with a queue of spans and rows; the slices say which rows and which spans of all these are."""


@lru_cache(maxsize=16)  # EM asks for the same ones again and again
def _one_mixture(C: int, rows_per_span: int, n_rows: int) -> tuple[Stretches, NDArray[np.int64]]:
    """Spans of rows under a mixture of C components, and where these begin and end."""
    numbers = np.arange(-(-n_rows // rows_per_span))
    first = rows_per_span * numbers
    ends = np.minimum(first + rows_per_span, n_rows)
    return Stretches(np.zeros_like(first), first, ends, C * numbers), np.array([0, C])


@dataclass(slots=True)
class RawMoments(Additive):
    """Sums over chunks, weighted by the responsibilities."""

    raw: F64
    """Sums of the features, (C, W)."""
    tight_sums: F64
    """Sums of the tight components about their means, (T, D)."""
    tight_scatter: F64
    """Second moments of the tight components, (T, 1), (T, D) or (T, D, D)."""
    bound: float
    weight: float


class ChunkBlocks:
    """A mixture ready to be evaluated on chunks about an offset.

    `by_differences` takes no products of features, and `linear` those with the rows alone, without quadratic forms
    (`Spread`).
    """

    rule: ShareRule = "optimal"
    """Which responsibilities chunks have."""

    def __init__(
        self, mixture: GaussianParameters, offset: F64, *, by_differences: bool = False, linear: bool = False
    ) -> None:
        self.kind, self.offset, self._mixture = mixture.family.scatter, offset, mixture
        self.means, self.background = mixture.means - offset, mixture.background
        self.constants = np.maximum(mixture.log_constants, ABSENT)
        C, D = self.means.shape
        if by_differences or (self.kind.by_differences(D) and not linear):  # these cost less
            some = mixture.each(mixture.precisions) if self.kind.separable else np.empty((C, 0))
            self.precisions, self.coefficients, self.tight = some, np.zeros((C, D + 1)), np.arange(C)
        elif linear:
            self.precisions, self.tight = np.empty((C, 0)), NO_NUMBERS
            self.coefficients = np.maximum(linear_coefficients(mixture, offset), ABSENT)
        else:
            self.precisions, self.coefficients, sizes = linear_form(
                self.kind, mixture.factors, self.means, self.constants, self._typical(mixture)
            )
            self.tight = np.flatnonzero(sizes > CANCELLATION_LIMIT)
        self.width = max(self.coefficients.shape)

    def _typical(self, mixture: GaussianParameters) -> F64:
        """How far out a typical row is, (D,)."""
        C = len(self.means)
        shares = np.maximum(mixture.weights, 0.0)
        total = shares.sum()
        shares = shares / total if total > 0 else np.full(C, 1.0 / C)
        return np.sqrt(shares @ (mixture.variances() + self.means**2))

    @cached_property
    def form(self) -> Form:
        """As kernels take it, for single rows."""
        (C, D), T = self.means.shape, len(self.tight)
        some = slice(T) if T in (0, C) else self.tight  # mostly none or all, and slices cost nothing
        factors = np.empty((T, 0))
        if not self.kind.separable:
            factors = self._mixture.each(self._mixture.factors)[some].reshape(T, D * D)
        means, constants = _fixed(self.means[some]), _fixed(self.constants[some])
        return Form(
            _fixed(self.offset), _fixed(self.coefficients), _fixed(self.tight), means, _fixed(factors),
            _fixed(self.precisions[some]), constants, self.background,
        )  # fmt: skip

    @cached_property
    def form_for_cells(self) -> Form:
        """The same for chunks with scatter, of which precisions have to be packed."""
        if self.precisions.shape[1] or not len(self.tight):
            return self.form
        packed = self.kind.dual(self._mixture.each(self._mixture.precisions))
        return self.form._replace(precisions=_fixed(packed[self.tight]))

    @property
    def _cost(self) -> int:
        """Multiplications for a row, about, and numbers in the sums of a span."""
        C, D = self.means.shape
        return max(self.coefficients.size, len(self.tight) * D * (1 if self.kind.separable else D), C)

    def spans(self, n_rows: int, n_pairs: int | None = None) -> Spans:
        """Spans of about equal size, and equal blocks in them; n_pairs (row, component) are looked at, or all."""
        C, cost = len(self.means), self._cost
        most, least_rows = min(EXPECTED_SPANS, max(FEWEST_SPANS, SPAN_SUMS // cost)), LEAST_ROWS
        if n_pairs is None:
            n_pairs = n_rows * C
        else:
            by_blas = self.means.shape[1] > FEW_COLUMNS  # which takes as many rows at once as there are
            cost, least_rows = cost + C * PAIR_WORK, DENSITY_TILE if by_blas else LEAST_PAIRS
        least = max(least_rows * C, SPAN_WORK * C // cost)
        n = max(1, min(most, n_pairs // least))
        rows = max(1, -(-n_rows // n))
        n_blocks = -(-rows // block_size(self.width))
        return Spans(-(-n_rows // rows), rows, -(-rows // n_blocks))

    def block(self, n_rows: int) -> Block:
        """Scratch of a thread."""
        C, W = self.coefficients.shape
        return new_block(C, W, n_rows, self.means.shape[1] if len(self.tight) else 0, self.rule)

    def observed(self, chunks: Chunks) -> Observed:
        """Chunks as kernels take them, with scatter of the kind that the mixture needs."""
        scatter = chunks.scatter
        if scatter.shape[1]:
            scatter = chunks.kind.coarsen(scatter, self.kind, self.means.shape[1])
        single = _nothing(len(chunks), np.float32)
        return Observed(_fixed(chunks.means), single, _NONE, _fixed(chunks.weights), _fixed(scatter), _NONE)

    def rows(self, rows: Floats, scales: F64) -> Observed:
        """Rows as kernels take them, in float64 and in float32: one has no columns, and kernels are compiled once."""
        n = len(rows)
        both = (_nothing(n), rows) if rows.dtype == np.float32 else (rows, _nothing(n, np.float32))
        return Observed(*both, read_only(scales), _NONE, _nothing(n), _NONE)

    def on_spans(self, seen: Observed | CpuShard, n_threads: int, work: Work) -> None:
        """Call a kernel with a queue of all spans, or span by span where rows have to be converted: the same bits."""
        n = _n_rows(seen)
        spans = self.spans(n)
        if not isinstance(seen, Observed):
            rows, scales = seen.dense_rows, seen.scales
            if not rows.is_direct():

                def convert(span: int) -> None:
                    some = slice(span * spans.rows, min(n, (span + 1) * spans.rows))
                    converted = self.rows(rows.block(some.start, some.stop), scales[some])
                    work(new_queue(), converted, some, slice(span, span + 1))

                run_all(convert, range(spans.n), n_threads)
                return
            seen = self.rows(rows.block(0, n), scales)
        observed, queue, everyone = seen, new_queue(), slice(None)
        is_tiny = spans.n <= 1 and spans.rows_per_block * self._cost <= TINY_WORK
        threads = min(n_threads, max(1, spans.n))
        share_kernel(lambda: work(queue, observed, everyone, everyone), queue, threads, calls_blas=not is_tiny)

    def log_joint(self, observed: Observed, n_threads: int = 1) -> F64:
        """⟨log p(c, x)⟩ over each row or chunk, (M, C)."""
        table = np.empty((len(observed.x), len(self.means)))
        self.answer(observed, n_threads, Answers(table=table))
        return table

    def posterior(self, observed: Observed, n_threads: int = 1) -> tuple[F64, F64]:
        """q of each row or chunk, (M, C), and log Σ_c exp ⟨log p(c, x)⟩, (M,)."""
        table, found = np.empty((len(observed.x), len(self.means))), np.empty(len(observed.x))
        self.answer(observed, n_threads, Answers(densities=found, table=table))
        return table, found

    def densities(self, observed: Observed, n_threads: int = 1) -> F64:
        """log Σ_c exp ⟨log p(c, x)⟩ of each row or chunk, (M,)."""
        found = np.empty(len(observed.x))
        self.answer(observed, n_threads, Answers(densities=found))
        return found

    def answer(self, seen: Observed | CpuShard, n_threads: int, answers: Answers) -> None:
        """Write what the mixture says of rows or chunks."""
        self.run(seen, _NONE, n_threads, _NO_TALLY, answers)

    def new_tally(self, n_spans: int) -> Tally:
        """What spans sum up."""
        (C, W), (T, D) = self.coefficients.shape, (len(self.tight), self.means.shape[1])
        S = self.kind.width(D) if self.kind.separable else D * D
        return Tally(
            np.empty((n_spans, C, W)), np.empty((n_spans, T, D)), np.empty((n_spans, T, S)), np.empty((n_spans, 2))
        )

    def moments(self, seen: Observed | CpuShard, counted: F64, n_threads: int = 1) -> RawMoments:
        """Sums over rows or chunks that count by these weights (empty: each once)."""
        tally = self.new_tally(self.spans(_n_rows(seen)).n)
        self.run(seen, counted, n_threads, tally, Answers())
        return self.total(tally, n_threads)

    def run(self, seen: Observed | CpuShard, counted: F64, n_threads: int, tally: Tally, answers: Answers) -> None:
        """Fill the tally, or the answers: stretches of rows under one mixture, which is all of the form."""
        form, n_rows = self.form, _n_rows(seen)
        if isinstance(seen, Observed) and seen.scatter.shape[1]:
            form = self.form_for_cells

        def work(queue: NDArray[np.int64], some: Observed, rows: slice, which: slice) -> None:
            spans, sums, said = self.spans(n_rows), tally, Answers(*(each[rows] for each in answers))
            stretches, bounds = _one_mixture(len(self.means), spans.rows, len(some.x))
            if len(tally.totals):
                sums = Tally(*(each[which].reshape(-1, each.shape[-1]) for each in tally))
            some = some._replace(counted=read_only(counted[rows]))
            block = self.block(spans.rows_per_block)
            expect_or_answer(queue, stretches, bounds, some, 0.0, form, block, sums, said)

        self.on_spans(seen, n_threads, work)

    def total(self, tally: Tally, n_threads: int) -> RawMoments:
        """The sums of all spans, in their order."""
        raw, sums, scatter, (bound, weight) = (add_in_order(each, n_threads) for each in tally)
        scatter = scatter.reshape(self.kind.shape(*sums.shape))
        return RawMoments(raw, sums, scatter, float(bound), float(weight))

    def statistics(self, total: RawMoments, n_chunks: int) -> SoftStatistics:
        """What the moments of chunks say about the means of the mixture, and nothing of second moments if `linear`."""
        (C, D), counts = self.means.shape, total.raw[:, -1].copy()
        sums, scatter = total.tight_sums, total.tight_scatter
        if len(self.tight) < C and self.coefficients.shape[1] > D + 1:
            sums, scatter = central(self.kind, total.raw, self.means)
            if len(self.tight):
                sums[self.tight], scatter[self.tight] = total.tight_sums, total.tight_scatter
        elif len(self.tight) < C:
            sums = total.raw[:, :-1] - counts[:, None] * self.means
        return SoftStatistics(counts, sums, scatter, total.bound, total.weight, n_chunks * C)


def _n_rows(seen: Observed | CpuShard) -> int:
    return len(seen.x) if isinstance(seen, Observed) else seen.n_rows


def add_in_order(parts: F64, n_threads: int) -> F64:
    """parts[0] + parts[1] + …, on the threads that this is worth."""
    if len(parts) == 1:
        return parts[0]
    if parts.size <= SUMMED_AT_ONCE:
        return np.asarray(np.add.reduce(parts, axis=0))
    total = np.empty(parts.shape[1:])
    flat, numbers = parts.reshape(len(parts), total.size), total.ravel()

    def add(span: tuple[int, int]) -> None:
        np.add.reduce(flat[:, slice(*span)], axis=0, out=numbers[slice(*span)])

    seconds = SECONDS_PER_NUMBER * parts.size
    run_all(add, even_ranges(total.size, SUMMED_AT_ONCE), n_threads, seconds=seconds, calls_blas=False)
    return total
