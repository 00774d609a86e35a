"""Covariance families of Gaussian mixtures: everything about a `covariance_type`, in one class each.

A family owns its parameters: their shapes and number, M-step and limits, factors and determinants, and what plots,
reports and exports show of them. The kind of scatter that it needs owns second moments: packing, features and the
arithmetic of passes. Nothing else in the library asks which family it has. A new family is a class in a file of this
folder and its place in `FAMILIES`.
"""

from __future__ import annotations

from globular.model.covariances.families import Diagonal, Full, Spherical, Tied, TiedSpherical
from globular.model.covariances.family import RELATIVE_FLOOR, CentralMoments, CovarianceFamily, CovarianceLimits
from globular.model.covariances.scatter import COLUMNS, NORM, OUTER, ScatterKind

__all__ = [
    "COLUMNS",
    "FAMILIES",
    "NORM",
    "OUTER",
    "RELATIVE_FLOOR",
    "SEPARABLE",
    "CentralMoments",
    "CovarianceFamily",
    "CovarianceLimits",
    "ScatterKind",
]

FAMILIES: dict[str, CovarianceFamily] = {
    family.name: family for family in (Full(), Tied(), Diagonal(), Spherical(), TiedSpherical())
}
SEPARABLE = tuple(name for name, family in FAMILIES.items() if family.scatter.separable)
"""Families without correlations."""
