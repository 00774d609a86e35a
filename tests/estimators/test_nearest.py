"""Distances beside labels, the closest centres of a row, the closest row of a centre, and rows that are noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import globular

X = np.random.default_rng(0).normal(size=(700, 5)) + 3.0
MODELS = {
    (metric, dtype): globular.KMeans(40, metric=metric, random_state=0).fit(X.astype(dtype))
    for metric in ("euclidean", "cosine")
    for dtype in ("float32", "float64")
}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", MODELS, ids="-".join)
def test_distances_are_those_of_transform(kind: tuple[str, str], form: Any) -> None:
    model, rows = MODELS[kind], form(X.astype(kind[1]))
    wanted = model.transform(rows).astype(np.float64)
    labels, distances = model.predict(rows, return_distance=True)
    np.testing.assert_array_equal(labels, model.predict(rows))
    np.testing.assert_allclose(distances, wanted.min(axis=1), rtol=1e-4, atol=1e-6)
    several, apart = model.nearest_centers(rows, 7)
    assert (several.shape, several.dtype, apart.dtype) == ((700, 7), np.int32, np.float64)
    np.testing.assert_array_equal(several[:, 0], labels)
    np.testing.assert_allclose(apart, np.sort(wanted, axis=1)[:, :7], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(wanted, several.astype(np.intp), axis=1), apart, rtol=1e-4, atol=1e-6)


def test_all_centres_can_be_asked_for_and_ties_go_to_the_first() -> None:
    centers = np.repeat(np.arange(25.0), 2)[:, None]  # each centre twice
    model = globular.KMeans(50, random_state=0).fit(np.arange(60.0)[:, None])
    model.cluster_centers_ = centers
    labels, distances = model.nearest_centers([[3.1]], 50)
    assert labels[0].tolist()[:6] == [6, 7, 8, 9, 4, 5]
    assert sorted(labels[0].tolist()) == list(range(50)) and (np.diff(distances[0]) >= 0).all()
    for wrong in (0, 51):
        with pytest.raises(ValueError, match=f"n_centers must lie between 1 and 50, got {wrong}"):
            model.nearest_centers([[3.1]], wrong)


@pytest.mark.parametrize("far", [1e4, 1e9, 1e12, 1e150])
@pytest.mark.parametrize("k", [4, 17, 60])
def test_one_far_centre_hides_no_other(far: float, k: int) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 8))
    model = globular.KMeans(k, init=rows[:k], max_iter=1).fit(rows)
    model.cluster_centers_[k // 2] = far
    apart = np.sqrt(((rows[:, None] - model.cluster_centers_) ** 2).sum(axis=2))
    labels, distances = model.nearest_centers(rows, 3)
    np.testing.assert_array_equal(labels, np.argsort(apart, axis=1)[:, :3])
    np.testing.assert_allclose(distances, np.sort(apart, axis=1)[:, :3], rtol=1e-12)
    np.testing.assert_allclose(model.transform(rows), apart, rtol=1e-10)


def test_distances_beside_the_only_other_centre_which_is_far() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    model = globular.KMeans(2, init=rows[:2], max_iter=1).fit(rows)
    model.cluster_centers_[1] = 1e12
    np.testing.assert_allclose(model.transform(rows)[:, 0], np.linalg.norm(rows - model.cluster_centers_[0], axis=1))


def test_files_and_any_number_of_threads_give_the_same(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    wanted = MODELS["euclidean", "float64"].nearest_centers(X, 3)
    many = globular.KMeans(40, random_state=0, n_threads=3).fit(X)
    for found in (many.nearest_centers(X, 3), many.nearest_centers(tmp_path / "rows.npy", 3)):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_rows_far_from_their_centre_are_noise() -> None:
    model = MODELS["euclidean", "float64"]
    labels, distances = model.predict(X, return_distance=True)
    limit = float(np.median(distances))
    found = model.predict(X, max_distance=limit)
    np.testing.assert_array_equal(found, np.where(distances > limit, -1, labels))
    assert found.dtype == labels.dtype and 0 < (found < 0).mean() < 1
    rough, apart = model.predict(X, exact=False, return_distance=True)
    np.testing.assert_allclose(apart, model.transform(X)[np.arange(len(X)), rough], rtol=1e-6)


def test_medoids_are_rows_of_their_clusters() -> None:
    model = MODELS["euclidean", "float64"]
    rows, distances = model.medoids(X), model.transform(X)
    np.testing.assert_array_equal(model.predict(X)[rows], np.arange(40))
    for cluster, row in enumerate(rows):
        members = np.flatnonzero(model.predict(X) == cluster)
        assert row == members[distances[members, cluster].argmin()]
    assert (model.medoids(X[model.predict(X) == 7]) >= 0).sum() == 1  # the others have no row there


@pytest.mark.parametrize("model", [globular.KMeans(5), globular.GaussianMixture(5), globular.VariationalKMeans(5)])
def test_cluster_sizes_count_the_labels(model: Any) -> None:
    assert not hasattr(model, "cluster_sizes_")
    model.set_params(random_state=0).fit(X)
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(model.labels_, minlength=5))


def test_rows_without_a_label_are_not_counted() -> None:
    begun = globular.NestedMiniBatchKMeans(5, batch_size=20, random_state=0)
    next(record for record in begun.fit_iter(X) if record.labels_all_rows)
    assert begun.cluster_sizes_.sum() == (begun.labels_ >= 0).sum() < len(X)


def test_transform_writes_to_a_memory_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.estimators.centroids.BLOCK_BYTES", 8 * 40 * 100)
    model = MODELS["euclidean", "float32"]
    out = np.lib.format.open_memmap(tmp_path / "d.npy", "w+", np.float32, (700, 40))
    assert model.transform(X.astype("float32"), out=out) is out
    np.testing.assert_array_equal(out, model.transform(X.astype("float32")))
    with pytest.raises(ValueError, match=r"out must be an array of the shape \(700, 40\), got \(3, 40\)"):
        model.transform(X, out=np.empty((3, 40)))
    with pytest.raises(ValueError, match="got list"):
        model.transform(X, out=[[0.0]])


def test_limits_that_are_no_numbers_are_named() -> None:
    for wrong in ("far", float("nan"), True):
        with pytest.raises(ValueError, match="max_distance must be a number"):
            MODELS["euclidean", "float64"].predict(X, max_distance=wrong)
        with pytest.raises(ValueError, match="min_log_density must be a number"):
            globular.GaussianMixture(2, random_state=0).fit(X).predict(X, min_log_density=wrong)
        with pytest.raises(ValueError, match="max_size must be a number"):
            globular.balance(MODELS["euclidean", "float64"], X, max_size=wrong)


def test_sizes_of_an_infinite_mixture_are_those_of_its_clusters() -> None:
    model = globular.InfiniteGaussianMixture(random_state=0).fit(X)
    assert model.cluster_sizes_.sum() == len(X) and len(model.cluster_sizes_) == model.n_clusters_
    with pytest.raises(AttributeError, match="labels_"):
        globular.KMeans(3).cluster_sizes_
