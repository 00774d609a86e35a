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
    from globular import callbacks, coresets, datasets, export, io, plotting, report, seeding
    from globular.estimators.bayesian_mixture import BayesianGaussianMixture
    from globular.estimators.chunky_mixture import ChunkyGaussianMixture
    from globular.estimators.families import BernoulliMixture, PoissonMixture, VonMisesFisherMixture
    from globular.estimators.hierarchical import HierarchicalKMeans
    from globular.estimators.infinite_mixture import InfiniteGaussianMixture
    from globular.estimators.infinite_multinomial import InfiniteMultinomialMixture
    from globular.estimators.kmeans import KMeans, k_means
    from globular.estimators.low_rank_mixture import LowRankGaussianMixture
    from globular.estimators.many import fit_many
    from globular.estimators.mixture import GaussianMixture
    from globular.estimators.nested import NestedMiniBatchKMeans
    from globular.estimators.product import ProductKMeans
    from globular.estimators.residual import ResidualKMeans
    from globular.estimators.variational_kmeans import VariationalKMeans
    from globular.estimators.variational_mixture import VariationalGaussianMixture
    from globular.persistence import load, save
    from globular.regrouping import balance, cluster_tree
    from globular.selection import select

_NAMES = {
    "estimators.kmeans": "KMeans k_means",
    "estimators.variational_kmeans": "VariationalKMeans",
    "estimators.hierarchical": "HierarchicalKMeans",
    "estimators.nested": "NestedMiniBatchKMeans",
    "estimators.residual": "ResidualKMeans",
    "estimators.many": "fit_many",
    "estimators.product": "ProductKMeans",
    "estimators.mixture": "GaussianMixture",
    "estimators.variational_mixture": "VariationalGaussianMixture",
    "estimators.chunky_mixture": "ChunkyGaussianMixture",
    "estimators.bayesian_mixture": "BayesianGaussianMixture",
    "estimators.low_rank_mixture": "LowRankGaussianMixture",
    "estimators.infinite_mixture": "InfiniteGaussianMixture",
    "estimators.infinite_multinomial": "InfiniteMultinomialMixture",
    "estimators.families": "VonMisesFisherMixture PoissonMixture BernoulliMixture",
    "regrouping": "balance cluster_tree",
    "persistence": "load save",
    "selection": "select",
}
"""What each module gives to this one."""
_HOMES = {name: f"globular.{home}" for home, names in _NAMES.items() for name in names.split()}
_MODULES = ("callbacks", "coresets", "datasets", "export", "io", "plotting", "report", "seeding")

__all__ = [
    "BayesianGaussianMixture",
    "BernoulliMixture",
    "ChunkyGaussianMixture",
    "GaussianMixture",
    "HierarchicalKMeans",
    "InfiniteGaussianMixture",
    "InfiniteMultinomialMixture",
    "KMeans",
    "LowRankGaussianMixture",
    "NestedMiniBatchKMeans",
    "PoissonMixture",
    "ProductKMeans",
    "ResidualKMeans",
    "VariationalGaussianMixture",
    "VariationalKMeans",
    "VonMisesFisherMixture",
    "__version__",
    "balance",
    "callbacks",
    "cluster_tree",
    "coresets",
    "datasets",
    "export",
    "fit_many",
    "io",
    "k_means",
    "load",
    "plotting",
    "report",
    "save",
    "seeding",
    "select",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"globular.{name}")
    raise AttributeError(f"module 'globular' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
