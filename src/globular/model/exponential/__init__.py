"""Families of mixtures with one linear E-step: directions, counts, zeros and ones."""

from globular.model.exponential.directions import Directions
from globular.model.exponential.family import (
    Bernoulli,
    ExponentialMixture,
    LinearMixture,
    LinearStatistics,
    Poisson,
    PseudoRows,
    Surveyed,
)

__all__ = [
    "Bernoulli",
    "Directions",
    "ExponentialMixture",
    "LinearMixture",
    "LinearStatistics",
    "Poisson",
    "PseudoRows",
    "Surveyed",
]
