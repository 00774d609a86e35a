"""The parts of a mixture that somebody gives to start from, and what becomes of a mixture that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64


@dataclass(frozen=True, slots=True)
class GivenStart:
    """The parts of a start that are given, checked; None for the others."""

    covariance_type: str
    weights: F64 | None = None
    means: F64 | None = None
    covariances: F64 | None = None
    continues: bool = False
    """Whether these are the parameters that the last fit ended with."""
    bound: float = -np.inf
    """Mean log-likelihood of a row, or its bound, that the last fit ended with."""

    @classmethod
    def of(cls, mixture: GaussianParameters) -> GivenStart:
        """All parts of a mixture."""
        return cls(mixture.covariance_type, mixture.weights, mixture.means, mixture.covariances)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given."""
        return self.weights is None and self.means is None and self.covariances is None

    def complete(self) -> GaussianParameters | None:
        """The mixture, if every part was given."""
        if self.weights is None or self.means is None or self.covariances is None:
            return None
        return GaussianParameters(self.weights, self.means, self.covariances, self.covariance_type)

    def replace(self, mixture: GaussianParameters) -> GaussianParameters:
        """The mixture with the given parts in place of its own."""
        order = self._order_for(mixture)
        return GaussianParameters(
            mixture.weights if self.weights is None else self.weights[order],
            mixture.means if self.means is None else self.means,
            mixture.covariances if self.covariances is None else self.covariances[order],
            mixture.covariance_type,
        )

    def _order_for(self, mixture: GaussianParameters) -> Any:
        """Which of the given parts every component gets: without means, that with the covariance most like its own."""
        C = mixture.n_components
        if self.means is not None or self.covariances is None or mixture.family.tied:
            return ...
        return linear_sum_assignment(cdist(mixture.covariances.reshape(C, -1), self.covariances.reshape(C, -1)))[1]
