"""globular: clustering into thousands to millions of clusters, and large mixtures.

The estimators follow scikit-learn's conventions; everything public is reachable from here and loaded on first use.

>>> import numpy as np
>>> import globular
>>> X = np.random.default_rng(0).normal(size=(1000, 4))
>>> globular.KMeans(n_clusters=50, random_state=0).fit(X).cluster_centers_.shape
(50, 4)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from globular._version import __version__

if TYPE_CHECKING:
    from globular import callbacks, datasets, io, plotting, seeding
    from globular.estimators.kmeans import KMeans
    from globular.estimators.mixture import GaussianMixture
    from globular.estimators.variational_kmeans import VariationalKMeans
    from globular.estimators.variational_mixture import VariationalGaussianMixture
    from globular.persistence import load, save

_HOMES = {
    "KMeans": "globular.estimators.kmeans",
    "VariationalKMeans": "globular.estimators.variational_kmeans",
    "GaussianMixture": "globular.estimators.mixture",
    "VariationalGaussianMixture": "globular.estimators.variational_mixture",
    "load": "globular.persistence",
    "save": "globular.persistence",
}
_MODULES = ("callbacks", "datasets", "io", "plotting", "seeding")

__all__ = [
    "GaussianMixture",
    "KMeans",
    "VariationalGaussianMixture",
    "VariationalKMeans",
    "__version__",
    "callbacks",
    "datasets",
    "io",
    "load",
    "plotting",
    "save",
    "seeding",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"globular.{name}")
    raise AttributeError(f"module 'globular' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
