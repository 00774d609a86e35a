"""A component for rows that belong to no other: a constant density, as of rows spread evenly over a box.

The box holds all rows of a fit (Banfield and Raftery 1993). Its density is taken everywhere, also outside of it: a new
row that is farther out than any before is noise all the more. So it is a constant in the sum over components, and all
that is learned is its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from globular.model.covariances import CovarianceLimits
from globular.model.statistics import F64

_VARIANCES_OF_WIDTH = 12.0
"""The squared width of an interval by the variance of a number anywhere in it."""
_NARROW = 2.0
"""Standard deviations of a component; a box narrower than this in a column cannot hold the component's rows.

No column of rows is narrower than twice their standard deviation, so only a variance shared by columns comes here.
"""


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
        """In the box between the extremes of every column, (2, D), at least as wide as the narrowest component."""
        narrowest = np.sqrt(_VARIANCES_OF_WIDTH * (limits.smallest + limits.reg_covar))
        return cls(weight, *extremes)._of_widths(np.maximum(extremes[1] - extremes[0], narrowest))

    def beside(self, variances: F64) -> Noise:
        """The box for components of these variances, (D,) or (1,), made wider in columns narrower than they are.

        Where columns share one variance, a component is wide also in a column in which all rows agree. A box that is
        narrow there would be denser than any component, and all rows noise. As wide as the others on average
        (geometric), such a column leaves the choice between noise and component to the others: with one variance for D
        columns, squared distances by the variance and the logarithm of the volume both grow in proportion to D.
        """
        narrow = self.widths < _NARROW * np.sqrt(variances)
        if narrow.all() or not narrow.any():
            return self
        return self._of_widths(np.where(narrow, np.exp(np.log(self.widths[~narrow]).mean()), self.widths))

    def _of_widths(self, widths: F64) -> Noise:
        more = np.maximum(widths - self.widths, 0.0) / 2  # a column as wide as before keeps its bounds to the bit
        return replace(self, low=self.low - more, high=self.high + more)

    @property
    def widths(self) -> F64:
        """Widths of the box, (D,)."""
        return self.high - self.low

    @property
    def log_density(self) -> float:
        """−log of the volume of the box."""
        return -float(np.log(self.widths).sum())

    @property
    def log_joint(self) -> float:
        """log π₀ and the log-density; −∞ without weight."""
        return float(np.log(self.weight)) + self.log_density if self.weight > 0 else -np.inf

    def log_joint_of(self, known: NDArray[np.bool_]) -> F64:
        """The same of rows of which these columns are known, (kinds, D)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.weight) - known @ np.log(self.widths))

    def of_weight(self, weight: float) -> Noise:
        """The same box with another share of the rows."""
        return replace(self, weight=weight)

    def sample(self, n: int, random: np.random.RandomState) -> F64:
        """Draw rows, (n, D)."""
        return random.uniform(self.low, self.high, size=(n, len(self.low)))
