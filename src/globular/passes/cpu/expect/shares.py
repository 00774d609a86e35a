"""E-steps of many small mixtures, each on rows or chunks of its own: trials of splits ask for hundreds at a time.

Components are few and chunks too, so densities come from differences: there is nothing to be made beforehand, and no
form that would cancel. All components lie in one form, one mixture behind the other, and all chunks in one list. What
one thread does at once is a *stretch*: some chunks under one mixture (`blocks.expect_or_answer`). Stretches do not
depend on the number of threads, and the sums of a mixture are added in the order of its stretches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import kernel, new_queue, share_kernel
from globular.model.statistics import I64, SoftStatistics, WithinStatistics
from globular.passes.cpu.engine.densities import Observed
from globular.passes.cpu.engine.group import group_by
from globular.passes.cpu.engine.moments import Answers, Tally
from globular.passes.cpu.expect.blocks import ChunkBlocks, Stretches, block_size, expect_or_answer, new_block
from globular.passes.cpu.expect.sparse import expect_sparse_shares
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.seam.mixture_passes import ExpectShares, ExpectWithin, LabelByDensity
from globular.seam.shard import answer
from globular.threads import SECONDS_PER_NUMBER, SECONDS_PER_PAIR, worth_waking


@kernel
def add_stretches(
    stretches: Any,  # IN
    bounds: Any,  # IN
    found: Any,  # IN  a `Tally` of stretches
    total: Any,  # IN/OUT of mixtures
) -> None:
    """Sums of mixtures, in the order of their stretches. O(numbers)."""
    for item in range(stretches.first.shape[0]):
        g = stretches.mixture[item]
        for c in range(bounds[g], bounds[g + 1]):
            from_ = stretches.place[item] + c - bounds[g]
            total.raw[c, 0] += found.raw[from_, 0]
            for d in range(total.tight_sums.shape[1]):
                total.tight_sums[c, d] += found.tight_sums[from_, d]
            for s in range(total.tight_scatter.shape[1]):
                total.tight_scatter[c, s] += found.tight_scatter[from_, s]
        for k in range(2):
            total.totals[g, k] += found.totals[item, k]


# --- drivers ---------------------------------------------------------------------------------------------------------


SMALLEST_SHARE = float(np.exp(-24.0))
"""Smaller responsibilities count, but move nothing."""
CHUNKS_AT_ONCE = 512
"""Most chunks of a stretch."""


@CpuShard.implements(ExpectShares)
def expect_shares(shard: CpuShard, work: ExpectShares) -> WithinStatistics:
    if not isinstance(work.chunks.means, np.ndarray):
        return expect_sparse_shares(shard, work)
    blocks = ChunkBlocks(work.mixture, np.zeros(work.mixture.n_features), by_differences=True)
    observed = blocks.observed(work.chunks)
    observed = observed._replace(counted=observed.weights)
    groups = work.starts, work.seen, work.bounds
    return _expect_groups(blocks, observed, *groups, SMALLEST_SHARE, shard.n_threads)


def _expect_groups(
    blocks: ChunkBlocks, observed: Observed, starts: I64, seen: I64, bounds: I64, least: float, n_threads: int
) -> WithinStatistics:
    """E-steps of mixtures whose components are evaluated by differences; see `ExpectShares`."""
    C, D = blocks.means.shape
    has_scatter = observed.scatter.shape[1] > 0
    # Read-only like all of a form: its functions are compiled once for this pass and others.
    form = (blocks.form_for_cells if has_scatter else blocks.form)._replace(coefficients=read_only(np.zeros((C, 1))))
    sizes = bounds[1:] - bounds[:-1]
    stretches, n_sums = _stretches(starts, seen, bounds)
    S = blocks.kind.width(D) if blocks.kind.separable else D * D
    found, total = (
        Tally(new((n, 1)), new((n, D)), new((n, S)), new((n_totals, 2)))
        for new, n, n_totals in ((np.empty, n_sums, len(stretches.first)), (np.zeros, C, len(sizes)))
    )
    queue, most = new_queue(), int(sizes.max())

    def call() -> None:
        block = new_block(most, D + 1, min(CHUNKS_AT_ONCE, block_size(max(most, D + 1))), D)
        expect_or_answer(queue, stretches, bounds, observed, least, form, block, found, Answers())

    n_distances = int(((stretches.end - stretches.first) * sizes[stretches.mixture]).sum())
    seconds = n_distances * (SECONDS_PER_PAIR + SECONDS_PER_NUMBER * found.tight_scatter.shape[1])
    share_kernel(call, queue, min(worth_waking(n_threads, seconds), max(1, len(stretches.first))))
    add_stretches(stretches, bounds, found, total)
    likelihoods, weights = total.totals[:, 0], total.totals[:, 1]
    scatter = total.tight_scatter.reshape(blocks.kind.shape(C, D))
    parts = SoftStatistics(
        total.raw[:, 0], total.tight_sums, scatter, float(likelihoods.sum()), float(weights.sum()), n_distances
    )
    return WithinStatistics(parts, likelihoods)


def _stretches(starts: I64, seen: I64, bounds: I64) -> tuple[Stretches, int]:
    """Chunks of the shares that every mixture sees, cut where they are many, and how many sums these leave."""
    shares, mixture = seen.ravel(), np.repeat(np.arange(len(seen)), seen.shape[1])
    n_cuts = -(-(starts[shares + 1] - starts[shares]) // CHUNKS_AT_ONCE)
    ends = np.cumsum(n_cuts)
    of = np.repeat(np.arange(len(shares)), n_cuts)
    first = starts[shares[of]] + CHUNKS_AT_ONCE * (np.arange(len(of)) - (ends - n_cuts)[of])
    mixture = mixture[of]
    sizes = (bounds[1:] - bounds[:-1])[mixture]
    place = np.cumsum(sizes)
    last = np.minimum(first + CHUNKS_AT_ONCE, starts[shares[of] + 1])
    return Stretches(mixture, first, last, place - sizes), int(sizes.sum())


@CpuShard.implements(LabelByDensity)
def label_by_density(shard: CpuShard, work: LabelByDensity) -> None:
    shard.labels[:] = answer(shard, work.mixture, "components")


@CpuShard.implements(ExpectWithin)
def expect_within(shard: CpuShard, work: ExpectWithin) -> WithinStatistics:
    """Every component is a mixture of its parts, for which its rows are brought together: a copy of all of them."""
    C = work.mixture.n_components // work.n_parts
    starts, order = group_by(shard.labels, C, shard.n_threads)
    blocks = ChunkBlocks(work.mixture, np.zeros(work.mixture.n_features), by_differences=True)
    scales, weights = (values[order] if len(values) else values for values in (shard.scales, shard.weights))
    rows = blocks.rows(shard.dense_rows.gather(order), scales)._replace(counted=read_only(weights))
    groups = starts, np.arange(C)[:, None], np.arange(0, len(blocks.means) + 1, work.n_parts)
    return _expect_groups(blocks, rows, *groups, 0.0, shard.n_threads)
