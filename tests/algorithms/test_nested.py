"""Nested mini-batches: Alg. 5 against its transcription, the paper's six algorithms, and the estimator's face."""

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import globular
from globular import NestedMiniBatchKMeans
from globular.algorithms.kmeans import nested_choices as choices
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.nested import RHO_TOGETHER, NestedOptions, Plateau, nested_kmeans
from globular.data.sources import ArraySource
from globular.errors import MemoryBudgetError
from globular.estimators import inputs
from globular.model.nested import Batch
from globular.passes import many
from globular.passes.cpu import CpuShard
from globular.passes.many import StreamShard
from makers import Rows, blobs, in_form, weights_for
from reference import batch as reference


def seed_of(rng_seed: int) -> int:
    """The seed of the order that the algorithm draws first."""
    return int(np.random.default_rng(rng_seed).integers(2**63))


def in_order(rows: Rows, rng_seed: int) -> tuple[Rows, np.ndarray]:
    """Rows in the order in which a run with that seed takes them, and their numbers."""
    n = len(rows)
    order = np.concatenate([Batch(seed_of(rng_seed), i + 1, n, begin=i).rows(n) for i in range(n)])
    return rows[order], order


@pytest.mark.parametrize("bounds", ["elkan", "yinyang", None])
@pytest.mark.parametrize(("rho", "together"), [(1.0, False), (100.0, False), (RHO_TOGETHER, True)])
def test_every_iteration_is_the_one_of_the_paper(bounds: Any, rho: float, together: bool) -> None:
    rows = blobs(n=240, C=9, D=3)
    start = rows[:12].copy()
    ordered, order = in_order(rows, 5)
    shard = CpuShard(rows)
    expected = reference.nmbatch(ordered, start, 30, rho, 200, together=together)
    n_doublings = 0
    options = NestedOptions(30, rho=rho, together=together, bounds=bounds)
    steps = nested_kmeans(shard, start, options, np.random.default_rng(5))
    for step, truth in zip(steps, expected, strict=False):
        np.testing.assert_array_equal(shard.labels[order], truth.labels)
        np.testing.assert_allclose(step.model.centers, truth.centers, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(step.model.votes.counts, truth.v)
        np.testing.assert_allclose(step.model.votes.whole_sums(), truth.S, rtol=1e-9, atol=1e-8)
        assert step.objective == pytest.approx(truth.sse.sum() / truth.batch_size * 240, rel=1e-9)
        assert (step.model.batch_size, step.n_changed) == (truth.batch_size, truth.n_changed)
        n_doublings += truth.next_size > truth.batch_size
    assert step.stopped == "no label changed" and n_doublings == 3


def runs_alike(matrix: Any, start: Rows, weights: Rows | None, unit: bool, **options: Any) -> list[int]:
    """Run with each kind of bounds; every iteration must be the same. Returns the distances of each run."""
    shards = [CpuShard(matrix, weights, unit_rows=unit) for _ in range(3)]
    kinds: tuple[Any, ...] = (None, "elkan", "yinyang")
    runs = [
        nested_kmeans(
            shard, start, NestedOptions(bounds=kind, unit_centers=unit, **{"max_epochs": 40, **options}),
            np.random.default_rng(0),
        )
        for shard, kind in zip(shards, kinds, strict=True)
    ]  # fmt: skip
    totals = [0, 0, 0]
    for steps in zip(*runs, strict=True):
        for i, step in enumerate(steps):
            np.testing.assert_array_equal(shards[i].labels, shards[0].labels)
            assert step.model.centers.tobytes() == steps[0].model.centers.tobytes()
            assert (step.objective, step.stopped) == (steps[0].objective, steps[0].stopped)
            totals[i] += step.n_distances
    return totals


@pytest.mark.parametrize("unit", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "csr32"])
def test_bounds_change_nothing(form: str, unit: bool) -> None:
    matrix = in_form(blobs(n=300, C=12, D=4), form)
    start = CpuShard(matrix, unit_rows=unit).take(np.arange(0, 300, 14))
    runs_alike(matrix, start, weights_for(300), unit, b0=40, rho=10.0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4), st.booleans(), st.booleans())
def test_bounds_change_nothing_on_rows_with_duplicates(seed: int, n: int, D: int, unit: bool, noisy: bool) -> None:
    random = np.random.default_rng(seed)
    X = random.integers(-2, 3, size=(n, D)) + noisy * random.normal(size=(n, D))
    X = X.astype(random.choice([np.float32, np.float64]))
    start = CpuShard(X, unit_rows=unit).take(random.integers(n, size=random.integers(1, n + 1)))
    b0, rho, together = int(random.integers(1, n + 1)), float(random.choice([0.1, 1, 100])), bool(random.integers(2))
    runs_alike(X, start, None, unit, b0=b0, rho=rho, together=together)


def test_bounds_save_most_distances() -> None:
    X = blobs(n=4000, C=40, D=8, spread=0.5)
    plain, elkan, yinyang = runs_alike(X, X[:50], None, False, b0=500)
    assert elkan < 0.1 * plain and yinyang < 0.5 * plain


@pytest.mark.parametrize("bounds", [None, "elkan", "yinyang"])
def test_a_batch_of_all_rows_is_lloyd(bounds: Any) -> None:
    X = blobs(n=400, C=10, D=4)
    one, two = CpuShard(X), CpuShard(X)
    exact = lloyd(one, X[:20], KMeansOptions(max_iter=100))
    nested = nested_kmeans(two, X[:20], NestedOptions(400, bounds=bounds), np.random.default_rng(0))
    for expected, found in zip(exact, nested, strict=True):
        np.testing.assert_array_equal(two.labels, one.labels)
        np.testing.assert_allclose(found.model.centers, expected.model, rtol=1e-10, atol=1e-10)
        assert found.objective == pytest.approx(expected.objective, rel=1e-10)
        assert (found.n_changed, found.stopped) == (expected.n_changed, expected.stopped)


def test_mbatch_is_sculleys() -> None:
    X, rng = blobs(n=500, C=8, D=3), np.random.default_rng(3)
    options = NestedOptions(60, nested=False, remove_old=False, bounds=None, max_epochs=3)
    S, v, centers = np.zeros((10, 3)), np.zeros(10), X[:10].copy()
    for step in nested_kmeans(CpuShard(X), X[:10], options, np.random.default_rng(3)):
        rows = X[Batch(int(rng.integers(2**63)), 60, 500).rows(500)]
        closest = ((rows[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        np.add.at(S, closest, rows)
        np.add.at(v, closest, 1)
        energy = ((rows - centers[closest]) ** 2).sum(axis=1).mean()
        centers[v > 0] = S[v > 0] / v[v > 0, None]
        np.testing.assert_allclose(step.model.centers, centers, rtol=1e-9, atol=1e-9)
        assert step.objective == pytest.approx(500 * energy, rel=1e-9)
    assert step.stopped == "max_iter" and step.model.n_visits == 1500 == 60 * step.iteration


def test_removal_leaves_one_vote_for_every_row_that_was_visited() -> None:
    X = blobs(n=300, C=6, D=3)
    options = NestedOptions(50, nested=False, bounds=None, max_epochs=8)
    shard = CpuShard(X)
    for step in nested_kmeans(shard, X[:9], options, np.random.default_rng(0)):
        seen = shard.labels >= 0
        member = shard.labels[seen][:, None] == np.arange(9)
        np.testing.assert_array_equal(step.model.votes.counts, member.sum(axis=0))
        np.testing.assert_allclose(step.model.votes.whole_sums(), member.T @ X[seen], rtol=1e-9, atol=1e-9)
    assert seen.all()


def test_a_cluster_without_rows_keeps_its_place_until_all_rows_are_in() -> None:
    X = np.concatenate([blobs(n=100, C=1, D=2), blobs(n=100, C=1, D=2) + 50])
    start = np.concatenate([X[[0, 100]], [[1e6, 1e6]]])
    for step in nested_kmeans(CpuShard(X, weights_for(200)), start, NestedOptions(50), np.random.default_rng(0)):
        if step.model.batch_size < 200:
            np.testing.assert_array_equal(step.model.centers[2], [1e6, 1e6])
            assert step.model.votes.counts[2] == 0.0
    assert np.abs(step.model.centers).max() < 100 and (step.model.votes.counts > 0).all()


def test_weak_centres_move_to_rows() -> None:
    X = blobs(n=400, C=4, D=2)
    start = np.concatenate([X[:6], np.full((4, 2), 1e5)])
    options = NestedOptions(100, bounds=None, reassignment_ratio=0.02, max_epochs=30)
    shard = CpuShard(X)
    for step in nested_kmeans(shard, start, options, np.random.default_rng(1)):
        votes = step.model.votes
        # one vote per row that has a label, also after centres moved
        np.testing.assert_array_equal(votes.counts, np.bincount(shard.labels[shard.labels >= 0], minlength=10))
    assert np.abs(step.model.centers).max() < 1e3 and (votes.counts > 0).all()


def test_all_centres_together_do_not_wait_for_the_last_row_of_a_batch() -> None:
    X = blobs(n=4000, C=15, D=5, spread=1.0)
    ends = {}
    for name, how in {"each": {}, "together": {"rho": RHO_TOGETHER, "together": True}}.items():
        steps = list(nested_kmeans(CpuShard(X), X[:25], NestedOptions(500, **how), np.random.default_rng(0)))
        grew = [a for a, b in itertools.pairwise(steps) if b.model.batch_size > a.model.batch_size]
        ends[name] = len(steps), [step.n_changed for step in grew]
        assert steps[-1].stopped == "no label changed"
    assert len(ends["each"][1]) == len(ends["together"][1]) == 3
    assert max(ends["each"][1]) == 0 < min(ends["together"][1]) and ends["together"][0] < ends["each"][0]


def test_patience_starts_anew_when_the_batch_grows() -> None:
    plateau = Plateau(NestedOptions(10, max_no_improvement=2, min_gain=0.1))
    assert [plateau.after(e, 10) for e in (5.0, 4.0, 3.9)] == [False, False, False]
    assert [plateau.after(e, 20) for e in (6.0, 5.0, 5.0, 5.0)] == [False, False, False, True]


def test_streamed_batches_are_held_and_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=900, C=9, D=4).astype(np.float32)
    runs = []
    for held in (0, 3000, 10**9):
        monkeypatch.setattr(many, "HELD_BYTES", held)
        shard = StreamShard(ArraySource(X), weights_for(900), rows_per_part=64)
        run = nested_kmeans(shard, X[:15].astype(float), NestedOptions(100, run=7), np.random.default_rng(0))
        runs.append([(step.model.centers.tobytes(), step.n_distances, shard.labels.tobytes()) for step in run])
    assert runs[0] == runs[1] == runs[2] and len(runs[0]) > 10


def test_tol_reads_no_second_sample() -> None:
    X = blobs(n=3000, C=20, D=4)
    one, other = (
        NestedMiniBatchKMeans(20, batch_size=100, init_size=300, tol=tol, random_state=0).fit(X) for tol in (0.0, 1e-12)
    )
    assert [record.objective for record in one.history_[:9]] == [record.objective for record in other.history_[:9]]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_partial_fit_counts_every_row_once(metric: str) -> None:
    X, weights = blobs(n=1000, C=8, D=3), weights_for(1000)
    model = NestedMiniBatchKMeans(12, metric=metric, init=X[:12], random_state=0)
    rows = X if metric == "euclidean" else X / np.linalg.norm(X, axis=1, keepdims=True)
    centers, S, v = None, np.zeros((12, 3)), np.zeros(12)
    for a in range(0, 1000, 250):
        before = rows[:12] if centers is None else centers
        closest = ((rows[a : a + 250, None] - before) ** 2).sum(axis=2).argmin(axis=1)
        np.add.at(S, closest, rows[a : a + 250] * weights[a : a + 250, None])
        np.add.at(v, closest, weights[a : a + 250])
        model.partial_fit(X[a : a + 250], sample_weight=weights[a : a + 250])
        divisor = v if metric == "euclidean" else np.linalg.norm(S, axis=1)
        centers = np.where(v[:, None] > 0, S / np.where(v > 0, divisor, 1)[:, None], before)
        np.testing.assert_allclose(model.cluster_centers_, centers, rtol=1e-9, atol=1e-9)
        assert len(model.labels_) == 250
    np.testing.assert_allclose(model.counts_, v)
    assert model.n_steps_ == 4


def test_starts_are_compared_on_the_init_rows() -> None:
    def some_rows(X: Rows, n_clusters: int, random_state: np.random.RandomState) -> Rows:
        return X[random_state.choice(len(X), n_clusters, replace=False)]

    X = blobs(n=5000, C=30, D=2, spread=0.1)
    one, many = (
        NestedMiniBatchKMeans(30, init=some_rows, n_init=n, init_size=500, max_iter=1, batch_size=5000, random_state=1)
        for n in (1, 30)
    )
    first = [next(iter(model.fit_iter(X))).objective for model in (one, many)]
    assert first[1] < first[0]
    with pytest.warns(RuntimeWarning, match=r"init_size=20 should be larger than n_clusters=30"):
        few = NestedMiniBatchKMeans(30, init_size=20, random_state=0).fit(X)
    enough = NestedMiniBatchKMeans(30, init_size=90, random_state=0).fit(X)
    np.testing.assert_array_equal(few.cluster_centers_, enough.cluster_centers_)


def test_when_it_stops() -> None:
    X = blobs(n=3000, C=30, D=5)
    base = {"n_clusters": 30, "batch_size": 200, "random_state": 0}
    assert NestedMiniBatchKMeans(**base).fit(X).stopped_ == "no label changed"
    loose = NestedMiniBatchKMeans(tol=1e-1, **base).fit(X)
    assert loose.stopped_ == "centres moved less than tol" and loose.batch_size_ == 3000
    short = NestedMiniBatchKMeans(max_iter=2, **base).fit(X)
    assert short.stopped_ == "max_iter" and 2 <= short.n_iter_ <= 3
    random_batches = NestedOptions(200, nested=False, bounds=None, max_epochs=20)
    *_, last = nested_kmeans(CpuShard(X), X[:30], random_batches, np.random.default_rng(0))
    assert last.stopped == "max_iter" and last.iteration == 300
    assert NestedMiniBatchKMeans(callbacks=lambda model, record: record.iteration == 4, **base).fit(X).n_steps_ == 4


def test_labels_of_rows_that_no_batch_has_had_are_minus_one() -> None:
    X = blobs(n=1000, C=5, D=3)
    model = NestedMiniBatchKMeans(5, batch_size=100, random_state=0)
    for record in model.fit_iter(X):
        assert (model.labels_ >= 0).sum() == model.batch_size_ if record.labels_all_rows else model.batch_size_ == 0
        assert record.quantization_error == pytest.approx(model.inertia_ / 1000)
    assert (model.labels_ >= 0).all() and len(model.history_.iterations) == model.n_steps_


def test_many_clusters_search_cells() -> None:
    X = globular.datasets.many_blobs(30_000, 1000, 8, random_state=0).X
    model = NestedMiniBatchKMeans(1000, random_state=0, max_iter=10).fit(X)
    assert model.search_ == "cells" and model.label_recall_ > 0.9
    visits = sum(record.n_distances for record in model.history_.iterations) / (model.n_iter_ * len(X))
    assert visits < 0.2 * 1000  # distances per row and visit, against k
    exact = NestedMiniBatchKMeans(1000, search="exact", random_state=0, max_iter=10).fit(X)
    assert exact.search_ == "exact" and model.inertia_ < 1.03 * exact.inertia_


def test_auto_chooses_bounds_by_their_memory(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    X = blobs(n=2000, C=10, D=40)
    chosen = {}
    for memory in (2**40, 8 * 2000 * 30, 8 * 2000):
        monkeypatch.setattr("globular.estimators.nested.physical_memory", lambda memory=memory: memory)
        with caplog.at_level(logging.INFO, logger="globular"):
            chosen[memory] = NestedMiniBatchKMeans(50, max_iter=1, random_state=0).fit(X).search_
    assert list(chosen.values()) == ["elkan", "yinyang", "exact"]
    assert "bounds of search='elkan': up to 0.4 MiB" in caplog.text
    assert NestedMiniBatchKMeans(50, max_iter=1, random_state=0).fit(X[:, :3]).search_ == "exact"


def test_bounds_of_streamed_rows_have_a_budget_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=2000, C=10, D=40)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(choices, "STREAMED_BOUNDS", 2000 * 4 * 11)  # ten groups of five: yinyang's just fit
    model = NestedMiniBatchKMeans(50, max_iter=1, random_state=0)
    assert model.fit(tmp_path / "X.npy").search_ == "elkan"  # read whole
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 1e-9)
    assert model.fit(tmp_path / "X.npy").search_ == "yinyang"
    monkeypatch.setattr(choices, "STREAMED_BOUNDS", 2000)
    assert model.fit(tmp_path / "X.npy").search_ == "exact"


def test_rows_out_of_memory_have_bounds_by_that_budget_wherever_they_are() -> None:
    """Dask workers as well as streams: the memory of this process says nothing about theirs."""
    here, elsewhere = (choices.NestedSettings(50, 10**7, 40, 4, there, not there) for there in (True, False))
    assert here.choose_search(2.0**40) == "elkan" and elsewhere.choose_search(2.0**40) == "yinyang"


def test_auto_leaves_out_bounds_that_cost_more_than_they_save(monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=2000, C=10, D=40)
    # room for yinyang's bounds, not for Elkan's: 500 clusters have 10 groups in 40 columns, none to speak of in 3
    chosen = {}
    for n_clusters, n_columns in ((150, 3), (220, 40), (500, 40), (500, 3)):
        monkeypatch.setattr("globular.estimators.nested.physical_memory", lambda k=n_clusters: 8 * 2000 * k)
        model = NestedMiniBatchKMeans(n_clusters, max_iter=1, random_state=0).fit(X[:, :n_columns])
        chosen[n_clusters, n_columns] = model.search_
    assert list(chosen.values()) == ["yinyang", "yinyang", "exact", "exact"]


def test_impossible_bounds_are_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=5000, C=10, D=2)
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 600_000)
    with pytest.raises(MemoryBudgetError, match=r"search='elkan'.*search='exact'"):
        NestedMiniBatchKMeans(50, search="elkan").fit(X)


@pytest.mark.realdata
def test_real_rows_full_of_duplicates_and_large_values(real_data: Any) -> None:
    X = np.ascontiguousarray(real_data("kddcup99_10pct")["X"][::100])
    runs_alike(X, np.unique(X, axis=0)[::60].astype(np.float64), None, False, b0=500)


@pytest.mark.realdata
def test_sparse_text(real_data: Any) -> None:
    file = real_data("newsgroups20", "newsgroups20_tfidf")
    X = sparse.csr_matrix((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))[::16]
    start = X[:12].toarray().astype(np.float64)
    for unit in (False, True):
        plain, elkan, _ = runs_alike(X, start, None, unit, b0=500, max_epochs=8)
        assert elkan < plain


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("search", ["elkan", "yinyang", "exact", "cells"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_no_cluster_is_empty_at_the_end(search: str, metric: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    X = 20 * rng.normal(size=(12, 4))[rng.integers(12, size=800)] + rng.normal(size=(800, 4))
    start = np.concatenate([X[:30], np.full((20, 4), 1e3)])  # no row will come to the last twenty, or to one of them
    weights = rng.integers(0, 3, size=800).astype(float) if kind == "weighted" else None
    model = NestedMiniBatchKMeans(50, batch_size=200, init=start, metric=metric, random_state=0, search=search)
    model.fit(sparse.csr_array(X) if kind == "sparse" else X, sample_weight=weights)
    held = np.bincount(model.labels_, weights=weights, minlength=50)
    assert (held > 0).all() and (model.counts_ > 0).all()


@pytest.mark.parametrize("weight", [1.0, 1e100])
def test_rows_without_a_direction_and_large_weights_give_finite_objectives(weight: float) -> None:
    rng = np.random.default_rng(0)
    for seed in range(6):
        X = rng.random((11, 1)) < 0.4  # of both values, zero among them
        model = NestedMiniBatchKMeans(4, metric="cosine", search="cells", random_state=seed)
        with pytest.warns(ConvergenceWarning, match="distinct"):
            model.fit(X, sample_weight=weight * rng.uniform(0.001, 1, size=11))
        assert np.isfinite(model.history_.column("objective")).all() and np.isfinite(model.cluster_centers_).all()


def test_rows_keep_the_labels_that_their_batches_found() -> None:
    """A search from nothing in a few cells would find fewer closest centres than all batches together have."""
    X = np.random.default_rng(1).normal(size=(2600, 20))
    model = NestedMiniBatchKMeans(600, search="cells", max_iter=10, random_state=0).fit(X)
    assert model.batch_size_ == 2600 and model.label_recall_ > 0.95
    assert len(np.unique(model.labels_)) == 600
