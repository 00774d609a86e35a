"""The face `VariationalKMeans`: attributes, forms of input, parameters, running, and scikit-learn's conventions."""

from __future__ import annotations

import logging
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import globular
from globular import KMeans, VariationalKMeans, datasets
from globular.algorithms.seeding.named import STARTS
from globular.data.open import as_source
from globular.estimators import checks, inputs
from makers import FORMS, Rows, blobs, in_form, weights_for
from reference import assign as reference

OTHER_DRAWS = "repeated rows are other rows to random candidates; without them weights equal repetitions, see below"


def grid(n: int = 4000, side: int = 8, seed: int = 0) -> Rows:
    """Round clusters on a grid, twice as far apart as they are wide."""
    random = np.random.default_rng(seed)
    return 6.0 * random.integers(side, size=(n, 2)) + random.normal(size=(n, 2))


# ---------------------------------------------------------------- attributes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("options", [{}, {"n_candidates": 1}, {"neighborhoods": "exhaustive"}, {"exact_labels": True}])
def test_attributes(options: dict[str, Any], metric: str, dtype: type) -> None:
    X, weights = blobs(n=500, C=10).astype(dtype), weights_for(500)
    model = VariationalKMeans(40, metric=metric, random_state=0, **options).fit(X, sample_weight=weights)
    assert model.cluster_centers_.shape == (40, 4) and model.cluster_centers_.dtype == dtype
    assert model.labels_.shape == (500,) and model.labels_.dtype == np.int32
    assert model.neighbors_.shape == (40, 10) and model.neighbors_.dtype == np.int32
    np.testing.assert_array_equal(model.neighbors_[:, 0], np.arange(40))
    assert len(model.history_.iterations) == model.n_iter_ and model.init_ in STARTS and model.stopped_
    seen = reference.as_seen(X, unit_rows=metric == "cosine")
    d2 = reference.squared_distances(seen, model.cluster_centers_.astype(np.float64))
    assert model.inertia_ == pytest.approx(weights @ d2[np.arange(500), model.labels_], rel=1e-5)
    assert np.mean(model.labels_ == d2.argmin(axis=1)) > 0.9
    if options.get("exact_labels"):
        np.testing.assert_array_equal(model.labels_, d2.argmin(axis=1))
        assert model.n_distances_ == sum(model.history_.column("n_distances")) + np.count_nonzero(weights) * 40
    if metric == "cosine":
        np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1.0, rtol=1e-6)
    objectives = model.history_.iterations.column("objective")
    assert (np.diff(objectives) <= 1e-6 * objectives[:-1]).all()
    assert model.transform(X).shape == (500, 40) and model.score(X) < 0


def test_counts_of_distances_are_those_of_the_neighborhoods() -> None:
    X = np.random.default_rng(0).normal(size=(600, 3))
    options = {"n_candidates": 1, "n_neighbors": 5, "n_random": 1, "max_iter": 4, "tol": 0.0}
    model = VariationalKMeans(300, init="k-means++", random_state=0, **options).fit(X)
    # the random candidate is left out if four draws hit the neighbourhood: (5/300)⁴
    assert model.history_.iterations.column("n_distances").tolist() == [600 * 6] * 4
    assert model.n_distances_ == 600 * 6 * 4 + 600 * 300  # and the last labels


def test_whole_neighborhoods_are_kmeans() -> None:
    X = blobs(n=400, C=8)
    start = X[:12]
    options: dict[str, Any] = {"init": start, "n_random": 0, "n_candidates": 1, "n_neighbors": 12, "tol": 0.0}
    model = VariationalKMeans(12, **options).fit(X)
    exact = KMeans(12, init=start, algorithm="lloyd", tol=0.0).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, exact.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(model.labels_, exact.labels_)


@pytest.mark.parametrize("n_candidates", [1, 3])
def test_quality_is_near_that_of_kmeans(n_candidates: int) -> None:
    X = grid()
    seeds = KMeans(64, algorithm="lloyd", random_state=0).fit(X)
    init = seeds.cluster_centers_ + np.random.default_rng(1).normal(size=(64, 2))
    exact = KMeans(64, init=init, algorithm="lloyd").fit(X)
    model = VariationalKMeans(64, init=init, n_candidates=n_candidates, n_neighbors=5, random_state=0)
    assert model.fit(X).inertia_ <= 1.05 * exact.inertia_
    mine, theirs = (fit.history_.iterations.column("n_distances").mean() for fit in (model, exact))
    assert mine < theirs


# ---------------------------------------------------------------- input


# rows of zeros and ones are fewer than the clusters asked for
@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_candidates", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_the_model_of_its_float64_rows(form: str, n_candidates: int) -> None:
    matrix = in_form(blobs(n=200, C=8), form)
    rows = reference.as_seen(matrix)
    options = {"init": rows[:16] + 0.01, "n_candidates": n_candidates, "max_iter": 10, "random_state": 0}
    model = VariationalKMeans(16, **options).fit(matrix)
    expected = VariationalKMeans(16, **options).fit(rows)
    assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-4 if form != "bool" else 0.2)
    if form not in ("float32", "float16", "uint8", "bool", "csr32"):
        np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9, atol=1e-9)


def test_files_and_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, weights = blobs(n=300, C=8).astype(np.float32), weights_for(300)
    path = tmp_path / "rows.npy"
    np.save(path, X)
    expected = VariationalKMeans(20, random_state=0).fit(X, sample_weight=weights)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr("globular.passes.many.PART_BYTES", 64 * 16)
    for given in (str(path), as_source(path)):
        model = VariationalKMeans(20, random_state=0).fit(given, sample_weight=weights)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-5)
        np.testing.assert_array_equal(model.predict(given, exact=False), expected.predict(X, exact=False))


@pytest.mark.parametrize("neighborhoods", ["estimated", "exhaustive"])
@pytest.mark.parametrize("n_candidates", [1, 3])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_weight_n_is_n_copies(metric: str, n_candidates: int, neighborhoods: str) -> None:
    X = blobs(n=200, C=8)
    copies = np.random.default_rng(0).integers(0, 4, size=200)
    model = VariationalKMeans(
        15, init=X[:15], n_random=0, n_candidates=n_candidates, neighborhoods=neighborhoods, metric=metric,
        n_neighbors=5, tol=0.0, max_iter=5, random_state=0,
    )  # fmt: skip
    weighted = clone(model).fit(X, sample_weight=copies)
    repeated = clone(model).fit(np.repeat(X, copies, axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-9, atol=1e-9)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)


def test_rows_of_weight_zero_do_not_count() -> None:
    X = np.vstack([blobs(n=200), np.full((200, 4), 1e3) + np.arange(200)[:, None]])
    weights = np.repeat([1.0, 0.0], 200)
    model = VariationalKMeans(20, n_random=2, random_state=0).fit(X, sample_weight=weights)
    assert np.abs(model.cluster_centers_).max() < 100


# ---------------------------------------------------------------- predicting


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_predicting_by_the_graph_finds_the_closest_center_almost_always(metric: str) -> None:
    X = blobs(n=6000, C=100, D=6, seed=1)
    model = VariationalKMeans(400, metric=metric, random_state=0, max_iter=10, tol=1e-2).fit(X)
    fresh = blobs(n=3000, C=100, D=6, seed=1)[::-1] + 0.1
    exact, quick = model.predict(fresh), model.predict(fresh, exact=False)
    assert quick.shape == exact.shape and quick.dtype == exact.dtype
    assert np.mean(exact == quick) >= 0.97
    np.testing.assert_array_equal(quick, model.predict(fresh, exact=False))
    np.testing.assert_array_equal(model.predict(fresh[:1], exact=False).shape, (1,))
    quick_sparse = model.predict(sparse.csr_matrix(fresh), exact=False)
    assert np.mean(quick_sparse == exact) >= 0.97


# ---------------------------------------------------------------- parameters and running


@pytest.mark.parametrize("n_clusters", [1, 3, 40])
@pytest.mark.parametrize("init", STARTS)
def test_every_seeding_on_little_data(init: str, n_clusters: int) -> None:
    model = VariationalKMeans(n_clusters, init=init, random_state=0).fit(blobs(n=40, D=3))
    assert len(np.unique(model.labels_)) == n_clusters and model.neighbors_.shape == (n_clusters, min(10, n_clusters))


def test_neighborhoods_wider_than_hierarchical_seeds_know() -> None:
    model = VariationalKMeans(100, init="hierarchical", n_neighbors=40, random_state=0).fit(grid(n=1000))
    assert model.neighbors_.shape == (100, 40)


def test_empty_clusters_move_to_rows() -> None:
    X = blobs(n=200, D=2)
    start = np.vstack([X[:8], np.full((4, 2), 500.0)])
    moved = VariationalKMeans(12, init=start, n_candidates=2, random_state=0, tol=0.0, max_iter=30).fit(X)
    assert len(np.unique(moved.labels_)) == 12


def test_warm_start_and_fit_iter() -> None:
    X = grid()
    model = VariationalKMeans(64, random_state=0, init="random", tol=0.0, max_iter=3, warm_start=True).fit(X)
    first = model.inertia_
    assert model.fit(X).init_ == "warm start" and model.inertia_ < first
    loop = VariationalKMeans(64, random_state=0, init="random", tol=0.0)
    for record in loop.fit_iter(X):
        assert record.iteration == loop.n_iter_ and loop.neighbors_.shape == (64, 10)
        if record.iteration == 2:
            break
    assert loop.predict(X).shape == (4000,)


def test_best_of_several_runs_is_kept() -> None:
    X = grid(n=1000)
    model = VariationalKMeans(30, init="random", n_init=4, random_state=0, max_iter=10).fit(X)
    single = VariationalKMeans(30, init="random", random_state=0, max_iter=10).fit(X)
    assert model.inertia_ <= single.inertia_ and model.n_distances_ > single.n_distances_


@pytest.mark.parametrize("n_candidates", [1, 3])
def test_same_seed_same_result_for_any_number_of_threads(n_candidates: int) -> None:
    X = grid(n=20_000, side=12)
    fits = [
        VariationalKMeans(144, n_candidates=n_candidates, random_state=3, max_iter=8, n_threads=n).fit(X)
        for n in (1, 2, 2)
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].cluster_centers_, other.cluster_centers_)
        np.testing.assert_array_equal(fits[0].labels_, other.labels_)
        np.testing.assert_array_equal(fits[0].neighbors_, other.neighbors_)
    assert (VariationalKMeans(144, random_state=4, max_iter=8).fit(X).labels_ != fits[0].labels_).any()


def test_clone_pickle_save_and_load(tmp_path: Path) -> None:
    X = grid(n=1000)
    model = VariationalKMeans(30, n_neighbors=6, random_state=0)
    before = model.get_params()
    model.fit(X)
    assert model.get_params() == before == clone(model).get_params()
    for copy in (pickle.loads(pickle.dumps(model)), globular.load(globular.save(model, tmp_path / "model"))):
        assert isinstance(copy, VariationalKMeans)
        for exact in (False, True):
            np.testing.assert_array_equal(copy.predict(X, exact=exact), model.predict(X, exact=exact))
        np.testing.assert_array_equal(copy.neighbors_, model.neighbors_)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(
    ("D", "C", "options"),
    [
        (8, 2000, {"n_candidates": 1, "n_neighbors": 5}),
        (40, 300, {"n_candidates": 1, "n_neighbors": 5}),
        (2, 2000, {"n_candidates": 1, "n_neighbors": 10, "init": "random"}),
        (8, 2000, {"n_candidates": 3, "n_neighbors": 10}),
    ],
    ids=["seeds by cells", "wide rows", "random rows", "several candidates"],
)
def test_memory_is_said_beforehand_and_kept(
    D: int, C: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checks, "FIXED_BYTES", 1 << 20)
    X = np.random.default_rng(0).normal(size=(20_000, D)).astype(np.float32)
    model = VariationalKMeans(C, max_iter=4, random_state=0, n_threads=2, **options).fit(X)  # compiled, imported
    with caplog.at_level(logging.INFO, logger="globular"):
        tracemalloc.start()
        try:
            model.fit(X)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    said = re.search(r"the fit, beside X: up to ([\d.]+) MiB", caplog.text)
    assert said is not None
    assert peak <= float(said[1]) * 2**20 < 5 * peak


@pytest.mark.parametrize(
    "options",
    [
        {"n_candidates": 0}, {"n_neighbors": 0}, {"n_random": 16}, {"n_random": -1}, {"neighborhoods": "near"},
        {"tol": -1.0}, {"max_iter": 0},
    ],
    ids=str,
)  # fmt: skip
def test_bad_parameters_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        VariationalKMeans(3, **options).fit(blobs())


# some checks ask for eight clusters of four distinct rows, and are told so
@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [VariationalKMeans(), VariationalKMeans(4, n_candidates=1, neighborhoods="exhaustive")],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": OTHER_DRAWS,
        "check_sample_weight_equivalence_on_sparse_data": OTHER_DRAWS,
    },
)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_separate_groups_get_a_center_each_by_swaps() -> None:
    X = datasets.many_blobs(6_000, 200, 16, center_std=8.0, random_state=0).X
    best = KMeans(200, random_state=0).fit(X).inertia_
    assert VariationalKMeans(200, random_state=0).fit(X).inertia_ < 1.1 * best
    assert VariationalKMeans(200, init="random", random_state=0).fit(X).inertia_ > 1.3 * best
