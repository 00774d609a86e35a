"""Pairs (row, component) that matter, of a Gaussian mixture: which they are, and E-steps that know of them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.kernels import pairs as kernels
from globular.kernels.differences import new_differences
from globular.kernels.expect import Tally
from globular.kernels.joint import Observed
from globular.model.gaussian import GaussianParameters
from globular.model.groups import starts_of
from globular.model.observations import ExpectedMixture
from globular.model.statistics import F64, I64
from globular.passes.cpu.expect.all import Cut, blocks_for, on_rows
from globular.passes.cpu.expect.blocks import ChunkBlocks, Moments
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NONE
from globular.threads import SECONDS_PER_NUMBER, run_all, worth_waking

LEADING = 0.4
"""Share of the columns that a look at all components begins with, where these are many."""


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

    @classmethod
    def empty(cls, n_rows: int, n_pairs: int) -> Self:
        """Room for so many."""
        starts = np.empty(n_rows + 1, dtype=np.int64)
        starts[0] = 0
        return cls(np.empty(n_rows, dtype=np.int64), starts, np.empty(n_pairs, dtype=np.int32))

    @property
    def listed(self) -> kernels.PairList:
        """As kernels take them."""
        return kernels.PairList(self.rows, self.starts, self.components)

    def threads(self, n_threads: int) -> int:
        """How many are worth waking for a kernel that looks at every pair once."""
        return worth_waking(n_threads, SECONDS_PER_NUMBER * (len(self) + len(self.rows)))

    def e_step(self, shard: CpuShard, mixture: GaussianParameters, q: F64 = NONE) -> Moments:
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
            share_kernel(
                lambda: call(queue, x, shard.scales, shard.weights, self.listed, q, tally),
                queue,
                min(shard.n_threads, max(1, spans.n)),
            )
        else:
            run_all(convert, range(spans.n), shard.n_threads)
        return blocks.total(tally, shard.n_threads)


class Look(NamedTuple):
    """What a look at all components leaves."""

    everyone: Pairs
    """Of all rows."""
    several: Pairs
    """Of the rows that have several."""
    single: Pairs
    """Of those that have one."""


def look_at_all(shard: CpuShard, mixture: GaussianParameters, nats: float, most: float) -> Look | None:
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
    spans = leading.spans(shard.n_rows)
    masks = np.zeros((shard.n_rows, -(-C // 64)), dtype=np.uint64)
    sizes = np.zeros((spans.n, 4), dtype=np.int64)
    rounding = 0.1  # nats: many more than bounds are wrong by
    margin, forms = kernels.Margin(nats, rounding), (leading.form, blocks.form)

    def look(queue: NDArray[np.int64], rows: Observed, cut: Cut) -> None:
        n = cut.spans.rows_per_block
        block, (best, chosen) = leading.block(n), np.empty((2, n), dtype=np.int64)
        closer = blocks.block(n)._replace(joint=np.empty((0, n)))
        kernels.look_spans(
            queue, cut.spans.rows, rows, *forms, margin, block, closer,
            best, chosen, masks[cut.rows], sizes[cut.which],
        )  # fmt: skip

    on_rows(shard, leading, look)
    before = starts_of(sizes)
    n_pairs, n_several, in_several, n_none = before[-1].tolist()
    if n_none:  # densities that are not numbers keep no pair
        raise np.linalg.LinAlgError("a row has no density under any component")
    if not shard.n_rows or n_pairs > most * shard.n_rows * C:
        return None
    n_single = shard.n_rows - n_several
    counts = (shard.n_rows, n_pairs), (n_several, in_several), (n_single, n_single)
    found, queue = Look(*(Pairs.empty(*each) for each in counts)), new_queue()
    share_kernel(
        lambda: kernels.list_pairs(queue, spans.rows, masks, before, *(each.listed for each in found)), queue,
        min(spans.n, found.everyone.threads(shard.n_threads)), calls_blas=False,
    )  # fmt: skip
    return found


def _leading(mixture: GaussianParameters, K: int) -> ExpectedMixture:
    """The first K columns, with the constants of all."""
    factors = np.ascontiguousarray(mixture.factors[..., :K, :K])
    half = mixture.family.half_log_determinants(factors, mixture.n_components, K)
    log_weights = mixture.log_constants - half + 0.5 * K * np.log(2 * np.pi)
    covariances = mixture.covariances[..., :K, :K]
    return ExpectedMixture(
        mixture.weights, mixture.means[:, :K], covariances, mixture.covariance_type, log_weights, factors
    )
