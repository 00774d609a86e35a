"""One small fit of each estimator: the last part of `make test-fast`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import globular

OPTIONS: dict[str, dict[str, Any]] = {
    "KMeans": {"n_clusters": 20},
    "VariationalKMeans": {"n_clusters": 50},
    "NestedMiniBatchKMeans": {"n_clusters": 20},
    "GaussianMixture": {"n_components": 3},
    "VariationalGaussianMixture": {"n_components": 50},
    "ChunkyGaussianMixture": {"n_components": 3},
    "LowRankGaussianMixture": {"n_components": 3, "n_factors": 1},
    "InfiniteGaussianMixture": {},
    "InfiniteMultinomialMixture": {},
    "VonMisesFisherMixture": {"n_components": 3},
    "PoissonMixture": {"n_components": 3},
    "BernoulliMixture": {"n_components": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_groups_that_lie_apart_are_found(name: str) -> None:
    random = np.random.default_rng(0)
    groups = np.arange(600) % 3
    X = 8.0 * np.eye(3, 5)[groups] + np.abs(random.normal(size=(600, 5)))
    X = (X > 4.0).astype(float) if name == "BernoulliMixture" else np.floor(4.0 * X) if "Multi" in name else X
    X = np.floor(4.0 * X) if name == "PoissonMixture" else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = getattr(globular, name)(random_state=0, **OPTIONS[name]).fit(X).predict(X)
    for label in np.unique(labels):
        assert len(np.unique(groups[labels == label])) == 1
