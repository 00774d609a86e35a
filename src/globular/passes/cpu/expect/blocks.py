"""Arithmetic of a Gaussian mixture on chunks or rows, for every family; the kernels do it in blocks (`kernels.joint`).

One matrix product each way: the expected log-joint ⟨log p(c, x)⟩_A of a chunk is linear in its features φ (Eq. 11), and
the responsibilities times φ are the moments of the M-step (Eqs. 12–14). A row is a chunk without scatter. Everything is
taken about an offset near the mean of the data; where the expanded square would still cancel (components that are
tight, flat or far out) the part of the chunk's mean is computed from differences instead. The part of the scatter has
nothing to cancel with.

What is a span, and a block in it, depends on the mixture and the number of rows alone: the same bits for any number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels.differences import FEW_COLUMNS, TILE, new_differences
from globular.kernels.expect import Answers, Stretches, Tally, add_parts, expect_or_answer
from globular.kernels.joint import Block, Form, Observed
from globular.model.chunks import Chunks, ShareRule
from globular.model.covariances.scatter import CANCELLATION_LIMIT
from globular.model.gaussian import GaussianParameters, linear_coefficients
from globular.model.statistics import F64, I64, Floats, SoftStatistics
from globular.passes.cpu.rows import read_only
from globular.passes.host import NO_NUMBERS, NO_TABLE, NONE
from globular.threads import SECONDS_PER_NUMBER, cached_property, worth_waking

BLOCK_ENTRIES = 2**15
"""Numbers in the widest array of a block: a quarter of a megabyte, which the cache of a core holds."""
SPANS, FEWEST_SPANS = 128, 16
"""Most spans, and those that there may be however large their sums are."""
SPAN_SUMS = 2**24
"""Numbers in the sums of all spans together, about, down to the fewest spans."""
SPAN_WORK, LEAST_ROWS = 2**17, 128
"""Least multiplications of a span, and least rows of a component in it: its sums shall cost less than they save."""
LEAST_PAIRS = 32
"""The same of rows where not all pairs are looked at, and a pair costs about as much as a component's sums."""
PAIR_WORK = 64
"""Multiplications that looking up a pair (row, component) is worth, where not all are looked at."""
TINY = 2**18
"""Multiplications of a product up to which BLAS takes one thread anyway."""
SUMMED_AT_ONCE = 2**9
"""Numbers of a sum that one thread adds up: few enough for the sums of some components to go to all threads."""
_NONE = read_only(np.empty(0))
NO_ANSWERS, _NO_TALLY = Answers(NO_NUMBERS, NONE, NO_TABLE), Tally(NO_TABLE, NO_TABLE, NO_TABLE, NO_TABLE)
ABSENT = -1e300
"""Stands for the log-weight of a component of weight zero: −∞ would make NaN in a matrix product."""


def block_size(width: int) -> int:
    """Chunks or rows that go together, `width` numbers each; nothing but the mixture decides it."""
    return min(max(BLOCK_ENTRIES // width, 32), 4096)


def _fixed(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """As kernels take what they only read: one kind of array, so that they are compiled once."""
    return read_only(np.ascontiguousarray(values))


def _nothing(n_rows: int, dtype: type[np.floating] = np.float64) -> Floats:
    """Rows without columns, which kernels only read."""
    return read_only(np.empty((n_rows, 0), dtype))


def by_precision(rows: Floats) -> tuple[Floats, Floats]:
    """Rows in float64 and in float32, of which one has no columns: kernels take both, and are compiled once."""
    n = len(rows)
    return (_nothing(n), rows) if rows.dtype == np.float32 else (rows, _nothing(n, np.float32))


class Spans(NamedTuple):
    """How rows are cut."""

    n: int
    rows: int
    """Of a span; the last may have fewer."""
    rows_per_block: int


@lru_cache(maxsize=16)  # EM asks for the same ones again and again
def _one_mixture(C: int, n: int, rows_per_span: int, n_rows: int) -> tuple[Stretches, NDArray[np.int64]]:
    """n spans of rows under a mixture of C components, and where these begin and end."""
    numbers = np.arange(n)
    first = rows_per_span * numbers
    ends = np.minimum(first + rows_per_span, n_rows)
    return Stretches(np.zeros_like(first), first, ends, C * numbers), np.array([0, C])


@dataclass(slots=True)
class Moments:
    """Sums over chunks, weighted by the responsibilities."""

    raw: F64
    """Of the features, (C, W)."""
    tight_sums: F64
    """Sums of the tight components about their means, (T, D)."""
    tight_scatter: F64
    """Second moments of the tight components, (T, 1), (T, D) or (T, D, D)."""
    bound: float
    weight: float

    def __add__(self, other: Moments) -> Moments:
        """Those of both."""
        return Moments(
            self.raw + other.raw, self.tight_sums + other.tight_sums, self.tight_scatter + other.tight_scatter,
            self.bound + other.bound, self.weight + other.weight,
        )  # fmt: skip


class ChunkBlocks:
    """A mixture ready to be evaluated on chunks about an offset.

    `by_differences` takes no products of features, and `linear` those with the rows alone, without quadratic forms
    (`Spread`).
    """

    def __init__(
        self, mixture: GaussianParameters, offset: F64, *, by_differences: bool = False, linear: bool = False
    ) -> None:
        self.kind, self.offset, self._mixture = mixture.family.scatter, offset, mixture
        self.means, self.background = mixture.means - offset, mixture.background
        self.constants = np.maximum(mixture.log_constants, ABSENT)
        if by_differences:
            C, D = self.means.shape
            some = mixture.each(mixture.precisions) if self.kind.separable else np.empty((C, 0))
            self.precisions, self.coefficients, self.tight = some, np.zeros((C, D + 1)), np.arange(C)
        elif linear:
            self.precisions, self.tight = np.empty((len(self.means), 0)), NO_NUMBERS
            self.coefficients = np.maximum(linear_coefficients(mixture, offset), ABSENT)
        else:
            self.precisions, self.coefficients, sizes = self.kind.linear(
                mixture.factors, self.means, self.constants, self._typical(mixture)
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
        most, least_rows = min(SPANS, max(FEWEST_SPANS, SPAN_SUMS // cost)), LEAST_ROWS
        if n_pairs is None:
            n_pairs = n_rows * C
        else:
            by_blas = self.means.shape[1] > FEW_COLUMNS  # which takes as many rows at once as there are
            cost, least_rows = cost + C * PAIR_WORK, TILE if by_blas else LEAST_PAIRS
        least = max(least_rows * C, SPAN_WORK * C // cost)
        n = max(1, min(most, n_pairs // least))
        rows = max(1, -(-n_rows // n))
        n_blocks = -(-rows // block_size(self.width))
        return Spans(-(-n_rows // rows), rows, -(-rows // n_blocks))

    def block(self, n_rows: int, rule: ShareRule = "optimal") -> Block:
        """Scratch of a thread."""
        C, W = self.coefficients.shape
        bare = np.empty((C, n_rows) if rule == "centroid" else (0, 0))
        largest, densities, totals = np.empty((3, n_rows))
        differences = new_differences(self.means.shape[1] if len(self.tight) else 0)
        return Block(np.empty((n_rows, W)), np.empty((C, n_rows)), bare, largest, densities, totals, differences)

    def observed(self, chunks: Chunks) -> Observed:
        """Chunks as kernels take them, with scatter of the kind that the mixture needs."""
        scatter = chunks.scatter
        if scatter.shape[1]:
            scatter = chunks.kind.coarsen(scatter, self.kind, self.means.shape[1])
        return Observed(
            _fixed(chunks.means), _nothing(len(chunks), np.float32), _NONE, _fixed(chunks.weights), _fixed(scatter),
        )  # fmt: skip

    def rows(self, rows: Floats, scales: F64) -> Observed:
        """Rows as kernels take them."""
        return Observed(*by_precision(rows), read_only(scales), _NONE, _nothing(len(rows)))

    def on_threads(self, n_rows: int, n_threads: int, work: Callable[[NDArray[np.int64], Spans], object]) -> None:
        """Call a kernel with the queue of all spans; see `share`."""
        spans, queue = self.spans(n_rows), new_queue()
        is_tiny = spans.n <= 1 and spans.rows_per_block * self._cost <= TINY
        share_kernel(lambda: work(queue, spans), queue, min(n_threads, max(1, spans.n)), calls_blas=not is_tiny)

    def log_joint(self, observed: Observed, n_threads: int = 1) -> F64:
        """⟨log p(c, x)⟩ over each row or chunk, (M, C)."""
        table = np.empty((len(observed.x), len(self.means)))
        self.answer(observed, n_threads, table=table)
        return table

    def posterior(self, observed: Observed, n_threads: int = 1) -> tuple[F64, F64]:
        """q of each row or chunk, (M, C), and log Σ_c exp ⟨log p(c, x)⟩, (M,)."""
        table, found = np.empty((len(observed.x), len(self.means))), np.empty(len(observed.x))
        self.answer(observed, n_threads, densities=found, table=table)
        return table, found

    def densities(self, observed: Observed, n_threads: int = 1) -> F64:
        """log Σ_c exp ⟨log p(c, x)⟩ of each row or chunk, (M,)."""
        found = np.empty(len(observed.x))
        self.answer(observed, n_threads, densities=found)
        return found

    def answer(
        self, observed: Observed, n_threads: int, *, components: I64 = NO_NUMBERS, densities: F64 = NONE,
        table: F64 = NO_TABLE,
    ) -> None:  # fmt: skip
        """Write what the mixture says of rows or chunks; see `kernels.expect.Answers`."""
        form = self.form_for_cells if observed.scatter.shape[1] else self.form

        def work(queue: NDArray[np.int64], spans: Spans) -> None:
            block = self.block(spans.rows_per_block)
            self.tell(queue, spans, observed, form, block, Answers(components, densities, table))

        self.on_threads(len(observed.x), n_threads, work)

    def new_tally(self, n_spans: int) -> Tally:
        """What spans sum up."""
        (C, W), (T, D) = self.coefficients.shape, (len(self.tight), self.means.shape[1])
        S = self.kind.width(D) if self.kind.separable else D * D
        return Tally(
            np.empty((n_spans, C, W)), np.empty((n_spans, T, D)), np.empty((n_spans, T, S)), np.empty((n_spans, 2))
        )

    def moments(
        self, observed: Observed, counted: F64, n_threads: int = 1, rule: ShareRule = "optimal", least: float = 0.0
    ) -> Moments:
        """Of rows or chunks that count by these weights (empty: each once).

        Rows with at most the share `least` of a component that is evaluated by differences count, but move nothing.
        """
        form = self.form_for_cells if observed.scatter.shape[1] else self.form
        tally, counted = self.new_tally(self.spans(len(observed.x)).n), read_only(counted)

        def work(queue: NDArray[np.int64], spans: Spans) -> None:
            block = self.block(spans.rows_per_block, rule)
            self.expect(queue, spans, observed, counted, least, form, block, tally)

        self.on_threads(len(observed.x), n_threads, work)
        return self.total(tally, n_threads)

    def expect(
        self, queue: NDArray[np.int64], spans: Spans, observed: Observed, counted: F64, least: float, form: Form,
        block: Block, tally: Tally,
    ) -> None:  # fmt: skip
        """Take spans until none is left: stretches of rows under one mixture, which is all of the form."""
        stretches, bounds = _one_mixture(len(self.means), len(tally.totals), spans.rows, len(observed.x))
        flat = Tally(*(each.reshape(-1, each.shape[-1]) for each in tally))
        expect_or_answer(queue, stretches, bounds, observed, counted, least, form, block, flat, NO_ANSWERS)

    def tell(
        self, queue: NDArray[np.int64], spans: Spans, observed: Observed, form: Form, block: Block, answers: Answers
    ) -> None:
        """The same for what the mixture says of every row or chunk."""
        n_rows = len(observed.x)
        stretches, bounds = _one_mixture(len(self.means), -(-n_rows // spans.rows), spans.rows, n_rows)
        expect_or_answer(queue, stretches, bounds, observed, _NONE, 0.0, form, block, _NO_TALLY, answers)

    def total(self, tally: Tally, n_threads: int) -> Moments:
        """The sums of all spans, in their order."""
        raw, sums, scatter, (bound, weight) = (add_in_order(each, n_threads) for each in tally)
        scatter = scatter.reshape(self.kind.shape(*sums.shape))
        return Moments(raw, sums, scatter, float(bound), float(weight))

    def statistics(self, total: Moments, n_chunks: int) -> SoftStatistics:
        """What the moments of `n_chunks` chunks say about the means of the mixture."""
        n_distances = n_chunks * len(self.means)
        if len(self.tight) == len(self.means):
            return statistics_of(total, n_distances)
        counts = total.raw[:, -1].copy()
        sums, scatter = self.kind.central(total.raw, self.means)
        if len(self.tight):
            sums[self.tight], scatter[self.tight] = total.tight_sums, total.tight_scatter
        return SoftStatistics(counts, sums, scatter, total.bound, total.weight, n_distances)

    def linear_statistics(self, total: Moments, n_rows: int) -> SoftStatistics:
        """The same of products with the rows alone, which say nothing about second moments."""
        counts = total.raw[:, -1].copy()
        sums = total.raw[:, :-1] - counts[:, None] * self.means
        n_distances = n_rows * len(counts)
        return SoftStatistics(counts, sums, total.tight_scatter, total.bound, total.weight, n_distances)


def statistics_of(total: Moments, n_distances: int) -> SoftStatistics:
    """Where all components are evaluated by differences."""
    return SoftStatistics(
        total.raw[:, -1].copy(), total.tight_sums, total.tight_scatter, total.bound, total.weight, n_distances
    )


def add_in_order(parts: F64, n_threads: int) -> F64:
    """parts[0] + parts[1] + …, on the threads that this is worth."""
    if len(parts) == 1:
        return parts[0]
    if parts.size <= SUMMED_AT_ONCE:
        return np.asarray(np.add.reduce(parts, axis=0))
    total, queue = np.empty(parts.shape[1:]), new_queue()
    flat, numbers = parts.reshape(len(parts), total.size), total.ravel()
    n_threads = worth_waking(min(n_threads, -(-total.size // SUMMED_AT_ONCE)), SECONDS_PER_NUMBER * parts.size)
    share_kernel(lambda: add_parts(queue, flat, SUMMED_AT_ONCE, numbers), queue, n_threads, calls_blas=False)
    return total
