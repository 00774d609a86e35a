"""Families of mixtures with one linear E-step: directions, counts, zeros and ones."""

from globular.model.exponential.directions import Directions
from globular.model.exponential.family import ExponentialMixture, LinearMixture, LinearStatistics, PseudoRows, Surveyed
from globular.model.exponential.independent import Bernoulli, Poisson

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
