"""`KMeans`, the face: attributes, every form of input, parameters, running, and scikit-learn's conventions."""

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import cosine_distances

from globular import KMeans, NestedMiniBatchKMeans, VariationalKMeans
from globular.algorithms.seeding.named import STARTS
from globular.callbacks import Callback
from globular.data.open import as_source
from globular.errors import DataError, MemoryBudgetError
from globular.estimators import inputs
from globular.model.history import History
from makers import FORMS, blobs, in_form, weights_for
from reference import assign as reference


def assert_same_model(one: KMeans, two: KMeans) -> None:
    np.testing.assert_array_equal(one.labels_, two.labels_)
    np.testing.assert_array_equal(one.cluster_centers_, two.cluster_centers_)
    assert one.inertia_ == two.inertia_ and one.n_iter_ == two.n_iter_


# ---------------------------------------------------------------- attributes
def test_attributes() -> None:
    X = blobs(n=300, C=8)
    model = KMeans(10, random_state=0)
    assert model.fit(X) is model
    assert model.cluster_centers_.shape == (10, 4) and model.cluster_centers_.dtype == np.float64
    assert model.labels_.shape == (300,) and model.labels_.dtype == np.int32
    assert set(model.labels_.tolist()) == set(range(10))
    assert model.n_features_in_ == 4 and not hasattr(model, "feature_names_in_")
    assert isinstance(model.history_, History) and len(model.history_.iterations) == model.n_iter_
    assert model.algorithm_ == "exact" and model.init_ in STARTS and model.stopped_
    own = np.sum((X - model.cluster_centers_[model.labels_]) ** 2)
    assert model.inertia_ == pytest.approx(own, rel=1e-12) and isinstance(model.inertia_, float)
    assert model.n_distances_ >= sum(record.n_distances for record in model.history_)


def test_history() -> None:
    X, weights = blobs(n=400, C=8), weights_for(400)
    model = KMeans(20, algorithm="lloyd", random_state=1, tol=0).fit(X, sample_weight=weights)
    records = list(model.history_.iterations)
    assert [record.iteration for record in records] == list(range(1, model.n_iter_ + 1))
    assert (np.diff(model.history_.column("objective")) <= 1e-9).all()  # seeds included: they are of all rows here
    assert (np.diff(model.history_.column("seconds")) >= 0).all() and records[0].seconds > 0
    n_rows = np.count_nonzero(weights)
    assert records[0].n_changed == n_rows and records[0].n_distances == n_rows * 20
    assert records[-1].n_changed == 0 and model.stopped_ == "no label changed"
    errors = model.history_.column("quantization_error") * weights.sum()
    np.testing.assert_allclose(errors, model.history_.column("objective"), rtol=1e-12)
    assert model.inertia_ == pytest.approx(records[-1].objective, rel=1e-12)


# ---------------------------------------------------------------- input
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_the_model_of_its_float64_rows(form: str) -> None:
    matrix = in_form(blobs(n=200, C=8), form)
    start = np.random.default_rng(0).normal(size=(6, 4))
    model = KMeans(6, init=start, max_iter=20).fit(matrix)
    expected = KMeans(6, init=start, max_iter=20).fit(reference.as_seen(matrix))
    wide = model.cluster_centers_.dtype == np.float64
    assert wide == (form not in ("float32", "float16", "uint8", "bool", "csr32"))
    np.testing.assert_allclose(
        model.cluster_centers_, expected.cluster_centers_, rtol=1e-12 if wide else 1e-6, atol=1e-6
    )
    if form != "bool":  # full of ties, which centres rounded to float32 may break
        np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.predict(matrix), model.labels_)
    assert model.transform(matrix).shape == (200, 6)


def test_other_containers() -> None:
    X = blobs(n=100)
    expected = KMeans(5, random_state=0).fit(X)
    for given in (X.tolist(), sparse.csc_matrix(X), sparse.coo_array(X), sparse.lil_matrix(X), X.astype(object)):
        model = KMeans(5, random_state=0).fit(given)
        np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-10)
        np.testing.assert_array_equal(model.labels_, expected.labels_)


@pytest.mark.parametrize("streamed", [False, True], ids=["in memory", "streamed"])
def test_files_sources_and_memory_maps(tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X = blobs(n=300, C=8).astype(np.float32)
    weights = weights_for(300)
    expected = KMeans(7, random_state=0, n_init=2).fit(X, sample_weight=weights)
    if streamed:
        monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
        monkeypatch.setattr("globular.passes.many.PART_BYTES", 64 * 16)
    path = tmp_path / "rows.npy"
    np.save(path, X)
    for given in (path, str(path), as_source(path), np.load(path, mmap_mode="r")):
        model = KMeans(7, random_state=0, n_init=2).fit(given, sample_weight=weights)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-6)
        np.testing.assert_array_equal(model.predict(given), expected.labels_)
        assert type(model.labels_) is np.ndarray
    np.testing.assert_array_equal(model.transform(path), model.transform(X))
    if streamed:
        with pytest.raises(ValueError, match="in memory"):
            KMeans(7, init=lambda X, k, random_state: X[:k]).fit(path)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_transform_of_rows_larger_than_memory(metric, dtype, tmp_path, monkeypatch):
    X = (20 + blobs(n=300, C=8)).astype(dtype)
    np.save(tmp_path / "rows.npy", X)
    model = KMeans(7, metric=metric, random_state=0).fit(X)
    expected = model.transform(X)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    found = model.transform(tmp_path / "rows.npy")
    assert found.dtype == model.cluster_centers_.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if X.dtype.kind == "f":
        X[211, 1] = np.nan
        np.save(tmp_path / "rows.npy", X)
        with pytest.raises(DataError, match="NaN or infinity in row 211"):
            model.transform(tmp_path / "rows.npy")
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 2000)
    with pytest.raises(MemoryBudgetError, match="distances of all rows to all centres would take"):
        model.transform(tmp_path / "rows.npy")


def test_data_frames_and_feature_names() -> None:
    frame = pd.DataFrame(blobs(n=100), columns=list("abcd"))
    model = KMeans(5, random_state=0).fit(frame)
    assert model.feature_names_in_.tolist() == list("abcd")
    np.testing.assert_array_equal(model.labels_, KMeans(5, random_state=0).fit(frame.to_numpy()).labels_)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a", "c", "d"]])
    assert model.get_feature_names_out().tolist() == [f"kmeans{i}" for i in range(5)]
    table = model.set_output(transform="pandas").transform(frame)
    assert isinstance(table, pd.DataFrame) and table.columns.tolist() == [f"kmeans{i}" for i in range(5)]
    np.testing.assert_array_equal(table.to_numpy().argmin(axis=1), model.labels_)


def test_input_is_left_alone() -> None:
    X, weights = blobs(n=100), weights_for(100)
    start = X[:4].copy()
    copies = X.copy(), weights.copy(), start.copy()
    for metric in ("euclidean", "cosine"):
        KMeans(4, init=start, metric=metric).fit(X, sample_weight=weights)
    for array, copy in zip((X, weights, start), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_centers_are_no_view_of_the_start() -> None:
    start = np.array([[0.0], [1.0]])
    model = KMeans(2, init=start).fit(np.array([[0.0], [1.0]]))
    model.cluster_centers_[:] = 9.0
    np.testing.assert_array_equal(start, [[0.0], [1.0]])


# ---------------------------------------------------------------- edges
@pytest.mark.parametrize("init", STARTS)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_every_seeding_on_little_data(init: str, metric: str) -> None:
    X = blobs(n=40, D=3)
    for n_clusters in (1, 3, 40):
        model = KMeans(n_clusters, init=init, metric=metric, random_state=0).fit(X)
        assert len(np.unique(model.labels_)) == n_clusters
        assert model.init_ == (init if init != "auto" else "k-means++")


@pytest.mark.parametrize("X", [[[5.0]], [[0.0]], [[1.0, 2.0, 3.0]]])
def test_one_row(X: list[list[float]]) -> None:
    model = KMeans(1, algorithm="lloyd").fit(X)
    np.testing.assert_array_equal(model.cluster_centers_, X)
    assert model.labels_.tolist() == [0] and model.inertia_ == 0.0
    assert KMeans(1, metric="cosine", algorithm="lloyd").fit(X).labels_.tolist() == [0]


def test_one_column_and_constant_columns() -> None:
    X = np.concatenate([np.zeros(20), np.ones(20)])[:, None]
    assert sorted(KMeans(2, random_state=0).fit(X).cluster_centers_.ravel().tolist()) == [0.0, 1.0]
    padded = np.hstack([X, np.full((40, 3), 7e8)])
    model = KMeans(2, random_state=0).fit(padded)
    assert model.inertia_ == 0.0
    np.testing.assert_array_equal(model.cluster_centers_[:, 1:], 7e8)


@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        (np.float64, 1.0, 1e8), (np.float64, 1.0, -1e8), (np.float32, 7e8, 0), (np.float32, 1e30, 0),
        (np.float32, 1e-30, 0), (np.float32, 1e-42, 0), (np.float64, 1e-135, 0), (np.float64, 1e150, 0),
    ],
)  # fmt: skip
def test_scales_and_offsets(dtype: type, scale: float, offset: float) -> None:
    X = blobs(n=200, C=6, D=3, spread=0.3)
    moved = (scale * X + offset).astype(dtype)
    exact = moved.astype(np.float64)
    start = exact[:6] if dtype is np.float64 else moved[:6].astype(np.float64)
    model = KMeans(6, init=start, algorithm="lloyd", tol=0).fit(moved)
    plain = KMeans(6, init=(exact[:6] - offset) / scale, tol=0).fit((exact - offset) / scale)
    np.testing.assert_array_equal(model.labels_, plain.labels_)
    assert model.inertia_ == pytest.approx(scale**2 * plain.inertia_, rel=1e-5)
    nearest = model.transform(moved).astype(np.float64).min(axis=1)
    own = np.sqrt(np.sum((exact - model.cluster_centers_[model.labels_].astype(np.float64)) ** 2, axis=1))
    step = float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(nearest, own, rtol=1e-4, atol=1e-4 * scale + step)


@pytest.mark.parametrize("init", ["k-means++", "afk-mc2", "k-means||", "hierarchical", "random"])
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_seedings_at_extreme_scales(init: str, scale: float) -> None:
    X = (scale * blobs(n=200, C=6, D=3)).astype(np.float32)
    model = KMeans(8, init=init, random_state=0).fit(X)
    assert len(np.unique(model.labels_)) == 8 and np.isfinite(model.inertia_)


@pytest.mark.parametrize("estimator", [KMeans, VariationalKMeans, NestedMiniBatchKMeans])
def test_differences_whose_squares_underflow_are_refused(estimator: type) -> None:
    X = blobs(n=60)
    for rows in (1e-140 * X, sparse.csr_matrix(1e-165 * X)):
        with pytest.raises(ValueError, match=r"X .*underflow.*scale X up"):
            estimator(3, random_state=0).fit(rows)
    same = np.full((60, 2), 1e-160)  # nothing is lost of rows that are all alike
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert estimator(2, random_state=0).fit(same).inertia_ == 0.0
    assert estimator(3, random_state=0).fit(2.0**-450 * X).inertia_ > 0.0


SPARSE = [
    KMeans(8, algorithm="lloyd"), KMeans(8, algorithm="probing"), VariationalKMeans(8),
    NestedMiniBatchKMeans(8), NestedMiniBatchKMeans(8, search="elkan"), NestedMiniBatchKMeans(8, search="cells"),
]  # fmt: skip


@pytest.mark.parametrize("model", SPARSE, ids=str)
@pytest.mark.parametrize("offset", [1e4, 1e8])
def test_sparse_rows_far_from_the_origin(model: Any, offset: float) -> None:
    X = blobs(n=400, C=8, D=3) + offset
    model = clone(model).set_params(random_state=0)
    model.fit(sparse.csr_matrix(X))
    distances = reference.squared_distances(X, model.cluster_centers_)
    np.testing.assert_array_equal(model.predict(sparse.csr_matrix(X)), distances.argmin(axis=1))
    assert model.inertia_ == pytest.approx(distances[np.arange(400), model.labels_].sum(), rel=1e-9)
    # products that nominate cells are rounded: probing finds fewer of the closest ones
    assert model.inertia_ <= 1.1 * clone(model).fit(X).inertia_
    if isinstance(model, KMeans):
        objectives = np.array(model.history_.column("objective"))
        assert (np.diff(objectives) <= 1e-9 * objectives[0]).all()


def test_one_long_sparse_row_does_not_spoil_the_others() -> None:
    X = np.array([[1e8, 0], [1e8 + 1, 0], [0, 3], [0, 4]])
    assert KMeans(2, random_state=0).fit(sparse.csr_matrix(X)).inertia_ == 1.0
    # a column that dwarfs the others, in which rows still differ
    X = np.array([[1e9, 0.0, 0.5], [1e9, 0.5, 0.0], [1e9 + 1, 0.0, 0.5], [1e9, 0.0, 0.625]])
    model = KMeans(3, init=X[:3], max_iter=1).fit(sparse.csr_matrix(X))
    np.testing.assert_array_equal(model.labels_, [0, 1, 2, 0])


# ---------------------------------------------------------------- metric
def test_cosine_is_blind_to_length() -> None:
    X = blobs(n=200, C=6)
    lengths = np.random.default_rng(0).uniform(0.1, 10.0, size=(200, 1))
    one, two = (KMeans(6, metric="cosine", random_state=0).fit(rows) for rows in (X, lengths * X))
    np.testing.assert_array_equal(one.labels_, two.labels_)
    np.testing.assert_allclose(one.cluster_centers_, two.cluster_centers_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(one.cluster_centers_, axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e160, 1e300])
def test_cosine_of_rows_whose_squares_leave_the_range(scale: float) -> None:
    X = blobs(n=200, C=6)
    for form in (np.asarray, sparse.csr_matrix):
        one, two = (KMeans(6, metric="cosine", random_state=0).fit(form(rows)) for rows in (X, scale * X))
        np.testing.assert_array_equal(one.labels_, two.labels_)
        assert two.inertia_ == pytest.approx(one.inertia_, rel=1e-9)
        np.testing.assert_allclose(two.transform(form(scale * X)), one.transform(form(X)), atol=1e-12)
        assert two.score(form(scale * X)) == pytest.approx(-one.inertia_, rel=1e-9)


def test_cosine_refuses_rows_that_have_no_unit_length() -> None:
    X = blobs(n=20)
    X[3] *= 1e-310
    with pytest.raises(ValueError, match=r"X has rows whose length.*scale"):
        KMeans(2, metric="cosine").fit(X)


def test_cosine_optimality() -> None:
    X = blobs(n=300, C=8)
    model = KMeans(8, metric="cosine", random_state=0, tol=0).fit(X)
    directions = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_array_equal(model.labels_, np.argmax(directions @ model.cluster_centers_.T, axis=1))
    for c in range(8):
        total = directions[model.labels_ == c].sum(axis=0)
        np.testing.assert_allclose(model.cluster_centers_[c], total / np.linalg.norm(total), rtol=1e-10)
    np.testing.assert_allclose(model.transform(X), cosine_distances(X, model.cluster_centers_), atol=1e-12)
    # ‖x − m‖² = 2 (1 − cos) for unit vectors
    assert model.inertia_ == pytest.approx(2 * model.transform(X).min(axis=1).sum(), rel=1e-10)


def test_cosine_takes_rows_of_zeros() -> None:
    X = blobs(n=50)
    X[::10] = 0.0
    for matrix in (X, sparse.csr_matrix(X)):
        model = KMeans(4, metric="cosine", random_state=0).fit(matrix)
        assert np.isfinite(model.cluster_centers_).all() and np.isfinite(model.inertia_)
        np.testing.assert_array_equal(model.predict(matrix), model.labels_)


# ---------------------------------------------------------------- starts and randomness
def test_random_state_is_used_and_the_global_one_is_not() -> None:
    X = blobs(n=300, C=20)
    np.random.seed(3)  # noqa: NPY002  (the global state is what must not matter)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = (KMeans(15, random_state=seed, max_iter=1).fit(X) for seed in (0, 1))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert not np.array_equal(one.cluster_centers_, two.cluster_centers_)
    state = np.random.RandomState(0)
    first, second = (KMeans(15, random_state=state, max_iter=1).fit(X) for _ in range(2))
    assert_same_model(first, one)
    assert not np.array_equal(second.cluster_centers_, first.cluster_centers_)


def test_init_as_array_or_callable() -> None:
    X = blobs(n=100)

    def first_rows(X: Any, n_clusters: int, random_state: np.random.RandomState) -> Any:
        assert isinstance(random_state, np.random.RandomState)
        return X[:n_clusters]

    given = KMeans(5, init=X[:5]).fit(X)
    assert_same_model(given, KMeans(5, init=X[:5].tolist()).fit(X))
    assert_same_model(given, KMeans(5, init=first_rows).fit(X))
    assert given.init_ == "array" and KMeans(5, init=first_rows).fit(X).init_ == "callable"


def test_the_best_of_several_runs_is_kept() -> None:
    X = blobs(n=400, C=25, D=2)
    starts = [X[np.random.default_rng(seed).permutation(400)[:25]] for seed in range(6)]
    single = [KMeans(25, init=start).fit(X) for start in starts]
    remaining = iter(starts)
    best = KMeans(25, init=lambda X, k, random_state: next(remaining), n_init=6).fit(X)
    assert_same_model(best, min(single, key=lambda model: model.inertia_))
    assert len(best.history_.iterations) == best.n_iter_
    assert best.n_distances_ == sum(model.n_distances_ for model in single)


def test_a_run_does_not_profit_from_the_labels_of_the_run_before() -> None:
    X = blobs(n=300, C=5)
    alone = KMeans(5, init=X[:5], max_iter=1).fit(X)
    near = alone.cluster_centers_ + 1e-9  # the same labels as the first run ended with, other centres
    starts = iter([X[:5], near])
    model = KMeans(5, init=lambda X, k, random_state: next(starts), n_init=2, max_iter=1).fit(X)
    expected = KMeans(5, init=near, max_iter=1).fit(X)
    assert_same_model(model, expected)
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-12)


def test_warm_start_goes_on_where_the_last_fit_ended() -> None:
    X = blobs(n=400, C=15)
    model = KMeans(15, algorithm="lloyd", max_iter=3, tol=0, warm_start=True, random_state=0)
    for _ in range(30):
        model.fit(X)
    full = KMeans(15, algorithm="lloyd", max_iter=90, tol=0, random_state=0).fit(X)
    np.testing.assert_array_equal(model.labels_, full.labels_)
    np.testing.assert_allclose(model.cluster_centers_, full.cluster_centers_, rtol=1e-12)
    assert model.init_ == "warm start"
    with pytest.raises(ValueError, match=r"warm_start has 15 centres.*n_clusters=9; set warm_start=False"):
        model.set_params(n_clusters=9).fit(X)
    assert KMeans(15, max_iter=3, random_state=0).fit(X).fit(X).init_ != "warm start"


# ---------------------------------------------------------------- running
def test_fit_iter_may_be_left() -> None:
    X = blobs(n=400, C=15)
    model = KMeans(15, algorithm="lloyd", random_state=0, tol=0)
    for record in model.fit_iter(X):
        if record.iteration == 2:
            break
    cut = KMeans(15, algorithm="lloyd", random_state=0, tol=0, max_iter=2).fit(X)
    assert model.n_iter_ == 2
    np.testing.assert_array_equal(model.cluster_centers_, cut.cluster_centers_)
    np.testing.assert_array_equal(model.predict(X), cut.labels_)


def test_callbacks_hear_that_fit_iter_was_left() -> None:
    ends = []

    class End(Callback):
        def on_fit_end(self, estimator: Any, reason: str) -> None:
            ends.append(reason)

    for _ in KMeans(15, random_state=0, callbacks=[End()]).fit_iter(blobs(n=400, C=15)):
        break
    assert len(ends) == 1


def test_fit_iter_complains_at_once() -> None:
    with pytest.raises(ValueError, match="n_clusters"):
        KMeans(0).fit_iter(blobs(n=10))
    with pytest.raises(ValueError, match="NaN"):
        KMeans(2).fit_iter([[np.nan], [1.0]])


class Watch(Callback):
    """Keeps all that it is told; can ask to stop."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.seen: list[Any] = []

    def on_fit_start(self, estimator: Any, n_rows: int, max_iter: int | None, max_time: float | None) -> None:
        self.seen.append(("start", n_rows, max_iter, max_time))

    def on_iteration(self, estimator: Any, record: Any) -> bool | None:
        assert estimator.n_iter_ == record.iteration
        self.seen.append(record)
        return self.stop_after is not None and record.iteration >= self.stop_after

    def on_fit_end(self, estimator: Any, reason: str) -> None:
        np.testing.assert_array_equal(estimator.labels_, estimator.predict(X_SMALL))
        self.seen.append(("end", reason))


X_SMALL = blobs(n=200, C=8)


def test_callbacks_see_the_whole_fit() -> None:
    watch = Watch()
    model = KMeans(12, callbacks=[watch], max_time=1000.0, random_state=0).fit(X_SMALL)
    assert watch.seen[0] == ("start", 200, 300, 1000.0)
    assert watch.seen[1:-1] == list(model.history_)
    assert watch.seen[-1] == ("end", model.stopped_)


def test_a_callback_ends_the_fit() -> None:
    watch, other = Watch(stop_after=2), Watch()
    lloyd = KMeans(12, algorithm="lloyd", callbacks=[watch, other], tol=0, random_state=0, n_init=5)
    model = lloyd.fit(X_SMALL)
    assert model.n_iter_ == 2 and model.stopped_ == "callback"
    assert len(other.seen) == len(model.history_) + 2 and other.seen[-1] == ("end", "callback")
    np.testing.assert_array_equal(model.predict(X_SMALL), model.labels_)


def test_max_time_ends_the_fit_after_a_step() -> None:
    model = KMeans(12, max_time=1e-6, tol=0, random_state=0, n_init=5).fit(X_SMALL)
    assert model.n_iter_ == 0 and len(model.history_) == 1 and model.stopped_ == "max_time"
    np.testing.assert_array_equal(model.predict(X_SMALL), model.labels_)
    begun = time.perf_counter()
    sleep = lambda estimator, record: time.sleep(0.06)  # noqa: E731
    slow = KMeans(12, algorithm="lloyd", max_time=0.2, tol=0, callbacks=sleep).fit(X_SMALL)
    assert slow.stopped_ == "max_time" and time.perf_counter() - begun < 1.0


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    KMeans(5, random_state=0).fit(X_SMALL)
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- conventions
def test_joblib_threads_and_processes() -> None:
    expected = KMeans(7, random_state=0).fit(X_SMALL)
    for prefer in ("threads", "processes"):
        jobs = (delayed(KMeans(7, random_state=0, n_threads=2).fit)(X_SMALL) for _ in range(3))
        for model in Parallel(n_jobs=2, prefer=prefer)(jobs):
            assert_same_model(model, expected)


@pytest.mark.parametrize("n_columns", [3, 200])
@pytest.mark.parametrize("scale", [2.0**256, 2.0**-270])
def test_scaled_rows_have_scaled_centers(n_columns: int, scale: float) -> None:
    """Also where squares of squares would overflow or vanish."""
    random = np.random.default_rng(0)
    X = random.normal(size=(900, 3)) @ random.normal(size=(3, n_columns))
    one, other = (KMeans(500, random_state=0).fit(rows) for rows in (X, X * scale))
    np.testing.assert_array_equal(other.cluster_centers_ / scale, one.cluster_centers_)
    np.testing.assert_array_equal(other.labels_, one.labels_)


# --- names that users bring from elsewhere
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_algorithms_by_other_names(metric: str) -> None:
    X = blobs(n=500, C=20, D=5)
    meant = {"yinyang": ("lloyd", "lloyd"), "elkan": ("exact", "lloyd"), "full": ("lloyd", "lloyd")}
    for name, ours in meant.items():
        for init, our in zip(("auto", X[:30]), ours, strict=True):
            one, two = (KMeans(30, algorithm=each, init=init, metric=metric, random_state=3) for each in (name, our))
            assert_same_model(one.fit(X), two.fit(X))
            assert one.algorithm_ == two.algorithm_ == our and one.n_distances_ == two.n_distances_


def test_one_start_is_tried_where_it_is_given() -> None:
    X = blobs(n=200, C=4, D=2)
    with pytest.warns(RuntimeWarning, match="performing only one init instead of n_init=3; leave n_init out"):
        several = KMeans(4, init=X[:4], n_init=3, random_state=0).fit(X)
    once = KMeans(4, init=X[:4], random_state=0).fit(X)
    assert several.n_distances_ == once.n_distances_
