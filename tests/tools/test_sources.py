"""Every source keeps the same promises, wherever its rows lie."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from globular.data.binary_files import BinarySource, open_memmap
from globular.data.blocks import Source
from globular.data.open import as_source
from globular.data.sources import ArraySource, CSRSource, MemmapSource, concatenate
from globular.errors import DataError

N_ROWS, N_COLUMNS = 37, 3


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


def random_table(dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng(0).random((N_ROWS, N_COLUMNS)) * 100).astype(dtype)


def memory_mapped(array: np.ndarray, folder: Path, name: str = "x.npy") -> np.memmap:
    np.save(folder / name, array)
    return np.load(folder / name, mmap_mode="r")


def split_in_parts(array: np.ndarray, make: Any) -> Source:
    """Parts of 1, 9, 0 and 27 rows: single rows and empty parts are where borders go wrong."""
    return concatenate([make(part) for part in np.split(array, [1, 10, 10])], "parts")


KINDS = ("array", "fortran", "csr_matrix", "csr_array", "memmap", "memmap_fortran", "parts", "parts_csr", "parts_mixed")


def make_source(kind: str, X: np.ndarray, folder: Path) -> Source:
    if kind == "parts_mixed":
        return concatenate([ArraySource(X[:5]), open_memmap(memory_mapped(X[5:], folder))], "parts")
    makers = {
        "array": lambda: ArraySource(X),
        "fortran": lambda: ArraySource(np.asfortranarray(X)),
        "csr_matrix": lambda: CSRSource(sparse.csr_matrix(X)),
        "csr_array": lambda: CSRSource(sparse.csc_array(X)),
        "memmap": lambda: open_memmap(memory_mapped(X, folder)),
        "memmap_fortran": lambda: open_memmap(memory_mapped(np.asfortranarray(X), folder)),
        "parts": lambda: split_in_parts(X, ArraySource),
        "parts_csr": lambda: split_in_parts(X, lambda part: CSRSource(sparse.csr_matrix(part))),
    }
    return makers[kind]()


@pytest.fixture(params=KINDS)
def source_and_rows(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Source, np.ndarray]:
    X = random_table()
    X[X < 30] = 0  # so that the sparse ones are sparse
    return make_source(request.param, X, tmp_path), X


def test_source_describes_itself(source_and_rows: tuple[Source, np.ndarray]) -> None:
    source, X = source_and_rows
    assert isinstance(source, Source)
    assert (source.n_rows, source.n_columns, source.dtype) == (*X.shape, X.dtype)
    assert source.is_sparse == sparse.issparse(source.whole())
    np.testing.assert_array_equal(dense(source.whole()), X)


@pytest.mark.parametrize("max_rows", [1, 4, 10, 37, 1000])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, 29), (10, 10), (36, 37)])
def test_blocks_are_the_rows_in_order_twice(source_and_rows, max_rows, start, stop):
    source, X = source_and_rows
    end = N_ROWS if stop is None else stop
    for _ in range(2):
        position = start
        for block in source.blocks(max_rows, start, stop):
            assert (block.start, block.stop) == (position, min(position + max_rows, end))
            assert block.rows.dtype == source.dtype
            assert sparse.issparse(block.rows) == source.is_sparse
            np.testing.assert_array_equal(dense(block.rows), X[block.start : block.stop])
            position = block.stop
        assert position == end


@pytest.mark.parametrize("indices", [[], [36], [5, 0, 5, 36, 9, 10, 1], list(range(36, -1, -1))])
def test_take_keeps_order_and_repeats(source_and_rows: tuple[Source, np.ndarray], indices: list[int]) -> None:
    source, X = source_and_rows
    rows = source.take(np.array(indices, dtype=np.intp))
    assert rows.dtype == source.dtype and sparse.issparse(rows) == source.is_sparse
    np.testing.assert_array_equal(dense(rows), X[indices])


@pytest.mark.parametrize("indices", [[-1], [37], [0, 99]])
def test_take_refuses_rows_that_do_not_exist(source_and_rows: tuple[Source, np.ndarray], indices: list[int]) -> None:
    with pytest.raises(IndexError, match="between 0 and 36"):
        source_and_rows[0].take(np.array(indices))


def test_take_refuses_a_mask(source_and_rows: tuple[Source, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="1-D array of integers"):
        source_and_rows[0].take(np.ones(N_ROWS, dtype=bool))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"), [((0,), "max_rows"), ((5, 3, 99), "rows 3 to 99"), ((5, 8, 2), "rows 8 to 2")]
)
def test_blocks_refuses_bad_spans_at_once(source_and_rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        source_and_rows[0].blocks(*arguments)


@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=6), max_rows=st.integers(1, 12), data=st.data())
def test_parts_of_any_length_behave_like_one_array(lengths: list[int], max_rows: int, data: st.DataObject) -> None:
    X = np.arange(2 * sum(lengths), dtype=np.int16).reshape(-1, 2)
    source = concatenate([ArraySource(part) for part in np.split(X, np.cumsum(lengths)[:-1])], "parts")
    start = data.draw(st.integers(0, len(X)))
    stop = data.draw(st.integers(start, len(X)))
    blocks = list(source.blocks(max_rows, start, stop))
    joined = np.concatenate([np.empty((0, 2), np.int16)] + [block.rows for block in blocks])
    np.testing.assert_array_equal(joined, X[start:stop])
    assert all(len(block.rows) == max_rows for block in blocks[:-1])
    if len(X):
        indices = np.array(data.draw(st.lists(st.integers(0, len(X) - 1), max_size=9)), dtype=np.intp)
        np.testing.assert_array_equal(source.take(indices), X[indices])


def test_parts_with_other_columns_are_named() -> None:
    with pytest.raises(DataError, match=r"second: has 2 columns, but first has 3"):
        concatenate([ArraySource(np.ones((4, 3)), "first"), ArraySource(np.ones((4, 2)), "second")], "parts")
    with pytest.raises(DataError, match=r"second: is sparse, but first is not"):
        concatenate([ArraySource(np.ones((4, 3)), "first"), CSRSource(sparse.eye(3), "second")], "parts")


def test_parts_of_different_dtype_share_the_wider_one() -> None:
    source = concatenate([ArraySource(np.ones((2, 1), np.uint8)), ArraySource(np.full((2, 1), 0.5))], "parts")
    assert source.dtype == np.float64
    assert all(block.rows.dtype == np.float64 for block in source.blocks(1))
    np.testing.assert_array_equal(source.take(np.array([3, 0])), [[0.5], [1.0]])


def test_in_memory_sources_are_not_copied() -> None:
    X = random_table()
    assert as_source(X).whole() is X
    assert np.shares_memory(next(as_source(X).blocks(5)).rows, X)
    matrix = sparse.csr_matrix(X)
    assert np.shares_memory(as_source(matrix).whole().data, matrix.data)
    assert np.shares_memory(as_source(matrix).whole().indices, matrix.indices)
    assert concatenate([ArraySource(X)], "parts").whole() is X


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8", "int64", "bool", ">f4"])
def test_every_real_dtype_stays_as_it_is(dtype: str, tmp_path: Path) -> None:
    X = random_table(dtype)
    for source in (as_source(X), as_source(memory_mapped(X, tmp_path))):
        assert source.dtype == np.dtype(dtype)
        assert next(source.blocks(5)).rows.dtype == np.dtype(dtype)
        assert source.take(np.array([2, 1])).dtype == np.dtype(dtype)


def test_as_source_chooses_by_type(tmp_path: Path) -> None:
    X = random_table()
    mapped = memory_mapped(X, tmp_path)
    assert isinstance(as_source(mapped), BinarySource)
    assert isinstance(as_source(np.load(tmp_path / "x.npy", mmap_mode="c")), MemmapSource)
    assert as_source(mapped).name.endswith("x.npy")
    assert not as_source(mapped).in_memory
    assert isinstance(as_source(mapped.copy()), ArraySource)  # still of class memmap, but no file behind it
    for matrix in (sparse.coo_matrix(X), sparse.csc_array(X), sparse.lil_matrix(X)):
        np.testing.assert_array_equal(as_source(matrix).whole().toarray(), X)
    for same in (X.tolist(), tuple(map(tuple, X.tolist())), pd.DataFrame(X)):
        np.testing.assert_array_equal(as_source(same).whole(), X)
    for path in (tmp_path / "x.npy", str(tmp_path / "x.npy")):
        np.testing.assert_array_equal(as_source(path).whole(), X)
    source = as_source(X)
    assert as_source(source) is source


def test_csr_is_made_canonical_without_touching_the_original() -> None:
    matrix = sparse.csr_matrix((np.ones(3), np.array([2, 0, 2]), np.array([0, 3, 3])), shape=(2, 3))
    rows = as_source(matrix).whole()
    assert rows.has_canonical_format and rows.nnz == 2
    np.testing.assert_array_equal(rows.toarray(), [[1, 0, 2], [0, 0, 0]])
    assert matrix.indices.tolist() == [2, 0, 2]


def test_frames_with_nullable_and_mixed_columns_become_numbers() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [True, False, True], "c": [0.5, 1, 2]})
    rows = as_source(frame).whole()
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, [[1, 1, 0.5], [np.nan, 0, 1], [3, 1, 2]])


def test_frames_with_text_name_the_columns() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "city": ["Oslo", "Rome"], "day": pd.to_datetime(["2020-01-01"] * 2)})
    with pytest.raises(DataError, match=r"'city', 'day'.*select_dtypes"):
        as_source(frame)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones(4), "Expected 2D array, got 1D array"), (np.array(3.0), "got 0D array"),
        (np.ones((2, 2, 2)), r"got 3D array.*reshape\(len\(X\), -1\)"), (np.ones((0, 3)), "0 sample"),
        (np.ones((3, 0)), "0 feature"), (np.array([["a", "b"]]), "not numbers"),
        (np.array([[1, None]], dtype=object), "not numbers"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "not numbers"),
        (np.ones((2, 2), dtype=complex), "Complex data not supported"), (sparse.csr_matrix((0, 3)), "0 sample"),
        (sparse.csr_matrix(np.ones((2, 2), dtype=complex)), "Complex data not supported"),
        (sparse.coo_array(np.ones(4)), "got 1D array"), ([[1, 2], [3]], "not equally long"), ([], "got 1D array"),
        ("no/such/file.npy", "no such file"),
    ],
)  # fmt: skip
def test_unusable_data_is_refused_with_a_reason(X: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_source(X)


@pytest.mark.parametrize("X", [None, 3, {"a": [1]}, {1, 2}, iter([1])])
def test_other_types_are_refused(X: object) -> None:
    with pytest.raises(TypeError, match="X must be an array"):
        as_source(X)


def test_a_series_of_numbers_could_be_rows_or_a_row() -> None:
    with pytest.raises(DataError, match=r"2-dimensional container but got pandas Series; pass X.to_frame\(\)"):
        as_source(pd.Series([1.0]))


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="masked"):
        as_source(np.ma.masked_less(random_table(), 50))


def test_a_part_of_a_map_is_read_from_its_place_in_the_file(tmp_path: Path) -> None:
    X = random_table()
    mapped = memory_mapped(X, tmp_path)
    with (tmp_path / "x.bin").open("wb") as file:
        file.write(bytes(70_000) + X.tobytes())  # farther in than maps may begin
    far = np.memmap(tmp_path / "x.bin", dtype=X.dtype, mode="r", offset=70_000, shape=X.shape)
    columnwise = memory_mapped(np.asfortranarray(X), tmp_path, "f.npy")
    for whole in (mapped, far, columnwise):
        for part in (np.s_[:], np.s_[5:30], np.s_[:, 1:], np.s_[3:30, 1:2], np.s_[36:]):
            source = as_source(whole[part])
            assert isinstance(source, BinarySource)
            np.testing.assert_array_equal(source.whole(), X[part])
            np.testing.assert_array_equal(source.take(np.array([0, 0])), X[part][[0, 0]])
    for part in (np.s_[::-1], np.s_[:, ::2], np.s_[::3]):  # reads by calls, if it can
        np.testing.assert_array_equal(as_source(mapped[part]).whole(), X[part])


def test_what_was_written_to_a_map_counts(tmp_path: Path) -> None:
    memory_mapped(random_table(), tmp_path)
    for mode in ("r+", "c"):
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        mapped[5] = 7.0
        source = as_source(mapped)
        assert isinstance(source, BinarySource) == (mode == "r+")
        np.testing.assert_array_equal(source.whole(), mapped)


def test_a_map_of_a_file_that_was_replaced_shows_what_was_mapped(tmp_path: Path) -> None:
    X = random_table()
    mapped = memory_mapped(X, tmp_path)
    memory_mapped(X + 1, tmp_path, "new.npy")
    (tmp_path / "new.npy").replace(tmp_path / "x.npy")
    np.testing.assert_array_equal(as_source(mapped).whole(), X)
    (tmp_path / "x.npy").unlink()
    np.testing.assert_array_equal(as_source(mapped).whole(), X)


def test_a_map_of_a_file_that_changes_is_an_error_and_no_crash(tmp_path: Path) -> None:
    mapped = memory_mapped(np.ones((5000, 3)), tmp_path)
    source = as_source(mapped)
    os.truncate(tmp_path / "x.npy", 200)
    for read in (source.whole, lambda: source.take(np.array([4999])), lambda: list(source.blocks(9))):
        with pytest.raises(DataError, match=r"x\.npy: has changed since it was opened"):
            read()
    with pytest.raises(DataError, match=r"x\.npy: has 200 bytes, fewer than the 120,128 that were mapped"):
        as_source(mapped)
