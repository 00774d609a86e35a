"""Rows of which a mixture can say little: every family and every search ends in finite parameters and answers."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from globular.algorithms.mixtures import chunky
from globular.model.covariances import FAMILIES
from makers import blobs

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, LowRankGaussianMixture, VariationalGaussianMixture,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RANDOM = np.random.default_rng(0)
EDGES: dict[str, Any] = {
    "one row": [[1.0, 2.0]], "two rows": [[1.0, 2.0], [3.0, 4.0]],
    "as many rows as components": np.arange(6.0).reshape(3, 2), "all alike": np.full((50, 3), 7.0),
    "all alike, far": np.full((7, 2), 1e8), "duplicates": np.repeat([[0.0, 0.0], [1.0, 5.0], [9.0, 2.0]], 40, axis=0),
    "constant column": np.hstack([blobs(300, 4, 2), np.full((300, 1), 3.0)]),
    "line far away": np.column_stack([np.arange(80.0), np.arange(80.0)]) + 1e8,
    "thin": np.column_stack([np.arange(8.0), 1e-12 * np.arange(8.0)]),
    "collinear": blobs(300, 4, 2) @ np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
    "fewer rows than columns": RANDOM.normal(size=(15, 40)), "offset": blobs(300, 4, 2) + 1e8,
    "outlier": np.vstack([blobs(300, 4, 2), [[1e9, -1e9]]]),
    "float32": (np.arange(20).reshape(10, 2) * 1e-3 + 100).astype(np.float32),
}  # fmt: skip
MODELS = [
    *(GaussianMixture(3, covariance_type=kind, reg_covar=reg) for kind in FAMILIES for reg in (0.0, 1e-6)),
    *(VariationalGaussianMixture(3, covariance_type=kind) for kind in ("diag", "spherical", "tied_spherical")),
    *(ChunkyGaussianMixture(3, covariance_type=kind, reg_covar=0.0) for kind in FAMILIES),
    *(ChunkyGaussianMixture(3, covariance_type=kind, init="greedy", n_candidates=2) for kind in FAMILIES),
    *(
        InfiniteGaussianMixture(covariance_type=kind, accelerate=each)
        for kind in ("full", "diag")
        for each in (False, True)
    ),
    *(InfiniteGaussianMixture(truncation="fixed", accelerate=each) for each in (False, True)),
    LowRankGaussianMixture(3, 1),
]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: " ".join(repr(model).split()))
def test_edges_have_finite_mixtures(model: Any, edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunky, "LEAF_SIZE", 2)
    rows = np.asarray(EDGES[edge])
    model = clone(model).set_params(random_state=0, tol=1e-2, max_iter=50)
    if "n_components" in model.get_params():
        model.set_params(n_components=min(3, len(rows)))
    model.fit(rows)
    for name in ("weights_", "means_", "covariances_", "precisions_", "loadings_", "noise_variances_", "lower_bounds_"):
        assert np.isfinite(getattr(model, name, 0.0)).all(), name
    assert np.isfinite(model.score_samples(rows)).all()
    shares = model.predict_proba(rows)
    assert np.isfinite(shares).all() and (shares.sum(axis=1) <= 1.0 + 1e-4).all()
    if "Infinite" not in repr(model):  # else some is left for components that were not seen
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-4)
    elif model.truncation == "nested" and edge == "duplicates":
        assert model.n_components_ == 3
