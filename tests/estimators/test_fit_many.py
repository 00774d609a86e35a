"""Many small problems at once: each as if it were alone, the optimum where there is one column."""

from typing import Any

import numpy as np
import pytest

import globular
from globular import fit_many
from makers import weights_for

random = np.random.default_rng(0)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_one_column_is_the_optimum_of_kmeans() -> None:
    Xs = random.normal(size=(30, 50, 1)).astype(np.float32)
    found = fit_many(Xs, 4, n_threads=2)
    assert found.cluster_centers.shape == (30, 4, 1) and found.cluster_centers.dtype == np.float32
    assert found.labels.shape == (30, 50) and found.labels.dtype == np.int32
    for i, X in enumerate(Xs):
        model = globular.KMeans(4).fit(X)
        assert found.inertia[i] == pytest.approx(model.inertia_)
        np.testing.assert_array_equal(found.labels[i], model.labels_)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_several_columns_end_about_as_kmeans_does(dtype: str) -> None:
    Xs = (20 * random.random((12, 300, 3))).astype(dtype)
    found = fit_many(Xs, 8, random_state=0)
    models = [globular.KMeans(8, random_state=0).fit(X) for X in Xs]
    assert found.inertia.sum() <= 1.01 * sum(model.inertia_ for model in models)
    for X, centers, labels, inertia in zip(Xs, found.cluster_centers, found.labels, found.inertia, strict=True):
        d2 = np.square(X[:, None].astype(float) - centers).sum(axis=2)
        np.testing.assert_array_equal(labels, d2.argmin(axis=1))
        assert inertia == pytest.approx(d2.min(axis=1).sum())


def test_problems_depend_neither_on_each_other_nor_on_threads() -> None:
    Xs = [random.normal(size=(int(n), int(D))) for n, D in random.integers((20, 1), (200, 5), size=(20, 2))]
    ks = random.integers(1, 9, size=20)
    one, two = (fit_many(Xs, ks, random_state=3, n_threads=n) for n in (1, 2))
    assert same(one.cluster_centers, two.cluster_centers) and same(one.labels, two.labels)
    np.testing.assert_array_equal(one.inertia, two.inertia)
    assert [centers.shape for centers in one.cluster_centers] == [(k, X.shape[1]) for k, X in zip(ks, Xs, strict=True)]
    others = [X if i == 7 else X + 1.0 for i, X in enumerate(Xs)]
    np.testing.assert_array_equal(fit_many(others, ks, random_state=3).cluster_centers[7], one.cluster_centers[7])


@pytest.mark.parametrize("D", [1, 3])
def test_weights_are_repetitions(D: int) -> None:
    Xs = random.normal(size=(5, 40, D))
    weights = random.integers(0, 3, size=(5, 40))
    repeated = [np.repeat(X, w, axis=0) for X, w in zip(Xs, weights, strict=True)]
    weighted, alike = fit_many(Xs, 3, sample_weights=weights, random_state=0), fit_many(repeated, 3, random_state=0)
    assert weighted.labels.shape == (5, 40)
    np.testing.assert_allclose(weighted.inertia, alike.inertia, rtol=1e-9 if D == 1 else 0.05)
    some = fit_many(list(Xs), 3, sample_weights=[None, *weights[1:]], random_state=0)
    np.testing.assert_array_equal(some.inertia[1:], weighted.inertia[1:])
    scaled = fit_many(Xs, 3, sample_weights=weights * 2.0**90, random_state=0)
    np.testing.assert_array_equal(scaled.cluster_centers, weighted.cluster_centers)
    np.testing.assert_allclose(scaled.inertia, weighted.inertia * 2.0**90)


@pytest.mark.parametrize("D", [1, 2])
def test_fewer_distinct_rows_than_clusters(D: int) -> None:
    found = fit_many(np.ones((3, 5, D)), 4)
    assert (found.cluster_centers == 1.0).all() and (found.inertia == 0).all() and (found.labels == 0).all()


BAD: dict[str, tuple[Any, Any, Any, str]] = {
    "a table": (np.ones((3, 4)), 2, None, "Xs must be an array"),
    "nothing": ([], 2, None, "Xs must be an array"),
    "no rows": ([np.ones((3, 1)), np.ones((0, 1))], 2, None, r"Xs.*0 sample"),
    "a row": ([np.ones((3, 1)), np.ones(3)], 2, None, "Xs.*2D array"),
    "NaN": ([np.ones((3, 1)), np.full((3, 1), np.nan)], 2, None, r"Xs\[1\] contains NaN"),
    "too many clusters": ([np.ones((3, 1)), np.ones((2, 1))], 3, None, r"n_clusters=3 is more than the 2 rows of Xs"),
    "no clusters": (np.ones((3, 4, 1)), 0, None, "n_clusters=0 must be"),
    "numbers": (np.ones((3, 4, 1)), [1, 2], None, r"3 problems, n_clusters 2 numbers.*one for each problem"),
    "weights": (np.ones((3, 4, 1)), 1, np.ones((2, 4)), "sample_weights 2 entries"),
    "few weights": (np.ones((3, 4, 1)), 1, np.ones((3, 3)), r"sample_weights\[0\].*expected \(4,\)"),
    "no weight": (np.ones((3, 4, 1)), 1, [None, None, np.zeros(4)], r"sample_weights\[2\].*zero everywhere"),
    "overflow": (np.array([[[1e200], [0.0], [-1e200]]]), 2, None, r"Xs\[0\] has values beyond"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str) -> None:
    Xs, k, weights, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        fit_many(Xs, k, sample_weights=weights)


def test_weights_for_rows_that_do_not_count() -> None:
    weights = weights_for(60)
    found = fit_many(random.normal(size=(2, 60, 2)), 3, sample_weights=[weights, weights], random_state=0)
    assert (found.labels >= 0).all() and np.isfinite(found.inertia).all()
