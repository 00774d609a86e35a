"""Pairs (row, component) that matter, of a Gaussian mixture: which they are, and E-steps that know of them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.all import Cut, blocks_for, on_rows
from globular.backends.cpu.expect.blocks import ChunkBlocks, Moments
from globular.backends.cpu.rows import read_only
from globular.backends.cpu.shard import CpuShard
from globular.kernels import pairs as kernels
from globular.kernels.differences import new_differences
from globular.kernels.expect import Tally
from globular.kernels.joint import Observed
from globular.kernels.queue import new_queue
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ExpectedMixture
from globular.model.statistics import F64, I64
from globular.threads import on_all_threads, run_all

LEADING = 0.4
"""Share of the columns that a look at all components begins with, where these are many."""
ROUNDING = 0.1
"""Nats, many more than rounding makes bounds wrong by."""
ROWS_AT_ONCE = 4096
"""Rows whose pairs are copied at once."""
_NO_VALUES = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of some rows, by rows; each of these has one at least."""

    rows: I64
    """(R,), ascending."""
    starts: I64
    """The pairs of the n-th row are starts[n] … starts[n + 1] − 1, (R + 1,)."""
    components: NDArray[np.int32]
    """(P,)."""

    def __len__(self) -> int:
        return len(self.components)

    @property
    def sizes(self) -> I64:
        """Pairs of each row."""
        return np.diff(self.starts)

    def of_rows(self, chosen: I64, n_threads: int) -> Self:
        """The pairs of some rows of these."""
        starts = running(self.starts[chosen + 1] - self.starts[chosen])
        components, queue = np.empty(starts[-1], dtype=np.int32), new_queue()
        on_all_threads(
            lambda: kernels.pick_components(queue, ROWS_AT_ONCE, self._listed(), chosen, starts, components),
            n_threads, calls_blas=False,
        )  # fmt: skip
        return type(self)(self.rows[chosen], starts, components)

    def drawn_by(self, rates: F64, drawn: F64, n_threads: int) -> Self:
        """Those of rows whose number, `drawn` (N,), is below the rate of one of their components, `rates` (C,)."""
        is_drawn, queue = np.empty(len(self.rows), dtype=np.bool_), new_queue()
        on_all_threads(
            lambda: kernels.mark_drawn(queue, ROWS_AT_ONCE, self._listed(), drawn, rates, is_drawn), n_threads,
            calls_blas=False,
        )  # fmt: skip
        return self.of_rows(np.flatnonzero(is_drawn), n_threads)

    def owners(self, n_threads: int) -> I64:
        """The row of every pair, (P,)."""
        owners, queue = np.empty(len(self), dtype=np.int64), new_queue()
        on_all_threads(
            lambda: kernels.list_owners(queue, ROWS_AT_ONCE, self._listed(), owners), n_threads, calls_blas=False
        )
        return owners

    def _listed(self) -> kernels.PairList:
        return kernels.PairList(self.rows, self.starts, self.components)

    def e_step(self, shard: CpuShard, mixture: GaussianParameters, q: F64 = _NO_VALUES) -> Moments:
        """Moments about the means of the mixture; `q` becomes the responsibilities of the pairs. O(P·S)."""
        blocks = ChunkBlocks(mixture, np.zeros(mixture.n_features), by_differences=True)
        spans = blocks.spans(len(self.rows), len(self))
        tally, form, all_rows = blocks.new_tally(spans.n), blocks.form, shard.dense_rows
        capacity = max(kernels.PAIRS_AT_ONCE, mixture.n_components)

        def call(queue: NDArray[np.int64], x: NDArray[np.generic], scales: F64, weights: F64,
                 pairs: kernels.PairList, q: F64, sums: Tally) -> None:  # fmt: skip
            owners, order = np.empty((2, capacity), dtype=np.int64)
            ends, differences = np.empty(mixture.n_components + 1, dtype=np.int64), new_differences(mixture.n_features)
            block = kernels.PairBlock(np.empty(capacity), owners, order, ends, differences)
            kernels.pair_spans(
                queue, spans.rows, x, read_only(scales), read_only(weights), pairs, form, block, np.empty(capacity), q,
                sums,
            )  # fmt: skip

        def convert(span: int) -> None:
            some = slice(span * spans.rows, min(len(self.rows), (span + 1) * spans.rows))
            numbers, starts = self.rows[some], self.starts[some.start : some.stop + 1]
            held = slice(starts[0], starts[-1])
            pairs = kernels.PairList(np.arange(len(numbers)), starts - starts[0], self.components[held])
            scales, weights = (each[numbers] if len(each) else each for each in (shard.scales, shard.weights))
            sums = Tally(*(each[span : span + 1] for each in tally))
            call(new_queue(), all_rows.gather(numbers), scales, weights, pairs, q[held], sums)

        if all_rows.is_direct():
            queue, x = new_queue(), all_rows.block(0, shard.n_rows)
            on_all_threads(
                lambda: call(queue, x, shard.scales, shard.weights, self._listed(), q, tally),
                min(shard.n_threads, max(1, spans.n)),
            )
        else:
            run_all(convert, range(spans.n), shard.n_threads)
        return blocks.total(tally, shard.n_threads)


def running(sizes: I64) -> I64:
    """Where things of these sizes begin when they lie one after the other, and where the last ends."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def look_at_all(shard: CpuShard, mixture: GaussianParameters, nats: float, most: float) -> Pairs | None:
    """The pairs within so many nats of each row's best; None if these are more than the share `most` of all pairs.

    Where columns are many it begins with some of them. Factors U of the precisions are upper triangular, so the first K
    columns of x − μ give the first K entries of (x − μ) U, and squares only add up: they bound log p(c, x) from above.
    A component whose bound is below the log-density of the most promising one by more than that does not matter, and is
    not looked at further.
    """
    C, D = mixture.means.shape
    blocks = leading = blocks_for(shard, mixture)
    if mixture.family.scatter.by_differences(D):
        first = _leading(mixture, round(LEADING * D))
        leading = ChunkBlocks(first, first.offset)
    masks = np.empty((shard.n_rows, -(-C // 64)), dtype=np.uint64)
    starts = np.zeros(shard.n_rows + 1, dtype=np.int64)
    margin, forms = kernels.Margin(nats, ROUNDING), (leading.form, blocks.form)

    def look(queue: NDArray[np.int64], rows: Observed, cut: Cut) -> None:
        n = cut.spans.rows_per_block
        block, (best, chosen) = leading.block(n), np.empty((2, n), dtype=np.int64)
        closer = blocks.block(n)._replace(joint=block.joint)
        kernels.look_spans(
            queue, cut.spans.rows, rows, *forms, margin, block, closer,
            best, chosen, masks[cut.rows], starts[1:][cut.rows],
        )  # fmt: skip

    on_rows(shard, leading, look)
    if not starts[1:].all():  # densities that are not numbers keep no pair
        raise np.linalg.LinAlgError("a row has no density under any component")
    np.cumsum(starts, out=starts)
    if not shard.n_rows or starts[-1] > most * shard.n_rows * C:
        return None
    components, queue = np.empty(starts[-1], dtype=np.int32), new_queue()
    on_all_threads(
        lambda: kernels.list_components(queue, ROWS_AT_ONCE, masks, starts, components), shard.n_threads,
        calls_blas=False,
    )  # fmt: skip
    return Pairs(np.arange(shard.n_rows), starts, components)


def _leading(mixture: GaussianParameters, K: int) -> ExpectedMixture:
    """The first K columns, with the constants of all."""
    factors = np.ascontiguousarray(mixture.factors[..., :K, :K])
    half = mixture.family.half_log_determinants(factors, mixture.n_components, K)
    log_weights = mixture.log_constants - half + 0.5 * K * np.log(2 * np.pi)
    covariances = mixture.covariances[..., :K, :K]
    return ExpectedMixture(
        mixture.weights, mixture.means[:, :K], covariances, mixture.covariance_type, log_weights, factors
    )
