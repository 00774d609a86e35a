"""E-steps that remember which components matter to which row.

In many columns a row has noticeable responsibilities for one or two components, whatever their number. A pass that
looks at all components keeps the *pairs* (row, component) within `MARGIN` nats of the row's best; the passes after it
evaluate those pairs alone, until somebody asks to look again. Their responsibilities are truncated to the pairs, so the
bound they report is never above that of all components: what is left out was below e^−10 when it was looked at. Of rows
with one component alone the responsibility is one whatever the mixture does: they are summed up once, and enter as one
chunk for each component.

A look at all components begins with some of the columns where these are many. Factors U of the precisions are upper
triangular, so the first K columns of x − μ give the first K entries of (x − μ) U, and squares only add up: they bound
log p(c, x) from above. A component whose bound is below the log-density of the most promising one by more than the
margin does not matter, and is not looked at further.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.all import Span, block_rows, evaluate_blocks, expect_all
from globular.backends.cpu.expect.blocks import ABSENT, ChunkBlocks, block_size
from globular.backends.cpu.expect.pairs import Pairs, held_by, lying
from globular.backends.cpu.shard import CpuShard
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ExpectedMixture, Moments
from globular.model.statistics import F64, I64, SoftStatistics
from globular.seam.among import Remembered
from globular.seam.passes import Expect
from globular.threads import even_ranges, ordered_map

MARGIN = 10.0
"""Nats below the best component of a row at which another no longer matters to it."""
_DENSE = 0.3
"""With more than this share of all pairs, remembering them does not pay."""
_LEADING = 0.4
"""Share of the columns that a look at all components begins with."""
_ROUNDING = 0.1
"""Nats, many more than rounding makes bounds wrong by."""

Found = tuple[I64, NDArray[np.int32], F64]
"""Of some rows: the number of components that matter to each, those one row after the other, and log p(c, x)."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What rows remember."""

    pairs: Pairs
    """Of all rows."""
    doubtful: Pairs
    """Of the rows that have several."""
    certain: Moments
    """Of the rows that have one, by component."""

    @classmethod
    def sum_up(cls, shard: CpuShard, pairs: Pairs, mixture: GaussianParameters) -> Kept:
        """Sums of the certain rows, about the means of `mixture`."""
        alone = np.diff(pairs.starts) == 1
        weights = shard.take(np.flatnonzero(alone), "weights")
        found = pairs.of_rows(alone).moments(held_by(shard.rows, shard.scales), mixture, weights, shard.n_threads)
        statistics = SoftStatistics(*found, 0.0, shard.total_weight, 0)
        return cls(pairs, pairs.of_rows(~alone), Moments.from_pass(mixture, statistics))


@CpuShard.implements(Expect, Remembered)
def expect_remembered(shard: CpuShard, work: Expect) -> SoftStatistics:
    """The pairs that mattered when all were looked at last; all, where most do."""
    assert isinstance(work.among, Remembered)
    mixture, kept = work.mixture, shard.recall(Kept)
    n_distances, source = shard.n_rows * mixture.n_components, held_by(shard.rows, shard.scales)
    if work.among.renew:
        shard.forget(Kept)
        pairs, joint = _look_at_all(shard, mixture)
        kept = None if pairs is None else Kept.sum_up(shard, pairs, mixture)
        if kept is not None:
            shard.keep(kept)
            joint = joint[np.repeat(np.diff(kept.pairs.starts) > 1, np.diff(kept.pairs.starts))]
    elif kept is not None:
        joint = kept.doubtful.joint(source, mixture, shard.n_threads)
        n_distances = len(kept.doubtful) + mixture.n_components
    if kept is None:
        return expect_all(shard, work)
    doubtful = kept.doubtful
    q, densities = doubtful.normalise(joint)
    weights = shard.take(np.asarray(doubtful.rows, dtype=np.intp), "weights")
    likelihood = float(weights[doubtful.starts[:-1]] @ densities)
    found = doubtful.moments(source, mixture, q * weights, shard.n_threads)
    certain = kept.certain.about(mixture.means)
    # Σ log p(c, x) of rows that are of c alone: linear in their moments
    squares = np.vdot(mixture.each(mixture.precisions), certain[2])
    likelihood += float(certain[0] @ np.maximum(mixture.log_constants, ABSENT) - 0.5 * squares)
    counts, sums, scatter = (a + b for a, b in zip(found, certain, strict=True))
    return SoftStatistics(counts, sums, scatter, likelihood, shard.total_weight, n_distances)


def _look_at_all(shard: CpuShard, mixture: GaussianParameters) -> tuple[Pairs | None, F64]:
    """The pairs that matter and their log p(c, x); None if most do."""
    if mixture.family.scatter.by_differences(mixture.n_features):
        found = _look_by_bounds(shard, mixture)
    else:
        found = evaluate_blocks(shard, mixture, _close)
    if not found or sum(len(components) for _, components, _ in found) > _DENSE * shard.n_rows * mixture.n_components:
        return None, np.empty(0)
    counts, components, joint = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pairs.from_rows(counts, components, mixture.n_components), joint


def _close(block: Span, rows: F64, joint: F64) -> Found:
    """Components within the margin of each row's best."""
    close = joint >= joint.max(axis=1, keepdims=True) - MARGIN
    return np.count_nonzero(close, axis=1), np.nonzero(close)[1].astype(np.int32), joint[close]


def _look_by_bounds(shard: CpuShard, mixture: GaussianParameters) -> list[Found]:
    """What `_close` finds in every block of rows, from bounds of the log-densities."""
    K = round(_LEADING * mixture.n_features)
    leading = _leading(mixture, K)
    arithmetic = ChunkBlocks(leading, leading.offset)

    def look(block: Span) -> Found:
        rows = block_rows(shard, block)
        first = Chunks(np.ones(len(rows)), np.ascontiguousarray(rows[:, :K]), np.empty((len(rows), 0)), arithmetic.kind)
        return _close_by_bounds(mixture, rows, arithmetic.log_joint(first, arithmetic.features(first)))

    return list(ordered_map(look, even_ranges(shard.n_rows, block_size(arithmetic.width)), shard.n_threads))


def _close_by_bounds(mixture: GaussianParameters, rows: F64, bounds: F64) -> Found:
    source, wanted = lying(rows), np.zeros(bounds.shape, dtype=bool)
    wanted[np.arange(len(rows)), bounds.argmax(axis=1)] = True
    reached = Pairs.from_table(wanted).joint(source, mixture, 1)
    wanted |= bounds >= reached[:, None] - (MARGIN + _ROUNDING)
    pairs = Pairs.from_table(wanted)
    joint, starts = pairs.joint(source, mixture, 1), pairs.starts
    close = joint >= np.repeat(np.maximum.reduceat(joint, starts[:-1]), np.diff(starts)) - MARGIN
    return np.add.reduceat(close, starts[:-1], dtype=np.int64), pairs.components[close], joint[close]


def _leading(mixture: GaussianParameters, K: int) -> ExpectedMixture:
    """The first K columns, with the constants of all."""
    factors = np.ascontiguousarray(mixture.factors[..., :K, :K])
    half = mixture.family.half_log_determinants(factors, mixture.n_components, K)
    log_weights = mixture.log_constants - half + 0.5 * K * np.log(2 * np.pi)
    covariances = mixture.covariances[..., :K, :K]
    return ExpectedMixture(
        mixture.weights, mixture.means[:, :K], covariances, mixture.covariance_type, log_weights, factors
    )
