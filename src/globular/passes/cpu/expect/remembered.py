"""E-steps that remember which components matter to which row.

In many columns a row has noticeable responsibilities for one or two components, whatever their number. A pass that
looks at all components keeps the *pairs* (row, component) within `NATS_BELOW` nats of the row's best; the passes after
it evaluate those pairs alone, until somebody asks to look again. Their responsibilities are truncated to the pairs, so
the bound they report is never above that of all components: what is left out was below e^−10 when it was looked at. Of
rows with one component alone the responsibility is one whatever the mixture does: they are summed up once, and enter as
one chunk for each component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, kernel, new_queue, share_kernel, take_number
from globular.model.cells import starts_of
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ExpectedMixture, ObservedMoments
from globular.model.statistics import SoftStatistics
from globular.passes.cpu.engine.densities import (
    DENSITY_TILE,
    Observed,
    find_largest,
    find_lengths,
    joint_block,
    load_features,
    put_difference,
)
from globular.passes.cpu.expect.all import blocks_for, expect_all
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks
from globular.passes.cpu.expect.pairs import Pairs
from globular.passes.cpu.shard import CpuShard
from globular.seam.among import Remembered
from globular.seam.mixture_passes import Expect
from globular.threads import SECONDS_PER_NUMBER, worth_waking

NATS_BELOW = 10.0
"""Nats below the best component of a row at which another no longer matters to it."""
_DENSE = 0.2
"""With more than this share of all pairs, remembering them does not pay."""
ROUNDING = 0.1
"""Nats: many more than rounding makes bounds wrong by."""


@kernel
def settle_bounds(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN
    form: Any,  # IN  all components by differences, with whole matrices
    nats: float,  # IN
    block: Any,  # scratch, but for its joint
    joint: Any,  # IN  bounds from above, OUT log p(c, x) where it may matter, else −∞
    best: Any,  # scratch (B,)
    chosen: Any,  # scratch (B,)
) -> None:
    """Look closer at the most promising component of each row, then at those whose bounds are not below it.

    O(n·C + n·(components that matter)·D²)
    """
    load_features(observed, first, n, form.offset, False, block.features)
    find_largest(joint, n, block.largest, best)
    for step in range(2):  # one loop for both: what it calls would be compiled twice
        for c in range(form.means.shape[0]):
            line, m = joint[c], 0
            for i in range(n):
                chosen[m] = i
                if step == 0:
                    m += best[i] == c
                else:
                    m += best[i] != c and line[i] >= block.densities[i] - (nats + ROUNDING)
                    line[i] = block.densities[i] if best[i] == c else -np.inf
            out = line if step else block.densities
            for begin in range(0, m, DENSITY_TILE):
                some = chosen[begin : min(begin + DENSITY_TILE, m)]
                for k in range(some.shape[0]):
                    for d in range(form.means.shape[1]):
                        put_difference(block.differences, k, d, block.features[some[k], d] - form.means[c, d])
                find_lengths(block.differences, some.shape[0], form.factors, form.precisions, c)
                for k in range(some.shape[0]):
                    out[some[k]] = form.constants[c] - 0.5 * block.differences.values[k]


@kernel
def look_spans(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    observed: Any,  # IN
    leading: Any,  # IN  a form of the first columns, or of all
    form: Any,  # IN  all components by differences, where the first columns are not all
    nats: float,  # IN  below the best component of a row, at which another no longer matters
    leading_block: Scratch,  # scratch for the form of the first columns
    block: Scratch,  # scratch for the other, which has no joint of its own
    chosen: Scratch,  # scratch (2, B) int64
    masks: Any,  # IN  zeros, OUT (N, ⌈C / 64⌉) uint64: a bit for every component that matters
    sizes: Any,  # IN  zeros, OUT (spans, 2): pairs; rows that have none
) -> None:
    """Which components matter to each row. O(N·C·S)."""
    N, B, C = observed.x.shape[0], leading_block.features.shape[0], leading.coefficients.shape[0]
    best, counts, joint = chosen[0], chosen[1], leading_block.joint
    span = take_number(queue)
    while span * rows_per_span < N:
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_block(observed, first, n, leading, True, leading_block, joint)
            if leading.offset.shape[0] < form.offset.shape[0]:
                settle_bounds(observed, first, n, form, nats, block, joint, best, counts)
            find_largest(joint, n, leading_block.largest, best)
            for i in range(n):
                counts[i] = 0
            for c in range(C):
                line, bit = joint[c], np.uint64(1) << np.uint64(c & 63)
                for i in range(n):
                    if line[i] >= leading_block.largest[i] - nats:
                        masks[first + i, c >> 6] |= bit
                        counts[i] += 1
            for i in range(n):
                sizes[span, 0] += counts[i]
                sizes[span, 1] += counts[i] == 0
        span = take_number(queue)


@kernel
def list_pairs(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    masks: Any,  # IN  (N, ⌈C / 64⌉), a bit at least for every row
    before: Any,  # IN  (spans,) pairs of the spans before
    pairs: Any,  # OUT but for the first start
) -> None:
    """Components that matter, ascending, one row after the other. O(N·C)."""
    N = masks.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        p = before[span]
        for i in range(span * rows_per_span, min(N, (span + 1) * rows_per_span)):
            for word in range(masks.shape[1]):
                bits, c = masks[i, word], 64 * word
                while bits:
                    if bits & np.uint64(1):
                        pairs.components[p] = c
                        p += 1
                    bits >>= np.uint64(1)
                    c += 1
            pairs.numbers[i], pairs.starts[i + 1] = i, p
        span = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


LEADING_SHARE = 0.4
"""Share of the columns that a look at all components begins with, where these are many."""


def look_at_all(shard: CpuShard, mixture: GaussianParameters, nats: float, most: float) -> Pairs | None:
    """The pairs within `nats` of each row's best; None if these are more than the share `most` of all pairs.

    Where columns are many it begins with some of them. Factors U of the precisions are upper triangular, so the first K
    columns of x − μ give the first K entries of (x − μ) U, and squares only add up: they bound log p(c, x) from above.
    A component whose bound is below the log-density of the most promising one by more than that does not matter, and is
    not looked at further.
    """
    C, D = mixture.means.shape
    blocks = leading = blocks_for(shard, mixture)
    if mixture.family.scatter.by_differences(D):
        first = _leading(mixture, round(LEADING_SHARE * D))
        leading = ChunkBlocks(first, first.offset)
    spans = leading.spans(shard.n_rows)
    masks = np.zeros((shard.n_rows, -(-C // 64)), dtype=np.uint64)
    sizes = np.zeros((spans.n, 2), dtype=np.int64)
    forms = leading.form, blocks.form

    def look(queue: NDArray[np.int64], some: Observed, rows: slice, which: slice) -> None:
        n = spans.rows_per_block
        block, closer = leading.block(n), blocks.block(n)._replace(joint=np.empty((0, n)))
        look_spans(
            queue, spans.rows, some, *forms, nats, block, closer, np.empty((2, n), dtype=np.int64),
            masks[rows], sizes[which],
        )  # fmt: skip

    leading.on_spans(shard, shard.n_threads, look)
    before = starts_of(sizes)
    n_pairs, n_none = before[-1].tolist()
    if n_none:  # densities that are not numbers keep no pair
        raise np.linalg.LinAlgError("a row has no density under any component")
    if not shard.n_rows or n_pairs > most * shard.n_rows * C:
        return None
    starts, queue = np.zeros(shard.n_rows + 1, dtype=np.int64), new_queue()
    pairs = Pairs(np.empty(shard.n_rows, dtype=np.int64), starts, np.empty(n_pairs, dtype=np.int32))
    n_threads = worth_waking(shard.n_threads, SECONDS_PER_NUMBER * (n_pairs + shard.n_rows))
    share_kernel(
        lambda: list_pairs(queue, spans.rows, masks, before[:, 0].copy(), pairs), queue, min(spans.n, n_threads),
        calls_blas=False,
    )  # fmt: skip
    return pairs


def _leading(mixture: GaussianParameters, K: int) -> ExpectedMixture:
    """The first K columns, with the constants of all."""
    factors = np.ascontiguousarray(mixture.factors[..., :K, :K])
    half = mixture.family.half_log_determinants(factors, mixture.n_components, K)
    log_weights = mixture.log_constants - half + 0.5 * K * np.log(2 * np.pi)
    covariances = mixture.covariances[..., :K, :K]
    return ExpectedMixture(
        mixture.weights, mixture.means[:, :K], covariances, mixture.covariance_type, log_weights, factors
    )


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What rows remember."""

    pairs: Pairs
    """Pairs of all rows."""
    doubtful: Pairs
    """Pairs of the rows that have several components."""
    certain: ObservedMoments
    """Sums of the rows that have one, by component, about the means of the mixture that looked."""


@CpuShard.implements(Expect, Remembered)
def expect_remembered(shard: CpuShard, work: Expect) -> SoftStatistics:
    """The pairs that mattered when all were looked at last; all, where most do."""
    assert isinstance(work.among, Remembered)
    mixture, kept = work.mixture, shard.recall(Kept)
    if work.among.renew:
        shard.forget(Kept)
        pairs = look_at_all(shard, mixture, NATS_BELOW, _DENSE)
        kept = None
        if pairs is not None:
            is_alone = np.diff(pairs.starts) == 1
            alone, several = np.flatnonzero(is_alone), pairs.pick(np.flatnonzero(~is_alone))
            single = Pairs(alone, np.arange(len(alone) + 1), pairs.components[pairs.starts[alone]])
            kept = Kept(pairs, several, ObservedMoments.from_pass(mixture, single.e_step(shard, mixture)))
            shard.keep(kept)
    if kept is None:
        return expect_all(shard, work)
    n_distances = shard.n_rows * mixture.n_components
    if not work.among.renew:
        n_distances = len(kept.doubtful.components) + mixture.n_components
    found = kept.doubtful.e_step(shard, mixture)
    certain = kept.certain.about(mixture.means)
    # Σ log p(c, x) of rows that are of c alone: linear in their moments
    squares = np.vdot(mixture.each(mixture.precisions), certain[2])
    likelihood = float(certain[0] @ np.maximum(mixture.log_constants, ABSENT) - 0.5 * squares)
    counts, sums, scatter = (a + b for a, b in zip((found.counts, found.sums, found.scatter), certain, strict=True))
    return SoftStatistics(
        counts, sums, scatter, found.log_likelihood + likelihood, shard.total_weight, n_distances
    )  # fmt: skip
