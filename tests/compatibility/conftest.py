"""Fixtures that scikit-learn's tests ask for, and the list of differences that are expected, with the reasons.

Every test in the list fails: one that passes one day, or fails without being here, is told.
"""

import numpy as np
import pytest
import sklearn
from sklearn.utils.fixes import parse_version

PRIVATE = "asks for a private method or attribute of scikit-learn's class"
SHOWN = "looks for scikit-learn's words on standard output; verbose=1 is a progress bar on standard error here"
ONE_START = "n_init='auto' is one start here for every init: swaps do what further starts are for"

K_MEANS = {
    "test_kmeans_init_auto_with_initial_centroids[KMeans-random-default]": ONE_START,
    "test_kmeans_init_auto_with_initial_centroids[KMeans-<lambda>-default]": ONE_START,
    "test_kmeans_init_auto_with_initial_centroids[NestedMiniBatchKMeans-random-default]": ONE_START,
    "test_kmeans_init_auto_with_initial_centroids[NestedMiniBatchKMeans-<lambda>-default]": ONE_START,
    "test_n_init_auto[KMeans-10]": ONE_START, "test_kmeans_verbose[0.01-lloyd]": SHOWN,
    "test_kmeans_verbose[0.01-elkan]": SHOWN, "test_kmeans_verbose[0-lloyd]": SHOWN,
    "test_kmeans_verbose[0-elkan]": SHOWN, "test_minibatch_declared_convergence[0.0001-None]": SHOWN,
    "test_minibatch_declared_convergence[0-10]": SHOWN,
    "test_minibatch_iter_steps": "batches grow here, so the number of steps does not follow from that of the epochs",
    "test_minibatch_kmeans_init_size": PRIVATE, "test_sample_weight_init[k-means++]": PRIVATE,
    "test_sample_weight_init[random]": PRIVATE, "test_sample_weight_zero[k-means++]": PRIVATE,
    "test_sample_weight_zero[random]": PRIVATE,
}  # fmt: skip
MIXTURES = {
    "test_check_weights": "scikit-learn's message has the largest and the smallest weight swapped",
    "test_regularisation": "singular data are no error here: covariances have a floor relative to the data",
    "test_score[float32]": "log-densities are float64 here whatever the rows are",
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": PRIVATE,
    **{
        f"test_gaussian_mixture_precisions_init[{dtype}{kind}]": PRIVATE
        for dtype in (("float32-", "float64-") if parse_version(sklearn.__version__) >= parse_version("1.7") else ("",))
        for kind in ("full", "tied", "diag", "spherical")
    },
}
BAYESIAN = {"test_compare_covar_type": PRIVATE}
DIFFERENCES = {
    "test_k_means.py": K_MEANS, "test_sklearn_mixtures.py": MIXTURES, "test_sklearn_bayesian.py": BAYESIAN
}  # fmt: skip


@pytest.fixture
def global_random_seed() -> int:
    """The seed that scikit-learn's tests take by default."""
    return 42


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def global_dtype(request: pytest.FixtureRequest) -> type:
    """Both types that scikit-learn's tests know."""
    return request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the differences that are expected; the list is strict."""
    for item in items:
        reason = (
            DIFFERENCES.get(item.path.name, {}).get(item.name) if item.path.parent.name == "compatibility" else None
        )
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
