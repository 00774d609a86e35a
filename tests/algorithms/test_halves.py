"""Streams of `NestedMiniBatchKMeans`: swaps by halves of clusters, and a panel beside scikit-learn's mini-batches."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.cluster import MiniBatchKMeans

import globular
from globular import NestedMiniBatchKMeans
from globular.algorithms.kmeans import nested
from globular.datasets import many_blobs
from makers import Rows


def apart(n: int, k: int, D: int = 16, seed: int = 0) -> Rows:
    return many_blobs(n, k, D, random_state=seed).X


def streamed(model: Any, X: Any, size: int) -> Any:
    for begin in range(0, X.shape[0], size):
        model.partial_fit(X[begin : begin + size])
    return model


def by_cluster(seed: int) -> Rows:
    data = many_blobs(20_000, 50, 8, random_state=seed)
    return data.X[np.argsort(data.y, kind="stable")]


STREAMS: dict[str, tuple[int, int, Callable[[int], Rows]]] = {
    "apart": (100, 1000, lambda seed: apart(20_000, 100, seed=seed)),
    "one group": (50, 1000, lambda seed: np.random.default_rng(seed).normal(size=(20_000, 4)).astype(np.float32)),
    "sorted": (50, 1000, by_cluster),
    "first batch of k rows": (100, 100, lambda seed: apart(5000, 100, seed=seed)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_ends_no_higher_than_that_of_scikit_learn(name: str) -> None:
    k, size, make = STREAMS[name]
    ratios = []
    for seed in range(3):
        X = make(seed)
        ours, theirs = (
            streamed(kind(k, random_state=seed, compute_labels=False), X, size)
            for kind in (NestedMiniBatchKMeans, MiniBatchKMeans)
        )
        ratios.append(ours.score(X) / theirs.score(X))
    assert max(ratios) < 1.01 and np.mean(ratios) < 1.0


@pytest.mark.parametrize("start", ["fit", "partial_fit"])
def test_all_rows_at_once_find_clusters_that_lie_apart(start: str) -> None:
    X = apart(20_000, 100)
    model = getattr(NestedMiniBatchKMeans(100, random_state=0), start)(X)
    assert model.inertia_ / len(X) < 1.05 * 16


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_swaps_hand_votes_on_and_lose_none(metric: str) -> None:
    X, random = apart(4000, 40).astype(np.float64) + 1.0, np.random.default_rng(0)
    rows = X if metric == "euclidean" else X / np.linalg.norm(X, axis=1, keepdims=True)
    w = random.gamma(2.0, size=len(X))
    model, plain = (NestedMiniBatchKMeans(40, metric=metric, init=init, random_state=0) for init in ("random", X[:40]))
    for part in np.split(np.arange(len(X)), 4):
        model.partial_fit(X[part], sample_weight=w[part])
        plain.partial_fit(X[part], sample_weight=w[part])
        assert (model.half_counts_ <= model.counts_ * (1 + 1e-9)).all() and (model.half_counts_ >= 0).all()
    np.testing.assert_allclose(model.counts_.sum(), w.sum())
    np.testing.assert_allclose(model.sums_.sum(axis=0), w @ rows, rtol=1e-9)
    means = model.sums_ / model.counts_[:, None]
    means = means if metric == "euclidean" else means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-9, atol=1e-12)
    assert model.score(X) > 0.8 * plain.score(X)  # centres that were given are not swapped
    assert not hasattr(plain, "half_counts_")


def test_halves_and_random_numbers_go_on_after_saving_and_on_any_threads(tmp_path: Path) -> None:
    X = apart(6000, 60)
    options: dict[str, Any] = {"random_state": 3, "search": "cells", "reassignment_ratio": 0.1}
    model, threaded = (NestedMiniBatchKMeans(60, n_threads=n, **options) for n in (1, 2))
    streamed(model, X[:2000], 500)
    others = [globular.load(globular.save(model, tmp_path / "model")), pickle.loads(pickle.dumps(model))]
    for each in (model, *others):
        streamed(each, X[2000:], 500)
    for each in (*others, streamed(threaded, X, 500)):
        for name in ("cluster_centers_", "sums_", "counts_", "half_sums_", "half_counts_"):
            np.testing.assert_array_equal(getattr(each, name), getattr(model, name))
    assert not hasattr(model.fit(X), "half_sums_")
    model.partial_fit(X)
    model.half_sums_ = model.half_sums_[:5]
    with pytest.raises(ValueError, match="half_sums_"):
        model.partial_fit(X)


def test_every_batch_draws_other_cells(watch: Any) -> None:
    drawn = watch(nested, "draw_cells", lambda shard, centers, rng: rng.bit_generator.state["state"]["state"])
    streamed(NestedMiniBatchKMeans(30, search="cells", random_state=0), apart(2000, 30), 500)
    assert len(set(drawn)) == len(drawn) >= 4


@pytest.mark.parametrize("init", ["k-means++", "given"])
def test_weak_centres_of_a_stream_are_reassigned(init: str) -> None:
    X = apart(4000, 10)
    far = np.full((1, 16), 1e3)
    start: Any = np.concatenate([X[:9], far]) if init == "given" else init
    moved, kept = (
        streamed(NestedMiniBatchKMeans(10, init=start, reassignment_ratio=ratio, random_state=0), X, 400)
        for ratio in (0.05, 0.0)
    )
    assert np.abs(moved.cluster_centers_).max() < 100
    if init == "given":
        assert kept.cluster_centers_[9, 0] == 1e3 and moved.score(X) > kept.score(X)


def test_sparse_batches_are_swapped_as_dense_ones() -> None:
    X = np.maximum(apart(4000, 40).astype(np.float64), 0.0)
    dense, thin = (streamed(NestedMiniBatchKMeans(40, random_state=0), rows, 500) for rows in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(thin.counts_.sum(), 4000)
    assert thin.score(X) > 1.1 * dense.score(X)
