"""Where a mixture with noise starts: at what is found on rows that lie closer together than noise does.

K-means gives centres to outliers, and a component that has settled on a few of them does not leave again. Noise is
spread over the box of all rows, so wherever rows lie closer together than N rows in that box would, there is more than
noise. The density at a row follows from the distance to its K-th neighbour, as in the cleaning of Byers and Raftery
(1998), who compare two rates where we know one. A start is searched for on the rows that are left, and those that
were taken away say how much noise there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import lgamma, log, pi

import numpy as np

from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.pipeline import draw_part
from globular.algorithms.mixtures.starts import StartOptions, starting_mixture
from globular.algorithms.steps import Finding
from globular.model.gaussian import GaussianParameters
from globular.model.noise import Noise
from globular.model.statistics import F64
from globular.seam.answers import Nearest
from globular.seam.passes import Extremes, Index
from globular.seam.shard import Shard, answer

DENSITY_NEIGHBORS = 10
"""K: the neighbour whose distance tells the density."""
SHARES = (0.01, 0.5)
"""Least and most of all rows that start as noise, as a share of them; EM finds the right one."""


def noisy_mixture(
    shard: Shard, options: EMOptions, how: StartOptions, weight: float | None, extremes: F64 | None = None
) -> Finding[GaussianParameters]:
    """A mixture with noise to begin EM with; `weight` is that of the noise of the fit that this one continues.

    `extremes` of the columns are those of the rows, unless these were filled in.
    """
    limits = covariance_limits(shard, options)
    noise = Noise.around(shard.run(Extremes()) if extremes is None else extremes, limits, SHARES[0])
    begin = partial(starting_mixture, options=replace(options, limits=limits), how=how)
    if how.given.continues and weight is not None:
        return with_noise((yield from begin(shard)), noise.of_weight(weight))
    if how.given.means is not None or how.init_params == "random":
        return with_noise((yield from begin(shard)), noise)
    size = how.n_components, how.given.covariance_type
    return (yield from start_with_noise(shard, noise, *size, begin, how.rng()))


def start_with_noise(
    shard: Shard,
    noise: Noise,
    n_components: int,
    covariance_type: str,
    begin: Callable[[Shard], Finding[GaussianParameters]],
    rng: np.random.Generator,
) -> Finding[GaussianParameters]:
    """A mixture with noise; `begin` finds one without on the rows that are no noise."""
    part = draw_part(shard, n_components, covariance_type, rng)
    dense = dense_rows(part, noise)
    share = 1.0 - len(dense) / part.n_rows
    if len(dense) < max(n_components, (1.0 - SHARES[1]) * part.n_rows):
        dense, share = np.arange(part.n_rows), SHARES[0]  # most rows would be noise: nothing can be told from that
    found = yield from begin(part.local(part.take(dense), part.take(dense, "weights")))
    return with_noise(found, noise.of_weight(min(max(share, SHARES[0]), SHARES[1])))


def dense_rows(part: Shard, noise: Noise) -> Index:
    """Rows about which others are closer than all rows, spread evenly over the box, would be.

    The space about a row is a ball within the box. In columns narrower than the ball the box is the limit: its volume
    is at most that of a ball in the m widest columns by the widths of the others, whatever m is.
    """
    n, D = part.n_rows, part.n_columns
    if n <= DENSITY_NEIGHBORS:
        return np.arange(n)
    rows = part.take(np.arange(n))
    squares = answer(part, Nearest(rows, DENSITY_NEIGHBORS + 1), "nearest")["square"][
        :, -1
    ]  # the closest is the row itself
    log_widths = np.sort(np.log(noise.widths))
    log_volumes = np.full(n, -noise.log_density)
    with np.errstate(divide="ignore"):
        log_squares = np.log(squares)
    for m in range(1, D + 1):
        log_ball = 0.5 * m * (log(pi) + log_squares) - lgamma(0.5 * m + 1.0)
        np.minimum(log_volumes, log_ball + log_widths[: D - m].sum(), out=log_volumes)
    return np.flatnonzero(log(DENSITY_NEIGHBORS) - log_volumes > log(n) + noise.log_density)


def with_noise(mixture: GaussianParameters, noise: Noise) -> GaussianParameters:
    """The mixture with a component for noise, which takes its share from all others."""
    shares = mixture.weights / mixture.weights.sum()
    noise = noise.beside(shares @ mixture.variances())
    return replace(mixture, weights=shares * (1.0 - noise.weight), noise=noise)
