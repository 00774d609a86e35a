"""The strength of the prior of covariances, chosen by rows that are left out.

An E-step of the start gives the sums of all rows. What rows left out add is taken away, an M-step follows under each
strength, and the left-out rows say which parameters they are likeliest under. The choice hardly depends on how far EM
has come: on six sets, with 2 to 100 times as many rows as a covariance has parameters, the start and the end of a fit
chose strengths next to each other.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.exponential import FEWEST_LEFT_OUT, LEFT_OUT, MOST_LEFT_OUT
from globular.algorithms.mixtures.probing import find_members
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard, answer

STRENGTHS = 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0
"""Rows of the prior that are tried."""
MOST_DENSITIES = 1 << 25
"""Most densities of left-out rows for each strength; larger = a surer choice for many components, for more time."""
ROUNDED = 1e-9
"""Share of a component's weight below which what is left of it is rounding; larger = more components without rows."""
SURE = 1.0
"""Standard errors by which a prior has to be better than none; larger = more fits without one."""


def best_prior(
    shard: Shard, mixture: GaussianParameters, options: EMOptions, n_candidates: int | None = None
) -> float | None:
    """Rows of the prior that is best for components about where `mixture` has them; None if none is surely better.

    A row looks at `n_candidates` of them, which are found by way of cells, or at all.
    """
    C, n = mixture.n_components, min(math.ceil(LEFT_OUT * shard.n_rows), MOST_LEFT_OUT)
    if shard.n_rows < FEWEST_LEFT_OUT or mixture.family.tied:
        return None
    n = max(FEWEST_LEFT_OUT, min(n, MOST_DENSITIES // C))
    chosen = evenly_spread_rows(shard.n_rows, min(n, shard.n_rows - 1), np.random.default_rng(0))
    left_out, shares = shard.subset(chosen), np.asarray(shard.take(chosen, "weights"))
    whole, part = (_expected(rows, mixture, n_candidates) for rows in (shard, left_out))
    counts = whole.counts - part.counts
    rest = replace(
        whole, counts=np.where(counts > ROUNDED * whole.counts, counts, 0.0), sums=whole.sums - part.sums,
        scatter=whole.scatter - part.scatter, total_weight=whole.total_weight - part.total_weight,
    )  # fmt: skip

    def densities(strength: float | None) -> F64:
        limits = covariance_limits(shard, replace(options, prior=None if strength is None else (strength, C)))
        after = m_step(mixture, rest, limits, learned_weights=options.learned_weights)
        return np.asarray(answer(left_out, after, "log_densities"))

    free = densities(None)
    gains = [shares * (densities(strength) - free) / shares.mean() for strength in STRENGTHS]
    surely = [float(gain.mean() - SURE * gain.std() / math.sqrt(len(gain))) for gain in gains]
    best = int(np.argmax(surely))
    return STRENGTHS[best] if surely[best] > 0.0 else None


def _expected(rows: Shard, mixture: GaussianParameters, n_candidates: int | None) -> SoftStatistics:
    if n_candidates is None or n_candidates >= mixture.n_components:
        return rows.run(Expect(mixture))
    find_members(rows, mixture, n_candidates, np.random.default_rng(0))
    return rows.run(Expect(mixture, Probe(None, 0, n_candidates)))
