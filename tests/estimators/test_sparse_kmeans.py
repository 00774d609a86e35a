"""KMeans on sparse rows and many clusters: by an inverted file, and what everybody expects of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular import KMeans, NestedMiniBatchKMeans, load, save
from globular.algorithms.kmeans.pipeline import PROBING_FROM, PipelineOptions
from globular.errors import DataError
from globular.model.sparse_centers import SPARSE_FROM
from globular.persistence import read_info

WORDS, PER_TEXT, TOPICS = 2000, 6, 500


def texts(n: int = 2500, seed: int = 0, dtype: str = "float64") -> sparse.csr_array:
    """Short texts about many topics, with some words that are everywhere."""
    rng = np.random.default_rng(seed)
    topics = rng.choice(np.arange(50, WORDS), (TOPICS, 12))
    own = topics[rng.integers(TOPICS, size=n)]
    words = np.take_along_axis(own, rng.integers(12, size=(n, PER_TEXT)), axis=1)
    common = rng.random(words.shape) < 0.2
    words[common] = rng.integers(50, size=common.sum())
    weights = 0.2 + rng.random(words.shape)
    matrix = sparse.coo_array((weights.ravel(), (np.repeat(np.arange(n), PER_TEXT), words.ravel())), (n, WORDS))
    return sparse.csr_array(matrix.tocsr().astype(dtype))


@pytest.fixture(scope="module")
def X() -> sparse.csr_array:
    return texts()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_iterations_never_rise_and_labels_are_exact(X: Any, metric: str) -> None:
    model = KMeans(600, metric=metric, random_state=0).fit(X)
    errors = [record.objective for record in model.history_]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(errors))
    assert model.algorithm_ == "exact"
    assert model.init_ == "k-means++"
    assert model.label_recall_ == 1.0
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert len(np.unique(model.labels_)) == 600
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-12)
    assert model.inertia_ <= errors[-1] * (1 + 1e-12)


def test_lloyd_goes_the_way_of_dense_rows(X: Any) -> None:
    start = X[:SPARSE_FROM].toarray()
    one, other = (KMeans(SPARSE_FROM, algorithm="lloyd", init=start, max_iter=5).fit(rows) for rows in (X, X.toarray()))
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(one.cluster_centers_, other.cluster_centers_, rtol=1e-12, atol=1e-14)
    assert [r.objective for r in one.history_] == pytest.approx([r.objective for r in other.history_], rel=1e-12)
    assert one.n_iter_ == other.n_iter_


def test_few_clusters_and_who_asks_for_probing_go_other_ways() -> None:
    for algorithm in ("auto", "exact", "lloyd"):
        assert PipelineOptions(SPARSE_FROM, algorithm, sparse=True).inverts
        assert not PipelineOptions(SPARSE_FROM - 1, algorithm, sparse=True).inverts
        assert not PipelineOptions(SPARSE_FROM, algorithm).inverts
    assert not PipelineOptions(SPARSE_FROM, "probing", sparse=True).inverts
    assert PipelineOptions(PROBING_FROM, sparse=True).chosen == "exact"
    assert PipelineOptions(PROBING_FROM).chosen == "probing"


def test_threads_and_the_seed_decide_nothing_and_everything(X: Any) -> None:
    one, same, other = (
        KMeans(600, random_state=seed, n_threads=n, max_iter=5).fit(X) for seed, n in ((0, 1), (0, 3), (1, 1))
    )
    np.testing.assert_array_equal(one.cluster_centers_, same.cluster_centers_)
    np.testing.assert_array_equal(one.labels_, same.labels_)
    assert one.inertia_ == same.inertia_ != other.inertia_


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_weights_are_repetition(X: Any, metric: str) -> None:
    rng, start = np.random.default_rng(0), X[:SPARSE_FROM].toarray()
    times = rng.integers(0, 4, X.shape[0])
    options: Any = {"metric": metric, "algorithm": "lloyd", "init": start, "max_iter": 5}
    weighted = KMeans(SPARSE_FROM, **options).fit(X, sample_weight=times)
    repeated = KMeans(SPARSE_FROM, **options).fit(X[np.repeat(np.arange(X.shape[0]), times)])
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)


def test_single_precision_ends_where_double_does() -> None:
    one, other = (KMeans(600, random_state=0).fit(texts(dtype=dtype)) for dtype in ("float32", "float64"))
    assert one.cluster_centers_.dtype == np.float32
    assert one.inertia_ == pytest.approx(other.inertia_, rel=0.01)


def test_clusters_that_run_empty_get_rows(X: Any) -> None:
    start = np.repeat(X[:20].toarray(), SPARSE_FROM // 20, axis=0)
    model = KMeans(SPARSE_FROM, algorithm="exact", init=start, random_state=0).fit(X)
    assert len(np.unique(model.labels_)) == SPARSE_FROM


def test_fewer_distinct_rows_than_clusters(X: Any) -> None:
    rows = sparse.csr_array(sparse.vstack([X[:100]] * 8))
    with pytest.warns(UserWarning, match=r"Number of distinct clusters \(100\) found smaller"):
        model = KMeans(600, random_state=0).fit(rows)
    assert model.inertia_ == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_equal_rows_of_any_weight_end_at_once(X: Any, metric: str, dtype: str) -> None:
    rows = sparse.csr_array(sparse.vstack([X[:100]] * 8)).astype(dtype)
    start = np.repeat(X[:100].toarray(), 6, axis=0)
    for init in ("auto", start):
        model = KMeans(600, metric=metric, init=init, random_state=0)
        with pytest.warns(UserWarning, match="Number of distinct clusters"):
            model.fit(rows, sample_weight=0.1 + np.random.default_rng(0).random(800))
        assert model.n_iter_ <= 3
        assert len(np.unique(model.labels_)) == 100
        np.testing.assert_array_equal(model.predict(rows), model.labels_)
        assert (np.linalg.norm(model.cluster_centers_, axis=1) > 0).all()


def test_means_of_counts_are_exact() -> None:
    rows = sparse.eye_array(SPARSE_FROM + 10, WORDS, format="csr")[np.repeat(np.arange(SPARSE_FROM + 10), 49)]
    start = np.eye(SPARSE_FROM, WORDS)
    model = KMeans(SPARSE_FROM, init=start, algorithm="lloyd").fit(rows)  # ten words go to the first cluster
    np.testing.assert_array_equal(model.cluster_centers_[1:], start[1:])


def test_empty_texts_have_no_direction(X: Any) -> None:
    rows = X.tolil()
    rows[::10] = 0
    rows = sparse.csr_array(rows)
    model = KMeans(600, metric="cosine", random_state=0).fit(rows)
    errors = [record.objective for record in model.history_]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(errors))
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1.0)


def test_its_seeds_beat_random_ones(X: Any) -> None:
    best = KMeans(600, random_state=0).fit(X).inertia_
    assert best < KMeans(600, algorithm="lloyd", init="random", random_state=0).fit(X).inertia_


def test_time_and_iterations_end_it(X: Any) -> None:
    short = KMeans(600, random_state=0, max_iter=1).fit(X)
    assert (short.n_iter_, short.stopped_) == (1, "max_iter")
    np.testing.assert_array_equal(short.predict(X), short.labels_)
    hurried = KMeans(600, random_state=0, max_time=1e-3).fit(X)
    assert hurried.cluster_centers_.shape == (600, WORDS)
    started = KMeans(600, random_state=0, warm_start=True, max_iter=1).fit(X)
    assert started.fit(X).inertia_ < short.inertia_


def test_centers_stay_sparse_until_somebody_asks(X: Any, tmp_path: Path) -> None:
    model = KMeans(SPARSE_FROM, random_state=0).fit(X)
    assert model.sparse_centers_.shape == (SPARSE_FROM, WORDS)
    labels, score = model.predict(X), model.score(X)
    restored = load(save(model, tmp_path / "model"))
    info = read_info(tmp_path / "model")
    assert info.n_clusters == SPARSE_FROM
    assert str(info.attributes["sparse_centers_"]) == f"array {SPARSE_FROM} × {WORDS} float64"
    assert len(model.cluster_sizes_) == len(model.get_feature_names_out()) == SPARSE_FROM
    for each in (model, restored):
        assert "cluster_centers_" not in vars(each)
    np.testing.assert_array_equal(restored.predict(X), labels)
    np.testing.assert_array_equal(restored.cluster_centers_, model.sparse_centers_.toarray())
    del model.sparse_centers_  # dense ones say the same
    model.cluster_centers_ = restored.cluster_centers_
    np.testing.assert_array_equal(model.predict(X), labels)
    np.testing.assert_array_equal(restored.predict(X[:50].toarray()), labels[:50])
    assert model.score(X) == pytest.approx(score, rel=1e-12)


def test_another_fit_leaves_no_centers_of_the_last(X: Any) -> None:
    model = KMeans(SPARSE_FROM, random_state=0).fit(X)
    assert model.cluster_centers_.shape == (SPARSE_FROM, WORDS)
    model.set_params(n_clusters=3).fit(X)
    assert "sparse_centers_" not in vars(model)
    assert model.cluster_centers_.shape == (3, WORDS)
    model.set_params(n_clusters=SPARSE_FROM, warm_start=False).fit(X)
    assert "cluster_centers_" not in vars(model)
    again = KMeans(SPARSE_FROM, random_state=0, warm_start=True).fit(X).fit(X)
    assert again.init_ == "warm start"
    with pytest.raises(AttributeError, match="no attribute 'cluster_centers_'"):
        _ = KMeans(3).cluster_centers_


def test_rows_of_weight_zero_get_the_closest_center(X: Any) -> None:
    weights = np.arange(X.shape[0]) % 3.0
    model = KMeans(SPARSE_FROM, random_state=0).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(model.labels_, model.predict(X))


@pytest.mark.parametrize(("part", "value"), [("indices", WORDS), ("indptr", 10**9), ("data", np.nan)])
def test_damaged_sparse_centers_are_refused(X: Any, tmp_path: Path, part: str, value: Any) -> None:
    model = KMeans(SPARSE_FROM, random_state=0).fit(X)
    getattr(model.sparse_centers_, part)[-1] = value
    with pytest.raises((ValueError, DataError)):
        load(save(model, tmp_path / "model"))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_nested_batches_end_where_all_rows_do(X: Any, metric: str) -> None:
    model = NestedMiniBatchKMeans(400, metric=metric, batch_size=900, max_no_improvement=None, random_state=0).fit(X)
    assert (model.search_, model.init_, model.label_recall_) == ("exact", "k-means++", 1.0)
    assert (model.batch_size_, model.stopped_) == (len(model.labels_), "no label changed")
    assert vars(model).keys().isdisjoint(("cluster_centers_", "sums_"))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    rows = X / np.sqrt(X.multiply(X).sum(axis=1))[:, None] if metric == "cosine" else X
    member = sparse.csr_array((np.ones(len(model.labels_)), (model.labels_, np.arange(len(model.labels_)))))
    np.testing.assert_array_equal(model.counts_, member.sum(axis=1))
    np.testing.assert_allclose(model.sums_, (member @ rows).toarray(), rtol=1e-9, atol=1e-12)
    lengths = np.linalg.norm(model.sums_, axis=1) if metric == "cosine" else model.counts_
    np.testing.assert_allclose(model.cluster_centers_, model.sums_ / lengths[:, None], rtol=1e-9)
    all_at_once = KMeans(400, metric=metric, random_state=0).fit(X)
    assert model.inertia_ < 1.05 * all_at_once.inertia_


def test_nested_batches_are_smaller_at_first_and_epochs_end_them(X: Any) -> None:
    first, last = (
        NestedMiniBatchKMeans(400, batch_size=500, max_iter=n, random_state=0, n_init=2).fit(X) for n in (1, 20)
    )
    assert first.batch_size_ < X.shape[0] == last.batch_size_
    assert (first.n_iter_, first.stopped_) == (1, "max_iter")
    assert last.inertia_ < first.inertia_
    begun = NestedMiniBatchKMeans(400, random_state=0)
    for record in begun.fit_iter(X):
        assert begun.sparse_centers_.shape == (400, WORDS)
        assert begun.counts_.sum() == (0 if record.iteration == 0 else begun.batch_size_)
    assert begun.fit(X, sample_weight=np.full(X.shape[0], 2.0)).counts_.sum() == 2 * X.shape[0]


def test_nested_batches_of_threads_and_on_disk_are_the_same_and_go_on(X: Any, tmp_path: Path) -> None:
    one, two = (NestedMiniBatchKMeans(400, max_iter=3, random_state=0, n_threads=n).fit(X) for n in (1, 3))
    np.testing.assert_array_equal(one.cluster_centers_, two.cluster_centers_)
    save(one, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.sums_, one.sums_)
    for model in (one, again):
        model.partial_fit(X[:1000])
        assert "sparse_centers_" not in vars(model)
    np.testing.assert_array_equal(again.cluster_centers_, one.cluster_centers_)


def test_who_asks_for_bounds_or_for_the_papers_rule_gets_them(X: Any) -> None:
    for asked in ({"search": "yinyang"}, {"growth_threshold": 100.0}, {"algorithm": "mbatch"}, {"search": "cells"}):
        assert "sparse_centers_" not in vars(NestedMiniBatchKMeans(400, max_iter=1, random_state=0, **asked).fit(X))
    start = X[:400].toarray()
    assert NestedMiniBatchKMeans(400, init=start, max_iter=2).fit(X).init_ == "array"
