"""Regrouping the clusters of a fitted model: trees, limits on sizes, noise."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.cluster import hierarchy

import globular
from makers import blobs, weights_for

X = blobs(n=800, C=6, D=3)


@cache
def fitted() -> globular.KMeans:
    """Fitted when the first test asks: whoever only collects the tests compiles nothing."""
    return globular.KMeans(30, random_state=0).fit(X)


def test_a_tree_is_cut_at_any_level() -> None:
    tree = globular.cluster_tree(fitted())
    assert tree.n_clusters == 30 and hierarchy.is_valid_linkage(tree.linkage)
    for k in range(1, 31):
        groups = tree.cut(k)
        assert sorted(set(groups.tolist())) == list(range(k))
        theirs = hierarchy.fcluster(tree.linkage, k, "maxclust")
        assert len(set(zip(groups.tolist(), theirs.tolist(), strict=True))) == k
        if k > 1:  # every group lies in one of the next coarser cut
            assert len(set(zip(groups.tolist(), tree.cut(k - 1).tolist(), strict=True))) == k
    heights = tree.linkage[:, 2]
    np.testing.assert_array_equal(tree.cut(distance=heights[24]), tree.cut(5))
    for wrong, message in (({}, "either n_clusters or distance"), ({"n_clusters": 31}, "between 1 and 30, got 31")):
        with pytest.raises(ValueError, match=message):
            tree.cut(**wrong)


def test_heights_say_how_much_the_error_rises() -> None:
    tree, labels = globular.cluster_tree(fitted()), fitted().labels_
    errors = []
    for k in (30, 29, 10, 1):
        rows = tree.cut(k)[labels]
        errors.append(sum(np.square(X[rows == c] - X[rows == c].mean(axis=0)).sum() for c in range(k)))
    rises = np.cumsum(tree.linkage[:, 2] ** 2 / 2)
    np.testing.assert_allclose(np.array(errors[1:]) - errors[0], rises[[0, 19, 28]], rtol=1e-2)


def test_trees_of_mixtures_arrays_and_given_sizes() -> None:
    mixture = globular.GaussianMixture(5, random_state=0).fit(X)
    assert globular.cluster_tree(mixture).n_clusters == 5
    centers = fitted().cluster_centers_
    np.testing.assert_allclose(globular.cluster_tree(centers).linkage, hierarchy.linkage(centers, "ward"))
    given = globular.cluster_tree(centers, sizes=fitted().cluster_sizes_).linkage
    np.testing.assert_array_equal(given, globular.cluster_tree(fitted()).linkage)
    with pytest.raises(ValueError, match="sizes"):
        globular.cluster_tree(centers, sizes=-np.ones(30))
    pytest.importorskip("matplotlib")
    assert globular.cluster_tree(fitted()).plot(n_leaves=10).get_title() == "30 clusters"


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("max_size", [27, 30, 40])
def test_no_cluster_is_larger_than_allowed(metric: str, max_size: int) -> None:
    model = globular.KMeans(30, metric=metric, random_state=0).fit(X)
    found = globular.balance(model, X, max_size=max_size)
    np.testing.assert_array_equal(found.sizes, np.bincount(found.labels, minlength=30))
    assert found.sizes.max() <= max_size < model.cluster_sizes_.max()
    still = globular.balance(model, X, max_size=max_size, max_iter=0)
    np.testing.assert_array_equal(still.centers, model.cluster_centers_)
    assert model.inertia_ * (1 - 1e-9) <= found.inertia <= still.inertia * (1 + 1e-9)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    assert found.inertia == pytest.approx(np.square(rows - found.centers[found.labels]).sum(), rel=1e-6)


def test_a_weight_of_two_is_two_rows_and_none_is_no_row() -> None:
    weights = np.random.default_rng(0).integers(0, 3, size=800)
    model = globular.KMeans(30, random_state=0).fit(X, sample_weight=weights)
    found = globular.balance(model, X, max_size=40, sample_weight=weights)
    assert found.labels.shape == (800,)
    np.testing.assert_array_equal(found.sizes, np.bincount(found.labels, weights, minlength=30))
    assert found.sizes.max() <= 40
    tiny = globular.balance(model, X, max_size=40e-200, sample_weight=weights * 1e-200)
    np.testing.assert_array_equal(tiny.labels, found.labels)


def test_small_clusters_are_dissolved_into_the_next() -> None:
    found = globular.balance(fitted(), X, min_size=25)
    assert found.sizes.min() >= 25 and 1 < len(found.kept) < 30
    np.testing.assert_array_equal(found.centers, fitted().cluster_centers_[found.kept])
    np.testing.assert_array_equal(found.labels, globular.KMeans(len(found.kept), init=found.centers, max_iter=1)
                                  .fit(found.centers).predict(X))  # fmt: skip
    both = globular.balance(fitted(), X, min_size=25, max_size=60)
    assert both.sizes.min() >= 25 and both.sizes.max() <= 60


@pytest.mark.parametrize("form", ["float32", "sparse", "file"])
def test_any_rows_will_do(form: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    rows: Any = {"float32": X.astype("f4"), "sparse": sparse.csr_array(X), "file": tmp_path / "x.npy"}[form]
    found, wanted = (globular.balance(fitted(), each, max_size=30) for each in (rows, X))
    assert found.sizes.max() <= 30 and found.inertia == pytest.approx(wanted.inertia, rel=1e-2)


def test_limits_that_cannot_be_kept_are_refused() -> None:
    for arguments, message in (
        ({}, "give max_size or min_size"),
        ({"max_size": 26}, "max_size=26: 30 clusters of that size do not hold all rows; take at least 26.6667"),
        ({"max_size": 30, "min_size": 40}, "min_size=40 is more than max_size=30"),
        ({"max_size": 30, "max_iter": -1}, "max_iter must be at least 0"),
        ({"max_size": 800, "sample_weight": np.append(np.ones(799), 801.0)}, "less than the weight of a single row"),
    ):
        with pytest.raises(ValueError, match=message):
            globular.balance(fitted(), X, **arguments)
    with pytest.raises(ValueError, match="min_size=2 is more than all rows are, 1; take at most that"):
        globular.balance(fitted(), X[:1], min_size=2)
    assert globular.balance(fitted(), X[:2], min_size=2).sizes.tolist() == [2.0]
    with pytest.raises(TypeError, match="must be a k-means model, got a GaussianMixture"):
        globular.balance(globular.GaussianMixture(2).fit(X), X, max_size=400)


@pytest.mark.parametrize(
    "model",
    [globular.GaussianMixture(4), globular.VariationalGaussianMixture(10), globular.ChunkyGaussianMixture(4),
     globular.InfiniteGaussianMixture()],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_rows_of_low_density_are_noise(model: Any) -> None:
    model.set_params(random_state=0).fit(X, sample_weight=weights_for(800))
    densities, labels = model.score_samples(X), model.predict(X)
    limit = float(np.quantile(densities, 0.1))
    found = model.predict(X, min_log_density=limit)
    np.testing.assert_array_equal(found, np.where(densities < limit, -1, labels))
    assert (found == -1).sum() == 80


def test_faiss_names_say_what_the_model_says() -> None:
    from globular.export import Kmeans

    rows = X.astype(np.float32)
    for spherical in (False, True):
        kmeans = Kmeans(3, 30, niter=20, spherical=spherical, seed=0)
        error = kmeans.train(rows)
        D, I = kmeans.index.search(rows, 4)  # noqa: E741
        np.testing.assert_array_equal(kmeans.assign(rows)[1], I[:, 0])
        np.testing.assert_array_equal(I[:, 0], kmeans.model.predict(rows))
        products = rows @ kmeans.centroids.T
        squares = np.square(rows).sum(axis=1)[:, None] - 2 * products + np.square(kmeans.centroids).sum(axis=1)
        wanted = np.sort(-products if spherical else squares, axis=1)[:, :4]
        np.testing.assert_allclose(-D if spherical else D, wanted, rtol=1e-3, atol=1e-3)
        assert error == kmeans.model.inertia_ and len(kmeans.obj) == len(kmeans.model.history_)
    again = Kmeans(3, 30)
    assert again.train(rows, weights=np.ones(800), init_centroids=kmeans.centroids) > 0
    with pytest.raises(ValueError, match=r"x has shape \(800, 3\), expected \(n, 4\)"):
        Kmeans(4, 30).train(rows)
