"""Columns that are the same in all rows, beside every option of every mixture: they say nothing, and change nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import globular
from globular.model.covariances import FAMILIES
from globular.model.statistics import F64
from globular.model.wishart import KINDS

N = 400
TRUTH = np.random.default_rng(0).integers(3, size=N)
ROWS = 10.0 * np.column_stack([TRUTH, 2 * TRUTH % 3]) + np.random.default_rng(1).normal(size=(N, 2))
COUNTS = np.random.default_rng(2).poisson(1.0 + 20.0 * np.eye(3)[TRUTH]).astype(np.float64)
BITS = (np.random.default_rng(3).random((N, 12)) < np.repeat(0.05 + 0.9 * np.eye(3)[TRUTH], 4, axis=1)).astype(
    np.float64
)
TYPES, SEPARABLE = sorted(FAMILIES), ["diag", "spherical", "tied_spherical"]


def cases() -> Iterator[tuple[str, Any, F64, dict[str, Any]]]:
    """A name, a model, its rows, and what `fit` takes."""
    weights = np.random.default_rng(4).integers(0, 3, size=N).astype(np.float64)
    for kind in TYPES:
        options: dict[str, Any] = {"covariance_type": kind, "random_state": 0}
        plain = globular.GaussianMixture(3, **options)
        yield f"{kind} EM", plain, ROWS, {}
        yield f"{kind} float32", plain, ROWS.astype(np.float32), {}
        yield f"{kind} weights", plain, ROWS, {"sample_weight": weights}
        yield f"{kind} noise", globular.GaussianMixture(3, noise=True, **options), ROWS, {}
        holes = np.where(np.random.default_rng(5).random(ROWS.shape) < 0.05, np.nan, ROWS)
        yield f"{kind} missing", plain, holes, {"missing": True}
        for algorithm in ("chunky", "nested", *(["variational"] if kind in SEPARABLE else [])):
            yield f"{kind} {algorithm}", globular.GaussianMixture(3, algorithm=algorithm, **options), ROWS, {}
        yield f"{kind} Chunky", globular.ChunkyGaussianMixture(3, **options), ROWS, {}
        if kind in SEPARABLE:
            yield f"{kind} Variational", globular.VariationalGaussianMixture(3, **options), ROWS, {}
        if kind in KINDS:
            yield f"{kind} Infinite", globular.InfiniteGaussianMixture(**options), ROWS, {"sample_weight": weights}
            yield f"{kind} Infinite rows", globular.InfiniteGaussianMixture(accelerate=False, **options), ROWS, {}
            fixed = globular.InfiniteGaussianMixture(truncation="fixed", max_components=6, **options)
            yield f"{kind} Infinite fixed", fixed, ROWS, {}
    for correlated in (True, False):
        low = globular.LowRankGaussianMixture(3, 1, correlated_noise=correlated, random_state=0)
        yield f"LowRank correlated={correlated}", low, ROWS, {}
    yield "Poisson", globular.PoissonMixture(3, random_state=0), COUNTS, {}
    yield "Bernoulli", globular.BernoulliMixture(3, random_state=0), BITS, {}
    yield "vonMisesFisher", globular.VonMisesFisherMixture(3, random_state=0), COUNTS, {}
    yield "InfiniteMultinomial", globular.InfiniteMultinomialMixture(random_state=0), COUNTS, {}


@pytest.mark.parametrize(("name", "model", "rows", "given"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_constant_columns_change_no_partition(name: str, model: Any, rows: F64, given: dict[str, Any]) -> None:
    alone = model.fit(rows, **given).labels_
    assert adjusted_rand_score(alone, TRUTH) > 0.9
    directions = isinstance(model, globular.VonMisesFisherMixture | globular.InfiniteMultinomialMixture)
    for n, value in ((1, 1.0), (3, 0.0)):
        value = 0.0 if directions else value  # any other number is the same for all rows, but no direction is
        wide = np.hstack([rows, np.full((N, n), value, dtype=rows.dtype)])
        model.fit(wide, **given)
        assert adjusted_rand_score(alone, model.labels_) >= 0.95
        how = {"missing": True} if "missing" in given else {}
        probabilities = model.predict_proba(wide, **how)
        likely = probabilities.argmax(axis=1)
        if hasattr(model, "clusters_"):
            likely = model.clusters_[likely]
        noise = getattr(model, "noise_weight_", 0.0)
        likely = np.where(likely == model.weights_.size, -1, likely) if noise else likely
        np.testing.assert_array_equal(model.labels_, likely)
        np.testing.assert_array_equal(model.predict(wide, **how), likely)
        total = model.weights_.sum() + noise + getattr(model, "remaining_weight_", 0.0)
        assert total == pytest.approx(1.0, abs=1e-6)
        if not hasattr(model, "remaining_weight_"):  # else some is left for components that were not seen
            np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
