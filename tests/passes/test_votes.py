"""Votes by column: what sparse rows say about the centres is what dense rows say, and nothing is left half done."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from globular import NestedMiniBatchKMeans
from globular.algorithms.kmeans.nested import NestedOptions, nested_kmeans
from globular.algorithms.kmeans.votes import ColumnVotes
from globular.model import columns
from globular.model.nested import Batch, NestedSearch
from globular.passes.cpu import CpuShard
from globular.passes.cpu.by_column import column_means
from globular.passes.cpu.engine.score import column_scores
from globular.seam.among import Need
from globular.seam.passes import AssignBatch, Relabel
from makers import blobs, in_form, weights_for


def thin_rows(n: int, D: int, seed: int = 0) -> np.ndarray:
    """Rows of small whole numbers, mostly zero: sums of them are exact."""
    random = np.random.default_rng(seed)
    return random.integers(1, 5, size=(n, D)) * (random.uniform(size=(n, D)) < 0.3).astype(np.float64)


@pytest.mark.parametrize("bounds", [None, "elkan", "yinyang"])
@pytest.mark.parametrize("how", [{"rho": 5.0}, {"nested": False}, {"nested": False, "remove_old": False}])
def test_sparse_batches_go_the_way_of_dense_ones(bounds: Any, how: dict[str, Any]) -> None:
    X = thin_rows(600, 30)
    start = X[:25].copy()
    dense, thin = CpuShard(X, weights_for(600)), CpuShard(sparse.csr_array(X), weights_for(600))
    assert Need.SPARSE in dense.lacks and Need.SPARSE not in thin.lacks
    options = NestedOptions(80, bounds=bounds, max_epochs=6, reassignment_ratio=0.1, **how)
    runs = [nested_kmeans(shard, start, options, np.random.default_rng(0)) for shard in (dense, thin)]
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(dense.labels, thin.labels)
        np.testing.assert_allclose(two.model.centers, one.model.centers, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(two.model.votes.whole_sums(), one.model.votes.whole_sums(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(two.model.votes.counts, one.model.votes.counts, rtol=1e-12, atol=1e-12)
        assert two.objective == pytest.approx(one.objective, rel=1e-9)
        assert two.model.batch_size == one.model.batch_size


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_shifts_are_those_of_the_centres_and_never_less(seed: int, noisy: bool) -> None:
    random = np.random.default_rng(seed)
    X = thin_rows(60, 8, seed) + (random.normal(size=(60, 8)) if noisy else 0.0)
    shard = CpuShard(sparse.csr_array(X))
    votes = ColumnVotes.none(shard, X[random.integers(60, size=6)])
    for t in range(5):
        old = votes.dense_centers()
        batch = Batch(seed % 1000, int(random.integers(1, 61)), 60)
        change = shard.run(AssignBatch(votes.centers, votes.origin, batch, NestedSearch(restart=t == 0)))
        moved = votes.move(shard, change, unit=False)
        true = np.linalg.norm(votes.dense_centers() - old, axis=1)
        assert (moved.shifts >= true * (1.0 - 1e-12)).all()
        np.testing.assert_allclose(moved.shifts, true, rtol=1e-6, atol=1e-6 * np.abs(X).max())
        labels = shard.labels
        squared = ((X - old[labels]) ** 2).sum(axis=1)
        expected = [squared[labels == c].sum() for c in range(6)]
        np.testing.assert_allclose(moved.sse, expected, rtol=1e-9, atol=1e-9 * (X**2).sum())


def test_a_cluster_without_votes_keeps_its_place() -> None:
    X = np.eye(4)
    shard = CpuShard(sparse.csr_array(X))
    votes = ColumnVotes.none(shard, np.vstack([X[:2], [[9.0, 9.0, 9.0, 9.0]]]))
    batch, search = Batch(0, 4, 4), NestedSearch()
    votes.move(shard, shard.run(AssignBatch(votes.centers, votes.origin, batch, search)), unit=False)
    np.testing.assert_array_equal(votes.dense_centers()[2], [9.0] * 4)
    before = votes.dense_centers()[1]
    votes.place(np.array([0]), X[1:2])  # the other centre is as close to nothing any more
    shard.run(Relabel(np.array([-1, 1, 2, -1], dtype=np.int32)))
    votes.move(shard, shard.run(AssignBatch(votes.centers, votes.origin, batch, search)), unit=False)
    assert votes.sizes.sum() == 4 and votes.sizes[2] == 0
    if votes.sizes[1] == 0:
        np.testing.assert_array_equal(votes.dense_centers()[1], before)
    assert (votes.whole_sums()[votes.sizes == 0] == 0.0).all()


def test_lengths_are_summed_anew_before_rounding_is_felt(monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=400, C=6, D=5)
    found = []
    for share in (columns.NORM_SHARE, 1e-300):
        monkeypatch.setattr(columns, "NORM_SHARE", share)
        shard = CpuShard(in_form(X, "csr64"))
        steps = list(nested_kmeans(shard, X[:12], NestedOptions(50, rho=2.0), np.random.default_rng(0)))
        means = steps[-1].model.votes.centers
        np.testing.assert_allclose(means.squares, (means.places**2).sum(axis=0)[:12], rtol=1e-9)
        found.append(shard.labels.copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("form", ["float32", "csr32"])
def test_nobody_watching_changes_nothing(form: str) -> None:
    X = in_form(blobs(n=500, C=6, D=4), form)
    quiet, watched = (NestedMiniBatchKMeans(8, batch_size=60, random_state=0) for _ in range(2))
    quiet.fit(X)
    records = list(watched.fit_iter(X))
    assert len(records) == len(quiet.history_) and len(quiet.history_.iterations) == quiet.n_steps_ == watched.n_steps_
    for name in ("cluster_centers_", "labels_", "counts_", "sums_"):
        np.testing.assert_array_equal(getattr(quiet, name), getattr(watched, name))
    assert (quiet.inertia_, quiet.n_iter_, quiet.n_distances_) == (
        watched.inertia_,
        watched.n_iter_,
        watched.n_distances_,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 9, 20, 50, 64, 70, 130])
def test_products_of_sparse_rows_in_lines_are_products(k: int, dtype: type) -> None:
    rng = np.random.default_rng(k)
    X = sparse.random(40, 300, density=0.1, format="csr", dtype=dtype, random_state=0)
    centers, at = rng.normal(size=(k, 300)), rng.permutation(40)[:30]
    means = column_means(centers, 1)
    factors = rng.uniform(0.5, 2.0, size=k)
    scores, lengths = np.full((30, means.places.shape[1]), np.nan), np.empty(30)
    rows = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int64))
    column_scores(rows, at, means.places, factors, scores, lengths)
    dense = X.toarray().astype(np.float64)[at]
    np.testing.assert_allclose(scores[:, :k], -2.0 * dense @ (factors[:, None] * centers).T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lengths, np.linalg.norm(dense, axis=1))
