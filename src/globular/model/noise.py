"""A component for rows that belong to no other: a constant density, as of rows spread evenly over a box.

The box holds all rows of a fit (Banfield and Raftery 1993). Its density is taken everywhere, also outside of it: a new
row that is farther out than any before is noise all the more. So it is a constant in the sum over components, and all
that is learned is its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from globular.model.covariances import CovarianceLimits
from globular.model.statistics import F64

_VARIANCES_OF_WIDTH = 12.0
"""The squared width of an interval by the variance of a number anywhere in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Rows spread evenly over a box, and what share of all rows they are."""

    weight: float
    """π₀; the weights of the components beside it add up to 1 − π₀."""
    low: F64
    """(D,)."""
    high: F64
    """(D,), above `low`."""

    @classmethod
    def around(cls, extremes: F64, limits: CovarianceLimits, weight: float) -> Noise:
        """In the box between the extremes of every column, (2, D), which is at least as wide as a component is."""
        narrowest = np.sqrt(_VARIANCES_OF_WIDTH * (limits.smallest + limits.reg_covar))
        middle, half = extremes.mean(axis=0), np.maximum(extremes[1] - extremes[0], narrowest) / 2
        return cls(weight, middle - half, middle + half)

    @property
    def log_density(self) -> float:
        """−log of the volume of the box."""
        return -float(np.log(self.high - self.low).sum())

    @property
    def log_joint(self) -> float:
        """log π₀ and the log-density; −∞ without weight."""
        return float(np.log(self.weight)) + self.log_density if self.weight > 0 else -np.inf

    def of_weight(self, weight: float) -> Noise:
        """The same box with another share of the rows."""
        return replace(self, weight=weight)

    def sample(self, n: int, random: np.random.RandomState) -> F64:
        """Draw rows, (n, D)."""
        return random.uniform(self.low, self.high, size=(n, len(self.low)))
