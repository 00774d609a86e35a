"""Bad input gets one clear error that names the argument."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from globular.data.open import as_source
from globular.data.sources import checked_csr
from globular.errors import DataError, MemoryBudgetError
from globular.estimators import inputs, validation
from globular.export import centers_from
from globular.io import open_source
from globular.passes.dask.workers import rows_from_chunk
from globular.seeding import kmeans_plus_plus
from globular.selection import select
from makers import blobs

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, InfiniteMultinomialMixture, KMeans,
    LowRankGaussianMixture, NestedMiniBatchKMeans, VariationalGaussianMixture, VariationalKMeans, coresets, datasets,
)  # fmt: skip

X = blobs(n=30, D=3)


def with_value(value: float) -> Any:
    rows = X.copy()
    rows[7, 1] = value
    return rows


TEXT = r"X.*(not numbers|string)"
BAD_ROWS: dict[str, tuple[Any, str]] = {
    "NaN": (with_value(np.nan), r"X contains NaN, first in row 7 .*, column 1; fill in"),
    "infinity": (with_value(np.inf), r"X contains infinity, first in row 7"),
    "infinity of both signs": (np.array([[np.inf, -np.inf]] * 3), r"X contains infinity, first in row 0"),
    "minus infinity": (with_value(-np.inf), r"X contains infinity"),
    "NaN in float32": (with_value(np.nan).astype(np.float32), r"X contains NaN"),
    "NaN of the signalling kind": (np.array([[0x7FA00000]] * 9, np.uint32).view(np.float32), r"X contains NaN, first"),
    "infinity in float16": (with_value(np.inf).astype(np.float16), r"X contains infinity"),
    "more than float64 holds": (X.astype(np.longdouble) * np.longdouble("1e400"), r"X contains infinity, first in"),
    "NaN in CSR": (sparse.csr_matrix(with_value(np.nan)), r"X contains NaN"),
    "NaN in a frame": (pd.DataFrame(with_value(np.nan)), r"X contains NaN"),
    "no rows": (np.empty((0, 3)), r"X.*0 sample|0 sample.*X"),
    "no columns": (np.empty((5, 0)), r"X.*0 feature|0 feature.*X"),
    "no rows in CSR": (sparse.csr_matrix((0, 3)), r"X.*0 sample|0 sample.*X"),
    "an empty list": ([], r"X|Expected 2D array"),
    "one dimension": (np.arange(5.0), r"X.*2D array|2D array.*X|Reshape your data"),
    "a number": (np.float64(3.0), r"X.*2D array|2D array.*X|Reshape your data"),
    "three dimensions": (np.ones((4, 3, 2)), r"X.*dim 3|dim 3.*X|3D"),
    "strings": (np.array([["a", "b"], ["c", "d"]]), TEXT),
    "a list of strings": ([["a", "b"], ["c", "d"]], TEXT),
    "strings that look like numbers": (np.array([["1", "2"], ["3", "4"]]), TEXT),
    "bytes": (np.array([[b"a", b"b"]]), TEXT),
    "objects": (np.array([[object(), object()]] * 3), r"X"),
    "words as objects": (np.array([["a", 1.0], ["b", 2.0]], dtype=object), TEXT),
    "complex numbers": (X + 1j, r"[Cc]omplex"),
    "complex numbers in CSR": (sparse.csr_matrix(X + 1j), r"[Cc]omplex"),
    "dates": (np.full((5, 2), np.datetime64("2026-01-01")), r"X"),
    "a frame with dates": (pd.DataFrame({"a": [1.0], "when": [pd.Timestamp("2026-01-01")]}), r"not numbers: 'when'"),
    "ragged lists": ([[1.0, 2.0], [3.0]], r"^X: the rows are not equally long, or hold lists;"),
    "lists within rows": ([[1.0, [2.0, 3.0]], [4.0, [5.0, 6.0]]], r"^X: the rows are not equally long, or hold lists;"),
    "a frame with text": (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), r"X: columns that are not numbers: 'b';"),
    "None": (None, r"X|NoneType"),
    "a generator": ((row for row in X), r"X|generator|array"),
    "a masked array": (np.ma.masked_array(X, mask=X > 0), r"X.*mask"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:X has feature names")  # of the frames among them
@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows(name: str) -> None:
    given, message = BAD_ROWS[name]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        KMeans(1).fit(given)
    assert "\n" not in str(caught.value)
    model = KMeans(2).fit(X)
    for method in (model.predict, model.score, model.transform):
        with pytest.raises((ValueError, TypeError)):
            method(given)


ARRAYS: dict[str, Any] = {
    **{
        np.dtype(dtype).name: np.abs(X).astype(dtype)
        for dtype in (*validation.REAL_DTYPES, np.longdouble, complex, object)
    },
    **{name: given for name, (given, _) in BAD_ROWS.items() if type(given) is np.ndarray},
    "Fortran order": np.asfortranarray(X),
    "big-endian": X.astype(">f8"),
    "every second column": np.repeat(X, 2, axis=1)[:, ::2],
    "read-only": np.frombuffer(X.tobytes()).reshape(X.shape),
    "finite with a sum that is not": np.full((30, 3), 1e308),
    "float16 with a sum that is not finite": np.full((30, 3), 60000, dtype=np.float16),
    "other columns": X[:, :2],
    "one row": X[:1],
    "a subclass": np.asarray(X).view(np.recarray),
}


@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
@pytest.mark.parametrize("reset", [True, False], ids=["fit", "predict"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_taken_as_they_are_are_those_that_scikit_learn_takes_as_they_are(name, reset, monkeypatch):
    """The short way of plain arrays ends where scikit-learn's checks do: same rows, same columns noted, same errors."""
    given = ARRAYS[name]

    def outcome() -> Any:
        model = KMeans(1)
        model.n_features_in_ = 3
        try:
            rows = validation.validated(model, given, None, reset=reset, accept_sparse=True, n_threads=1)
        except (ValueError, TypeError) as error:
            return type(error), str(error), vars(model)
        return rows is given, rows.dtype, rows.flags.c_contiguous, rows.tolist(), vars(model)

    short = outcome()
    monkeypatch.setattr(validation, "_is_plain", lambda *_: False)
    assert short == outcome()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_infinity_in_the_last_of_many_numbers(bad: float, n_threads: int) -> None:
    given = np.zeros((validation.CHECKED_AT_ONCE // 8 + 1, 8), dtype=np.float32)
    given[0], given[1] = 3e38, -3e38  # what overflows is looked at more closely, and is no error
    assert validation.validated(KMeans(1), given, None, reset=True, accept_sparse=True, n_threads=n_threads) is given
    given[-1, -1] = bad
    with pytest.raises(ValueError, match=f"row {len(given) - 1}"):
        validation.validated(KMeans(1), given, None, reset=True, accept_sparse=True, n_threads=n_threads)


def test_names_of_columns_are_noted_compared_and_forgotten() -> None:
    model = KMeans(2, random_state=0).fit(pd.DataFrame(X, columns=["a", "b", "c"]))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(X)
    assert not hasattr(model.fit(X), "feature_names_in_")


BAD_WEIGHTS: dict[str, Any] = {
    "negative": np.r_[-1.0, np.ones(29)], "all zero": np.zeros(30), "NaN": np.r_[np.nan, np.ones(29)],
    "infinite": np.r_[np.inf, np.ones(29)], "too few": np.ones(29), "too many": np.ones(31),
    "two-dimensional": np.ones((30, 1)), "a number": 2.0, "a zero-dimensional array": np.array(1.0),
    "strings": np.array(["a"] * 30), "complex": np.ones(30) + 1j, "objects": np.array([object()] * 30),
    "a dictionary": {0: 1.0}, "empty": [],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_bad_weights(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match="sample_weight"):
        KMeans(2).fit(X, sample_weight=BAD_WEIGHTS[name])
    with pytest.raises((ValueError, TypeError), match="sample_weight"):
        KMeans(2).fit(X).score(X, sample_weight=BAD_WEIGHTS[name])


BAD_PARAMETERS: list[tuple[str, Any]] = [
    *(("n_clusters", value) for value in (0, -3, 2.5, "2", None, 31)),
    *(("algorithm", value) for value in ("hamerly", "Lloyd", None, 3)),
    *(("metric", value) for value in ("manhattan", None, 2)), *(("init", value) for value in ("kmeans", None, 5)),
    *(("n_init", value) for value in (0, -1, 1.5, "many", None)),
    *(("max_iter", value) for value in (0, -1, 2.5, None)),
    *(("tol", value) for value in (-1e-9, "small", None, np.nan)),
    *(("max_time", value) for value in (0, -1.0, "long", np.nan)),
    *(("n_threads", value) for value in (0, -2, 1.5, "2", True)),
    *(("random_state", value) for value in (-1, "seed", 1.5, True)),
    *(("warm_start", value) for value in ("yes", None)), *(("verbose", value) for value in ("much", -1)),
    *(("callbacks", value) for value in (5, ["progress"], [None])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_PARAMETERS, ids=lambda value: repr(value))
def test_bad_parameters(name: str, value: Any) -> None:
    parameters = {"n_clusters": 2, name: value}
    with pytest.raises((ValueError, TypeError), match=name):
        KMeans(**parameters).fit(X)


SEEDED: dict[str, Callable[[Any], object]] = {
    "a mixture": lambda seed: GaussianMixture(2, random_state=seed).fit(X),
    "an infinite mixture": lambda seed: InfiniteGaussianMixture(random_state=seed).fit(X),
    "a seeding": lambda seed: kmeans_plus_plus(X, 2, random_state=seed),
    "a coreset": lambda seed: coresets.coreset(X, 9, random_state=seed),
    "a choice": lambda seed: select(X, [2], random_state=seed),
    "a data set": lambda seed: datasets.birch_grid(3, 4, random_state=seed),
}


@pytest.mark.parametrize("call", SEEDED.values(), ids=list(SEEDED))
def test_a_boolean_is_no_seed(call: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"random_state.*True"):
        call(True)


@pytest.mark.parametrize("n_samples", [True, 0, -1])
@pytest.mark.parametrize("kind", [GaussianMixture, InfiniteGaussianMixture, InfiniteMultinomialMixture])
def test_bad_numbers_of_rows_to_draw(kind: type[Any], n_samples: Any) -> None:
    model = kind(random_state=0).fit(np.arange(60.0).reshape(20, 3))
    with pytest.raises(ValueError, match=r"Invalid value for 'n_samples'.*whole number of at least 1"):
        model.sample(n_samples)
    assert len(model.sample(np.int64(2))[0]) == 2


BAD_STARTS: dict[str, Any] = {
    "too few": X[:2], "too many": X[:4], "other columns": X[:3, :2], "one-dimensional": X[0],
    "NaN": np.full((3, 3), np.nan), "strings": np.full((3, 3), "a"), "three-dimensional": np.ones((3, 3, 1)),
    "complex": X[:3] + 1j,
}  # fmt: skip


@pytest.mark.parametrize("as_callable", [False, True], ids=["array", "callable"])
@pytest.mark.parametrize("name", BAD_STARTS)
def test_bad_starting_centers(name: str, as_callable: bool) -> None:
    given = BAD_STARTS[name]
    init = (lambda X, n_clusters, random_state: given) if as_callable else given
    with pytest.raises((ValueError, TypeError), match="init"):
        KMeans(3, init=init).fit(X)


def test_more_clusters_than_rows() -> None:
    with pytest.raises(ValueError, match=r"n_samples=30.*n_clusters=31"):
        KMeans(31).fit(X)


@pytest.mark.parametrize(
    "model",
    [
        GaussianMixture(31), VariationalGaussianMixture(31), ChunkyGaussianMixture(31), LowRankGaussianMixture(31),
        InfiniteGaussianMixture(truncation="fixed", max_components=31),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_mixtures_take_dense_rows_and_no_more_components_than_rows(model: Any) -> None:
    with pytest.raises(TypeError, match=r"dense rows.*toarray"):
        model.fit(sparse.csr_array(X))
    with pytest.raises(ValueError, match=r"n_samples=30 should be >= n_components=31|max_components=31"):
        model.fit(X)
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


def test_not_fitted() -> None:
    for method in ("predict", "transform", "score"):
        with pytest.raises(NotFittedError, match="KMeans"):
            getattr(KMeans(2), method)(X)
    with pytest.raises(NotFittedError):
        KMeans(2).get_feature_names_out()


def test_another_number_of_columns() -> None:
    model = KMeans(2).fit(X)
    for given in (X[:, :2], sparse.csr_matrix(X[:, :2]), np.hstack([X, X])):
        for method in (model.predict, model.transform, model.score):
            with pytest.raises(ValueError, match=r"X has \d features, but KMeans is expecting 3"):
                method(given)


def test_a_failed_fit_leaves_a_fitted_model_as_it_was() -> None:
    model = KMeans(2, random_state=0).fit(X)
    centers, labels = model.cluster_centers_.copy(), model.labels_.copy()
    with pytest.raises(ValueError, match="NaN"):
        model.fit(with_value(np.nan))
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, sample_weight=np.zeros(30))
    np.testing.assert_array_equal(model.cluster_centers_, centers)
    np.testing.assert_array_equal(model.labels_, labels)


@pytest.mark.parametrize("streamed", [False, True], ids=["in memory", "streamed"])
def test_bad_files_are_named(tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if streamed:
        monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    for name, rows in {"nan.npy": with_value(np.nan), "text.npy": np.array([["a"]]), "flat.npy": X[0]}.items():
        np.save(tmp_path / name, rows)
        with pytest.raises(DataError, match=name):
            KMeans(2).fit(tmp_path / name)
    with pytest.raises((DataError, FileNotFoundError), match=r"absent\.npy"):
        KMeans(2).fit(tmp_path / "absent.npy")
    np.save(tmp_path / "good.npy", X)
    content = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"short\.npy"):
        KMeans(2).fit(tmp_path / "short.npy")
    with pytest.raises(ValueError, match="n_clusters=31"):
        KMeans(31).fit(tmp_path / "good.npy")
    with pytest.raises(ValueError, match="3"):
        KMeans(2).fit(X[:, :2]).predict(tmp_path / "good.npy")


def test_an_error_has_no_strange_cause() -> None:
    with pytest.raises(ValueError) as caught:
        KMeans(2).fit(with_value(np.nan))
    assert caught.value.__cause__ is None


def test_what_cannot_fit_into_memory_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    kmeans, mixture = KMeans(20, random_state=0).fit(X), GaussianMixture(3, random_state=0).fit(X)
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 1000)
    for call in (lambda: KMeans(20).fit(X), lambda: kmeans.transform(X), lambda: mixture.predict_proba(X)):
        with pytest.raises(MemoryBudgetError, match="GiB"):
            call()


def test_centres_of_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="no centres in int; give a fitted model"):
        centers_from(3)


@pytest.mark.parametrize("model", [KMeans(2), GaussianMixture(2), VariationalGaussianMixture(2)])
def test_squares_that_overflow(model: Any) -> None:
    with pytest.raises(ValueError, match="squares overflow; scale X down"):
        model.fit(1e200 * X)


def test_the_names_of_a_file_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.to_csv(tmp_path / "abc.csv", index=False)
    frame[["c", "a", "b"]].to_csv(tmp_path / "cab.csv", index=False)
    for share in (inputs.MEMORY_SHARE, 0.0):  # in memory, and streamed
        monkeypatch.setattr(inputs, "MEMORY_SHARE", share)
        model = KMeans(3, random_state=0).fit(tmp_path / "abc.csv")
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        assert (model.predict(frame) == model.predict(tmp_path / "abc.csv")).all()
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(frame[["c", "a", "b"]])
        for fitted in (model, KMeans(3, random_state=0).fit(frame)):
            with pytest.raises(
                DataError, match=r"cab\.csv: other columns .* choose .*open_source.*columns=\['a', 'b', 'c'\]"
            ):
                fitted.predict(tmp_path / "cab.csv")
            ordered = open_source(tmp_path / "cab.csv", columns=["a", "b", "c"])
            assert (fitted.predict(ordered) == fitted.labels_).all()
        assert not hasattr(model.fit(X), "feature_names_in_")


def sparse_rows(**arrays: Any) -> sparse.csr_matrix:
    """A good CSR matrix with some of its arrays replaced behind SciPy's back."""
    matrix = sparse.csr_matrix(np.where(np.abs(X) > 1.0, X, 0.0))
    for name, change in arrays.items():
        array = getattr(matrix, name)
        setattr(matrix, name, change(array.copy()))
    return matrix


def with_entry(place: int, value: int) -> Any:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


BAD_SPARSE: dict[str, tuple[Any, str]] = {
    "an index beyond the columns": (sparse_rows(indices=with_entry(5, 10**8)), "only 0 to 2 exist"),
    "an index equal to the columns": (sparse_rows(indices=with_entry(5, 3)), "only 0 to 2 exist"),
    "a negative index": (sparse_rows(indices=with_entry(5, -1)), "only 0 to 2 exist"),
    "an index that int32 would cut off": (
        sparse_rows(indices=lambda array: array.astype(np.int64) + 2**32), "only 0 to 2 exist"
    ),
    "pointers that descend": (sparse_rows(indptr=with_entry(5, 10**9)), "do not ascend"),
    "a negative pointer": (sparse_rows(indptr=with_entry(5, -(10**9))), "do not ascend"),
    "pointers that do not begin with 0": (sparse_rows(indptr=with_entry(0, 1)), "do not ascend"),
    "pointers beyond the entries": (sparse_rows(indptr=with_entry(-1, 10**9)), "row pointers say 1000000000"),
    "too few pointers": (sparse_rows(indptr=lambda array: array[:-3]), "do not ascend"),
    "too few values": (sparse_rows(data=lambda array: array[:-9]), "values and .* indices"),
    "too few indices": (sparse_rows(indices=lambda array: array[:-9]), "values and .* indices"),
    "indices that are not whole": (sparse_rows(indices=lambda array: array + 0.5), "array of float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SPARSE)
def test_bad_indices_never_reach_compiled_code(name: str) -> None:
    matrix, message = BAD_SPARSE[name]
    good = sparse_rows()
    model, nested = KMeans(2).fit(good), NestedMiniBatchKMeans(2).fit(good)
    doors = (
        KMeans(2).fit, VariationalKMeans(2).fit, nested.fit, nested.partial_fit, model.predict, model.score,
        model.transform, lambda rows: kmeans_plus_plus(rows, 2), lambda rows: rows_from_chunk(rows, "partition 3"),
        as_source,
    )  # fmt: skip
    for door in doors:
        with pytest.raises(DataError, match=rf"(X|partition 3): is not a valid sparse matrix \(.*{message}"):
            door(matrix)


@pytest.mark.parametrize("form", ["csc", "coo", "bsr"])
def test_bad_indices_in_other_formats_are_found_before_they_are_converted(form: str) -> None:
    matrix = sparse_rows().asformat(form)
    places = matrix.row if form == "coo" else matrix.indices
    places[2] = 10**8
    with pytest.raises(DataError, match="is not a valid sparse matrix"):
        KMeans(2).fit(matrix)


def test_duplicates_are_summed_whatever_scipy_believes() -> None:
    """SciPy's flags stay as they were when the arrays behind them change."""
    dense = np.tile([[1.0, 0.0, 5.0], [0.0, 2.0, 0.0]], (6, 1)) + np.arange(12.0)[:, None] * [1, 0, 0]
    split = sparse.csr_matrix(np.maximum(dense, 1e-300))
    assert split.has_canonical_format and split.has_sorted_indices
    split.indices[1::3] = 0  # the second entry of each row is now one more in column 0
    before = split.indices.copy()
    expected = np.zeros_like(dense)
    for row in range(12):
        np.add.at(expected[row], split.indices[3 * row : 3 * row + 3], split.data[3 * row : 3 * row + 3])
    model = KMeans(3, random_state=0).fit(split)
    np.testing.assert_allclose(model.inertia_, KMeans(3, random_state=0).fit(expected).inertia_)
    np.testing.assert_array_equal(model.predict(split), model.predict(expected))
    np.testing.assert_array_equal(split.indices, before)


@pytest.mark.parametrize("n_columns", [20, 5_000])
def test_unsorted_sparse_rows_are_sorted_in_a_copy_and_duplicates_added(n_columns: int) -> None:
    """By columns and back, or row by row where there are more columns than entries."""
    random = np.random.default_rng(0)
    columns, values = random.integers(0, n_columns, 300), random.normal(size=300)
    given = sparse.csr_matrix((values, columns, np.arange(0, 301, 10)), shape=(30, n_columns))
    before = given.indices.copy()
    rows = checked_csr(given)
    assert rows.has_canonical_format and not np.shares_memory(rows.data, given.data)
    np.testing.assert_allclose(rows.toarray(), given.toarray(), rtol=1e-14)
    np.testing.assert_array_equal(given.indices, before)
