"""`ResidualKMeans`: codes against plain NumPy, and what does not change them."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import globular
from globular import ResidualKMeans
from globular.algorithms.kmeans.residual import CodeKeys
from globular.data import residuals
from globular.data.open import as_source
from globular.data.residuals import Residuals
from globular.errors import FitInterruptedWarning
from globular.estimators import codes as codes_module
from globular.estimators import inputs
from globular.seam import answers

rng = np.random.default_rng(0)
X = (rng.normal(size=(1500, 4)) @ rng.normal(size=(4, 9)) + 0.2 * rng.normal(size=(1500, 9))).astype(np.float32)


def fit(rows: Any = X, sizes: Any = (12, 8, 6), weights: Any = None, **options: Any) -> ResidualKMeans:
    return ResidualKMeans(list(sizes), random_state=0, **options).fit(rows, sample_weight=weights)


def by_hand(model: ResidualKMeans, codes: Any) -> Any:
    return sum(book[codes[:, level]].astype(np.float64) for level, book in enumerate(model.codebooks_))


def same(one: ResidualKMeans, other: ResidualKMeans) -> None:
    assert all((a == b).all() for a, b in zip(one.codebooks_, other.codebooks_, strict=True))
    np.testing.assert_array_equal(one.codes_, other.codes_)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_errors_are_those_of_the_rows_that_codes_stand_for(dtype: str, metric: str) -> None:
    rows, weights = X.astype(dtype), rng.integers(0, 4, size=len(X))
    model = fit(rows, metric=metric, weights=weights)
    seen = rows.astype(np.float64)
    if metric == "cosine":
        seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    left = ((seen - by_hand(model, model.codes_)) ** 2).sum(axis=1)
    assert model.inertia_ == pytest.approx(weights @ left, rel=1e-5)
    assert model.codes_.shape == (1500, 3) and model.codes_.dtype == np.uint8
    assert (np.diff(model.inertia_per_level_) < 0).all() and model.inertia_per_level_[-1] == model.inertia_
    assert {book.dtype for book in model.codebooks_} == {np.dtype("float64" if dtype == "float64" else "float32")}
    np.testing.assert_allclose(model.decode(model.codes_), by_hand(model, model.codes_), atol=1e-5)
    coarse = ((seen - model.decode(model.codes_[:, :2])) ** 2).sum(axis=1)
    assert model.inertia_per_level_[1] == pytest.approx(weights @ coarse, rel=1e-5)
    assert [sizes.sum() for sizes in model.cluster_sizes_] == [1500] * 3


def test_one_level_is_k_means() -> None:
    model, kmeans = fit(sizes=[20], n_refinements=0), globular.KMeans(20, random_state=np.random.RandomState(0)).fit(X)
    np.testing.assert_array_equal(model.codebooks_[0], kmeans.cluster_centers_)
    np.testing.assert_array_equal(model.codes_[:, 0], kmeans.labels_)
    assert model.inertia_ == pytest.approx(kmeans.inertia_, rel=1e-5)
    np.testing.assert_array_equal(model.first_level().predict(X), kmeans.labels_)


def test_each_level_clusters_what_the_levels_before_it_leave() -> None:
    model, state, left = fit(n_refinements=0), np.random.RandomState(0), X
    for level, size in enumerate((12, 8, 6)):
        kmeans = globular.KMeans(size, random_state=state).fit(left)
        np.testing.assert_array_equal(model.codebooks_[level], kmeans.cluster_centers_)
        np.testing.assert_array_equal(model.codes_[:, level], kmeans.labels_)
        left = left - kmeans.cluster_centers_[kmeans.labels_]


def beam_by_hand(row: Any, books: Any, beam: int) -> list[int]:
    partial: list[tuple[float, list[int]]] = [(0.0, [])]
    for level in range(len(books)):
        longer = []
        for _, code in partial:
            left = row - sum(books[i][word] for i, word in enumerate(code)) if code else row
            longer += [(float(((left - word) ** 2).sum()), [*code, k]) for k, word in enumerate(books[level])]
        partial = sorted(longer, key=lambda each: each[0])[:beam]
    return partial[0][1]


def test_encode_is_the_beam_search_and_the_widest_finds_the_best_code() -> None:
    model = fit(X.astype(np.float64))
    books = [book.astype(np.float64) for book in model.codebooks_]
    for beam in (1, 3):
        expected = [beam_by_hand(row, books, beam) for row in X[:60].astype(np.float64)]
        np.testing.assert_array_equal(model.encode(X[:60].astype(np.float64), beam=beam), expected)
    every = np.array(list(product(*(range(len(book)) for book in books))))
    squares = ((X[:60, None] - by_hand(model, every)) ** 2).sum(axis=2)
    np.testing.assert_array_equal(model.encode(X[:60].astype(np.float64), beam=96), every[squares.argmin(axis=1)])
    np.testing.assert_array_equal(model.transform(X), model.predict(X))
    np.testing.assert_array_equal(model.inverse_transform(model.transform(X)), model.decode(model.encode(X)))
    assert model.score(X) == pytest.approx(-((X - model.decode(model.encode(X))) ** 2).sum(), rel=1e-5)


def test_beams_and_refinements_lower_the_error() -> None:
    plain, refined, wide = fit(n_refinements=0), fit(n_refinements=3), fit(n_refinements=3, beam=6)
    assert wide.inertia_ < refined.inertia_ < plain.inertia_
    assert -plain.score(X) > -clone(plain).set_params(beam=6).fit(X).score(X)


def test_a_refinement_is_least_squares_for_the_last_codebook() -> None:
    model = fit(n_refinements=1)
    left = X - by_hand(model, model.codes_)
    for word in range(6):
        np.testing.assert_allclose(left[model.codes_[:, 2] == word].mean(axis=0), 0, atol=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("sizes", [(16, 16, 16), (12, 12, 11), (4000, 2)])
def test_unique_codes_are_unique_and_say_what_they_cost(sizes: Any, beam: int) -> None:
    rows = np.concatenate([X[:1000], X[:500]])
    if sizes[0] > 1000:
        sizes = (700, 3)
    model, free = fit(rows, sizes, unique=True, beam=beam), fit(rows, sizes, beam=beam)
    assert len(np.unique(model.codes_, axis=0)) == 1500
    assert model.n_collisions_ == 0 < model.n_reassigned_ and free.n_reassigned_ == 0
    assert free.n_collisions_ == 1500 - len(np.unique(free.codes_, axis=0)) == model.n_reassigned_
    assert free.inertia_ < model.inertia_ < 5 * free.inertia_
    codes = model.encode(rows, unique=True)
    assert len(np.unique(codes, axis=0)) == 1500
    first = np.unique(model.encode(rows), axis=0, return_index=True)[1]  # who comes first keeps the code
    np.testing.assert_array_equal(codes[first], model.encode(rows)[first])


@pytest.mark.parametrize(("sizes", "limits"), [((12, 8, 6), 260), ((10, 20, 6), [150, 80, 400])])
def test_no_word_has_more_rows_than_its_limit(sizes: Any, limits: Any, tmp_path: Path) -> None:
    free, limited = fit(sizes=sizes), fit(sizes=sizes, max_size=limits)
    most = [limits] * 3 if isinstance(limits, int) else limits
    assert all(found.max() <= limit for found, limit in zip(limited.cluster_sizes_, most, strict=True))
    assert any(found.max() > limit for found, limit in zip(free.cluster_sizes_, most, strict=True))
    assert limited.inertia_ < 1.3 * free.inertia_
    np.save(tmp_path / "rows.npy", X)
    same(limited, fit(str(tmp_path / "rows.npy"), sizes, max_size=limits))


def test_every_code_can_be_handed_out() -> None:
    rows = np.repeat(X[:10], 12, axis=0)
    model = fit(rows, (6, 5, 4), unique=True, n_refinements=0)
    assert len(np.unique(model.codes_, axis=0)) == 120
    with pytest.raises(ValueError, match="unique=True: 120 rows and 119 codes; take more levels"):
        fit(rows, (7, 17), unique=True)
    with pytest.raises(ValueError, match="121 rows and 120 codes"):
        model.encode(X[:121], unique=True)


def test_equal_rows_get_the_closest_codes_in_order() -> None:
    model = fit(sizes=(5, 9), n_refinements=0)
    codes = model.encode(np.repeat(X[:1], 9, axis=0), unique=True)
    squares = ((X[:1] - model.decode(codes)) ** 2).sum(axis=1)
    assert (np.diff(squares) >= 0).all() and (codes[:, 0] == codes[0, 0]).all()


def test_keys_tell_codes_apart() -> None:
    every = np.array(list(product(range(3), range(5), range(2))))
    assert sorted(CodeKeys((3, 5, 2)).of(every).tolist()) == list(range(30))
    long = CodeKeys((1 << 16,) * 6)
    codes = rng.integers(1 << 16, size=(5000, 6)).astype(np.uint16)
    codes[4000:] = codes[:1000]
    np.testing.assert_array_equal(long.repeated(codes), np.arange(4000, 5000))


def test_weights_are_repetitions_and_rows_of_weight_zero_are_coded() -> None:
    weights = rng.integers(0, 3, size=len(X))
    model = fit(weights=weights, n_refinements=2)
    others = weights == 0
    same(model, fit(weights=3.0 * weights, n_refinements=2))
    counted = fit(X[~others], weights=weights[~others], n_refinements=2)
    np.testing.assert_array_equal(model.codes_[~others], counted.codes_)
    start = fit(weights=np.maximum(weights, 1), n_refinements=0)
    left = X[others] - by_hand(model, model.codes_[others])
    assert np.square(left).sum(axis=1).mean() < 1.5 * start.inertia_ / np.maximum(weights, 1).sum() * 1.5
    repeated = np.repeat(X, weights, axis=0)
    coder, again = model._coder(), fit(weights=weights, n_refinements=2)._coder()
    codes = model.codes_
    coder.refine(as_source(X), codes, weights.astype(float))
    again.refine(as_source(repeated), np.repeat(codes, weights, axis=0), None)
    for one, other in zip(coder.codebooks, again.codebooks, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    errors = coder.errors(as_source(X), codes, weights.astype(float))
    np.testing.assert_allclose(errors, coder.errors(as_source(repeated), np.repeat(codes, weights, axis=0), None))


@pytest.mark.parametrize(
    "options", [{}, {"metric": "cosine", "beam": 3}, {"unique": True, "n_refinements": 2}], ids=str
)
def test_threads_files_and_streams_change_nothing(options: Any, tmp_path: Path, monkeypatch: Any) -> None:
    model = fit(n_threads=1, sizes=(16, 16, 16), **options)
    same(model, fit(n_threads=2, sizes=(16, 16, 16), **options))
    np.save(tmp_path / "rows.npy", X)
    same(model, fit(tmp_path / "rows.npy", sizes=(16, 16, 16), **options))
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    streamed = fit(tmp_path / "rows.npy", sizes=(16, 16, 16), **options)
    np.testing.assert_array_equal(streamed.codes_, model.codes_)
    monkeypatch.setattr("globular.passes.many.PART_BYTES", 300 * 36)
    streamed = fit(tmp_path / "rows.npy", sizes=(16, 16, 16), **options)
    assert streamed.inertia_ == pytest.approx(model.inertia_, rel=1e-3)
    np.testing.assert_array_equal(streamed.encode(tmp_path / "rows.npy"), streamed.encode(X))


def test_residuals_are_a_source() -> None:
    codes, book = rng.integers(5, size=(1500, 1)).astype(np.uint8), rng.normal(size=(5, 9)).astype(np.float32)
    left = Residuals(as_source(X.astype(np.float16)), codes, [book], n_threads=2)
    expected = X.astype(np.float16).astype(np.float32) - book[codes[:, 0]]
    np.testing.assert_array_equal(left.whole(), expected)
    np.testing.assert_array_equal(left.take(np.array([7, 7, 0])), expected[[7, 7, 0]])
    blocks = list(left.blocks(400, 100, 1000))
    assert [(block.start, block.stop) for block in blocks] == [(100, 500), (500, 900), (900, 1000)]
    np.testing.assert_array_equal(np.concatenate([block.rows for block in blocks]), expected[100:1000])


def test_saved_models_answer_as_the_model(tmp_path: Path) -> None:
    model = fit(beam=2)
    restored = globular.load(globular.save(model, tmp_path / "model"))
    same(model, restored)
    assert restored.get_params() == model.get_params() and restored.inertia_ == model.inertia_
    np.testing.assert_array_equal(restored.encode(X), model.encode(X))
    slim = globular.load(globular.save(model, tmp_path / "slim", include_labels=False))
    assert not hasattr(slim, "codes_")
    np.testing.assert_array_equal(slim.encode(X), model.encode(X))
    model.codebooks_[1] = model.codebooks_[1][:3]
    with pytest.raises(ValueError, match=r"codebooks_\[1\] has shape"):
        globular.save(model, tmp_path / "other")


def test_a_callback_ends_the_level_and_time_is_shared() -> None:
    seen: list[Any] = []
    model = fit(callbacks=lambda estimator, record: seen.append(type(estimator).__name__))
    assert set(seen) == {"KMeans"} and len(seen) == len(model.history_) and model.n_iter_ >= 3
    hurried = fit(max_time=1e-6)
    assert hurried.codes_.shape == (1500, 3) and hurried.stopped_ == "max_time"


def test_dask_collections_are_encoded_lazily() -> None:
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    model, rows = fit(), da.from_array(X, chunks=(400, 9))
    np.testing.assert_array_equal(model.encode(rows).compute(), model.encode(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": [8, 0]}, r"n_clusters\[1\]=0 must be a whole number"),
        ({"n_clusters": []}, "n_clusters has 0 numbers"),
        ({"n_clusters": [8, 8], "n_levels": 3}, "n_clusters has 2 numbers, n_levels=3"),
        ({"n_clusters": [8, 1501]}, "n_samples=1500 should be >= n_clusters=1501"),
        ({"beam": 0}, "beam"),
        ({"n_levels": 0}, "n_levels"),
        ({"metric": "manhattan"}, "metric"),
        ({"n_clusters": [3, 4], "unique": True}, "1500 rows and 12 codes"),
        ({"n_clusters": [10, 20], "max_size": [150, 74]}, "max_size=74: 20 words of that size .* take at least 75"),
        ({"n_clusters": [10, 20], "max_size": [150]}, "max_size has 1 numbers for 2 levels"),
        ({"max_size": [9, 0, 9]}, r"max_size\[1\]=0 must be a whole number"),
        ({"max_size": 9, "beam": 2}, "set beam=1"),
        ({"max_size": 9, "n_refinements": 2}, "set beam=1 and n_refinements=0 or 1"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualKMeans(**options).fit(X)


def test_bad_input_is_named() -> None:
    model = fit()
    with pytest.raises(NotFittedError):
        ResidualKMeans().decode([[0]])
    for codes in ([0, 1], [[0.5, 1, 1]], [[0, 0, 0, 0]]):
        with pytest.raises(ValueError, match="codes must be whole numbers"):
            model.decode(codes)
    for codes in ([[12, 0, 0]], [[0, -1, 0]]):
        with pytest.raises(ValueError, match="codes: level"):
            model.decode(codes)
    with pytest.raises(ValueError, match="beam=0"):
        model.encode(X, beam=0)
    with pytest.raises(ValueError, match="features"):
        model.encode(X[:, :4])
    with pytest.raises(ValueError, match="sample_weight"):
        fit(weights=-np.ones(len(X)))
    assert model.decode(np.empty((0, 3), dtype=np.uint8)).shape == (0, 9)


def test_ctrl_c_keeps_the_levels_that_were_begun(tmp_path: Path) -> None:
    levels: list[Any] = []

    def interrupt(estimator: Any, record: Any) -> None:
        levels.append(estimator)
        if estimator is not levels[0] and record.iteration == 1:
            raise KeyboardInterrupt

    with pytest.warns(FitInterruptedWarning):
        model = fit(callbacks=interrupt)
    assert model.codes_.shape == (1500, 2) and len(model.codebooks_) == 2 and model.stopped_ == "interrupted"
    restored = globular.load(globular.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(restored.encode(X), model.encode(X))


@pytest.mark.parametrize("size", [7, 1 << 22])
def test_rows_at_once_change_no_code(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = fit(beam=3)
    monkeypatch.setattr(answers, "CODED_AT_ONCE", 64 * size)
    monkeypatch.setattr(residuals, "ROWS_AT_ONCE", size)
    monkeypatch.setattr(codes_module, "ROWS_PER_BLOCK", size)
    found = fit(beam=3)
    np.testing.assert_array_equal(found.codes_, wanted.codes_)
    np.testing.assert_allclose(found.inertia_per_level_, wanted.inertia_per_level_, rtol=1e-6)
