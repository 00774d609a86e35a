"""Families of mixtures with one linear E-step: directions, counts, zeros and ones."""

from globular.model.exponential.bernoulli import Bernoulli
from globular.model.exponential.directions import Directions
from globular.model.exponential.family import ExponentialMixture, LinearMixture, LinearStatistics, PseudoRows, Surveyed
from globular.model.exponential.poisson import Poisson

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
