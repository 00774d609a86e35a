"""scikit-learn's own checks of its conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from globular import GaussianMixture, KMeans, NestedMiniBatchKMeans

# some checks ask for eight clusters of four distinct rows, and are told so
pytestmark = pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")

OTHER_SEEDS = "repeated rows in another order draw other seeds; from given centres the check passes, see below"


def expected_failures(estimator: BaseEstimator) -> dict[str, str]:
    forms = ["dense", "sparse"]
    if isinstance(estimator, GaussianMixture):  # it takes no sparse rows; of one component nothing is drawn
        forms = ["dense"] if estimator.n_components > 1 else []
    return {f"check_sample_weight_equivalence_on_{form}_data": OTHER_SEEDS for form in forms}


@parametrize_with_checks(
    [KMeans(), KMeans(algorithm="yinyang"), KMeans(metric="cosine"), GaussianMixture(), GaussianMixture(3)],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("algorithm", ["lloyd", "yinyang"])
@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
def test_weights_equal_repetitions_from_given_centers(check: Any, algorithm: str, metric: str) -> None:
    start = np.random.RandomState(0).rand(4, 30)
    check("KMeans", KMeans(4, init=start, algorithm=algorithm, metric=metric, tol=0))


@parametrize_with_checks(
    [NestedMiniBatchKMeans(), NestedMiniBatchKMeans(search="cells", metric="cosine", batch_size=10)],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_conventions_of_mini_batches(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("search", ["elkan", "yinyang", "exact"])
@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
def test_weights_equal_repetitions_in_batches_of_all_rows(check: Any, search: str, metric: str) -> None:
    start = np.random.RandomState(0).rand(4, 30)
    check("NestedMiniBatchKMeans", NestedMiniBatchKMeans(4, init=start, search=search, metric=metric))


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical", "tied_spherical"])
def test_weights_equal_repetitions_from_given_means(covariance_type: str) -> None:
    start = np.random.RandomState(0).rand(3, 30)
    estimator = GaussianMixture(3, means_init=start, covariance_type=covariance_type)
    check_sample_weight_equivalence_on_dense_data("GaussianMixture", estimator)
