"""Tables and tensors of other libraries as X."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from globular import GaussianMixture, KMeans
from globular.data.open import rows_of
from globular.errors import DataError

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
LISTS = pa.array(X.tolist(), pa.list_(pa.float32()))


@cache
def expected() -> KMeans:
    """Fitted when the first test asks: whoever only collects the tests compiles nothing."""
    return KMeans(4, random_state=0).fit(X)


def assert_same(rows: Any) -> None:
    model = KMeans(4, random_state=0).fit(rows)
    assert model.cluster_centers_.dtype == np.float32
    np.testing.assert_array_equal(model.cluster_centers_, expected().cluster_centers_)
    np.testing.assert_array_equal(model.predict(rows), expected().labels_)


@pytest.mark.parametrize(
    "rows",
    [
        pd.Series(list(X)),
        pd.DataFrame({"embedding": list(X)}),
        pd.DataFrame({"embedding": pd.Series(LISTS, dtype=pd.ArrowDtype(LISTS.type))}),
        pa.table({"embedding": LISTS}),
        pa.table({"embedding": pa.chunked_array([LISTS[:7], LISTS[7:]])}),
        pa.record_batch({"embedding": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 3)}),
        np.ma.MaskedArray(X),
    ],
    ids=["series", "frame", "arrow-backed frame", "table", "chunks", "batch", "nothing masked"],
)
def test_a_column_of_lists_is_rows(rows: Any) -> None:
    assert_same(rows)


def test_plain_tables_stay_as_they_are() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert rows_of(frame) is frame
    assert KMeans(4, random_state=0).fit(frame).feature_names_in_.tolist() == ["a", "b", "c"]
    assert_same(pa.table({name: X[:, i] for i, name in enumerate("abc")}))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pd.Series(X[:, 0]), r"2-dimensional container but got pandas Series; pass X.to_frame\(\)"),
        (pd.Series([[1.0, 2.0], [3.0]]), "not equally long"),
        (pd.DataFrame({"e": [[1.0], None]}), "not equally long, or some are missing"),
        (
            pd.DataFrame({"id": [1, 2], "e": [[1.0], [2.0]]}),
            r"column 'e' holds lists and 1 other columns.*X\[\['e'\]\]",
        ),
        (pd.DataFrame({"t": ["a", "b"], "e": [[1.0], [2.0]]}), r"column 't' \(\w+\) does not hold numbers"),
        (pa.table({"e": pa.array([[1.0], [2.0, 3.0]])}), "lists of length 1 and 2"),
        (pa.table({"e": pa.array([], pa.list_(pa.float32()))}), "no rows"),
    ],
)
def test_what_is_no_table_is_told(rows: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        KMeans(1).fit(rows)


@pytest.mark.parametrize("rows", [None, {"a": [1.0]}, (row for row in X)], ids=["none", "dict", "generator"])
def test_other_things_are_refused_by_their_names(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"X must be an array, a data frame, .*, got (NoneType|dict|generator)"):
        KMeans(1).fit(rows)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(X[:, i]) for i in range(3)], ["a", "b", "a"])
    for given in (pd.DataFrame(X, columns=["a", "b", "a"]), table):
        with pytest.raises(
            DataError, match=r"X: 2 columns are called 'a'; rename them, or choose others: X\[\[...\]\]"
        ):
            KMeans(4).fit(given)
    (tmp_path / "x.jsonl").write_text('{"a": 1, "b": 2, "a": 3}\n' * 5)
    with pytest.raises(DataError, match=r"row 1 .*specified twice"):
        KMeans(4).fit(tmp_path / "x.jsonl")


def test_an_anndata_is_its_matrix() -> None:
    class AnnData(SimpleNamespace):
        pass

    AnnData.__module__ = "anndata._core.anndata"
    assert_same(AnnData(X=X))


def test_an_array_of_another_library_keeps_its_type() -> None:
    class Tensor:
        """As little as torch and the array API have in common."""

        def __init__(self, values: Any, name: str = "float32") -> None:
            self.values, self.dtype, self.ndim, self.shape = values, name, values.ndim, values.shape

        def __dlpack__(self) -> Any: ...

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            if self.dtype == "torch.bfloat16":
                raise TypeError("Got unsupported ScalarType BFloat16")
            return self.values

        def float(self) -> "Tensor":
            return Tensor(self.values)

    assert_same(Tensor(X))
    assert_same(Tensor(X, "torch.bfloat16"))


def test_a_column_that_numbers_the_rows_is_warned_of(tmp_path: Path) -> None:
    frame = pd.DataFrame({"Id": np.arange(60), "a": X[:, 0], "b": X[:, 1]})
    frame.to_parquet(tmp_path / "x.parquet")
    for rows in (frame, tmp_path / "x.parquet"):
        for model in (KMeans(3), GaussianMixture(2)):
            with pytest.warns(UserWarning, match=r"X: column 'Id' numbers the rows .* leave it out"):
                model.fit(rows)
    KMeans(3).fit(frame.assign(Id=frame["Id"].to_numpy()[::-1]))  # and of no other
    KMeans(3).fit(frame.rename(columns={"Id": "year"}))


@pytest.fixture
def polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed")


def test_polars(polars: Any) -> None:
    frame = polars.DataFrame({name: X[:, i] for i, name in enumerate("abc")})
    for rows in (frame, frame.lazy()):
        model = KMeans(4, random_state=0).fit(rows)
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(model.cluster_centers_, expected().cluster_centers_)
    lists = polars.Series("e", X.tolist(), dtype=polars.List(polars.Float32))
    arrays = polars.Series("e", X, dtype=polars.Array(polars.Float32, 3))
    for rows in (lists, arrays, polars.DataFrame({"e": lists}), polars.DataFrame({"e": arrays}).lazy()):
        assert_same(rows)
    with pytest.raises(ValueError, match=r"columns that are not numbers: 't'; drop or encode .*numeric"):
        KMeans(1).fit(polars.DataFrame({"a": [1.0, 2.0], "t": ["x", "y"]}))
    with pytest.raises(ValueError, match=r"got polars Series; pass X.to_frame"):
        KMeans(1).fit(polars.Series([1.0, 2.0]))
