"""E-steps that remember which components matter to which row.

In many columns a row has noticeable responsibilities for one or two components, whatever their number. A pass that
looks at all components keeps the *pairs* (row, component) within `MARGIN` nats of the row's best; the passes after it
evaluate those pairs alone, until somebody asks to look again. Their responsibilities are truncated to the pairs, so the
bound they report is never above that of all components: what is left out was below e^−10 when it was looked at. Of rows
with one component alone the responsibility is one whatever the mixture does: they are summed up once, and enter as one
chunk for each component.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.model.gaussian import GaussianParameters
from globular.model.observations import Moments
from globular.model.statistics import SoftStatistics
from globular.passes.cpu.expect.all import expect_all
from globular.passes.cpu.expect.blocks import ABSENT, statistics_of
from globular.passes.cpu.expect.pairs import Look, Pairs, look_at_all
from globular.passes.cpu.shard import CpuShard
from globular.seam.among import Remembered
from globular.seam.mixture_passes import Expect

MARGIN = 10.0
"""Nats below the best component of a row at which another no longer matters to it."""
_DENSE = 0.2
"""With more than this share of all pairs, remembering them does not pay."""


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
    def sum_up(cls, shard: CpuShard, look: Look, mixture: GaussianParameters) -> Kept:
        """Sums of the certain rows, about the means of `mixture`."""
        found = statistics_of(look.single.e_step(shard, mixture), len(look.single))
        return cls(look.everyone, look.several, Moments.from_pass(mixture, found))


@CpuShard.implements(Expect, Remembered)
def expect_remembered(shard: CpuShard, work: Expect) -> SoftStatistics:
    """The pairs that mattered when all were looked at last; all, where most do."""
    assert isinstance(work.among, Remembered)
    mixture, kept = work.mixture, shard.recall(Kept)
    if work.among.renew:
        shard.forget(Kept)
        look = look_at_all(shard, mixture, MARGIN, _DENSE)
        kept = None if look is None else Kept.sum_up(shard, look, mixture)
        if kept is not None:
            shard.keep(kept)
    if kept is None:
        return expect_all(shard, work)
    n_distances = shard.n_rows * mixture.n_components
    if not work.among.renew:
        n_distances = len(kept.doubtful) + mixture.n_components
    found = statistics_of(kept.doubtful.e_step(shard, mixture), n_distances)
    certain = kept.certain.about(mixture.means)
    # Σ log p(c, x) of rows that are of c alone: linear in their moments
    squares = np.vdot(mixture.each(mixture.precisions), certain[2])
    likelihood = float(certain[0] @ np.maximum(mixture.log_constants, ABSENT) - 0.5 * squares)
    counts, sums, scatter = (a + b for a, b in zip((found.counts, found.sums, found.scatter), certain, strict=True))
    return SoftStatistics(
        counts, sums, scatter, found.log_likelihood + likelihood, shard.total_weight, n_distances
    )  # fmt: skip
