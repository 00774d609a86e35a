"""Files of every format give the rows that were written; broken ones give one clear error."""

import gzip
import io
import json
import os
import pickle
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from globular.data.arrow_files import ArrowSource
from globular.data.blocks import Source
from globular.data.formats import described
from globular.errors import DataError, MemoryBudgetError, MissingExtraError
from globular.io import open_source, supported_formats, write_array
from makers import raising

RNG = np.random.default_rng(7)
X = np.round(RNG.random((53, 4)) * 200, 2).astype(np.float32)
X[X < 40] = 0


def write_vecs(path: Path, rows: np.ndarray) -> None:
    header = np.full((len(rows), 1), rows.shape[1], dtype="<i4").view(np.uint8)
    path.write_bytes(np.hstack([header, np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)]).tobytes())


def write_text(path: Path, rows: np.ndarray, header: str = "") -> None:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    np.savetxt(path, rows, fmt="%.9g", delimiter=delimiter, header=header.replace(",", delimiter), comments="")


def write_parquet(path: Path, rows: np.ndarray, row_group_size: int = 10) -> None:
    table = pa.table({f"c{j}": rows[:, j] for j in range(rows.shape[1])})
    pq.write_table(table, path, row_group_size=row_group_size)


def write_lists(path: Path, rows: np.ndarray, fixed: bool) -> None:
    kind = pa.list_(pa.float32(), rows.shape[1]) if fixed else pa.list_(pa.float32())
    pq.write_table(pa.table({"v": pa.array(rows.tolist(), type=kind)}), path, row_group_size=10)


def write_h5(path: Path, rows: np.ndarray, name: str = "X", chunks: tuple[int, int] | None = None) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=rows, chunks=chunks, maxshape=(None, None) if chunks else None)


def write_svm(path: Path, rows: np.ndarray) -> None:
    dump_svmlight_file(rows, np.zeros(len(rows)), str(path), zero_based=False)


def write_packed(path: Path, rows: np.ndarray) -> None:
    plain = path.with_suffix("")
    write_text(plain, rows, "a,b,c,d")
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_json(path: Path, rows: np.ndarray, kind: str) -> None:
    def line(row: list[float]) -> Any:
        return {"objects": dict(zip("abcd", row, strict=True)), "lists": {"v": row}, "bare": row}[kind]

    path.write_text("".join(json.dumps(line(row)) + "\n" for row in rows.tolist()))


def write_feather(path: Path, rows: np.ndarray, *, lists: bool) -> None:
    columns = {f"c{j}": rows[:, j] for j in range(rows.shape[1])}
    table = pa.table({"v": pa.array(rows.tolist(), pa.list_(pa.float32()))} if lists else columns)
    feather.write_feather(table, str(path), chunksize=10)


WRITERS: dict[str, tuple[str, Callable[[Path, np.ndarray], Any]]] = {
    "npy": ("x.npy", np.save),
    "npy in Fortran order": ("x.npy", lambda path, rows: np.save(path, np.asfortranarray(rows))),
    "npz": ("x.npz", np.savez),
    "npz compressed, X among others": ("x.npz", lambda path, rows: np.savez_compressed(path, X=rows, y=rows[:, 0])),
    "npz of a csr_matrix": ("x.npz", lambda path, rows: sparse.save_npz(path, sparse.csr_matrix(rows))),
    "npz of a coo_array": ("x.npz", lambda path, rows: sparse.save_npz(path, sparse.coo_array(rows))),
    "csv": ("x.csv", write_text),
    "csv with names": ("X.CSV", lambda path, rows: write_text(path, rows, "a,b,c,d")),
    "tsv with names": ("x.tsv", lambda path, rows: write_text(path, rows, "a,b,c,d")),
    "parquet": ("x.parquet", write_parquet),
    "parquet of fixed-size lists": ("x.parquet", lambda path, rows: write_lists(path, rows, fixed=True)),
    "parquet of lists": ("x.parquet", lambda path, rows: write_lists(path, rows, fixed=False)),
    "csv.gz": ("x.csv.gz", write_packed),
    "csv with semicolons": ("x.csv", lambda path, rows: np.savetxt(path, rows, fmt="%.9g", delimiter=";")),
    "csv with tabs": (
        "x.csv",
        lambda path, rows: np.savetxt(path, rows, fmt="%.9g", delimiter="\t", header="a\tb\tc\td"),
    ),
    "csv with spaces": ("x.csv", lambda path, rows: np.savetxt(path, rows, fmt="%.9g")),
    "jsonl of objects": ("x.jsonl", lambda path, rows: write_json(path, rows, "objects")),
    "jsonl of lists with a name": ("x.ndjson", lambda path, rows: write_json(path, rows, "lists")),
    "jsonl of lists": ("x.jsonl", lambda path, rows: write_json(path, rows, "bare")),
    "feather": ("x.feather", lambda path, rows: write_feather(path, rows, lists=False)),
    "feather of lists": ("x.arrow", lambda path, rows: write_feather(path, rows, lists=True)),
    "fvecs": ("x.fvecs", write_vecs),
    "h5": ("x.h5", write_h5),
    "h5 in chunks": ("x.hdf5", lambda path, rows: write_h5(path, rows, "group/points", (7, 2))),
    "svmlight": ("x.svm", write_svm),
}
TEXTS = ("csv", "tsv", "svm", "jsonl")
# each format again as a folder of parts; one of them a single row
CASES = [pytest.param(name, folder, id=name + " folder" * folder) for name in WRITERS for folder in (False, True)]


def write_case(name: str, folder: bool, directory: Path, rows: np.ndarray = X) -> Path:
    file_name, write = WRITERS[name]
    if not folder:
        write(directory / file_name, rows)
        return directory / file_name
    parts = directory / "parts"
    parts.mkdir()
    for number, part in enumerate(np.split(rows, [20, 21])):
        write(parts / f"part{number}{''.join(Path(file_name).suffixes)}", part)
    (parts / "_SUCCESS").touch()
    (parts / ".part0.crc").touch()
    return parts


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


def set_piece_bytes(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    for module in ("streamed", "text_files", "hdf5_files"):
        monkeypatch.setattr(f"globular.data.{module}.PIECE_BYTES", n_bytes)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few rows at a time, so that small files have as many borders as large ones."""
    set_piece_bytes(monkeypatch, 100)


@pytest.mark.parametrize(("name", "folder"), CASES)
def test_file_gives_back_its_rows_and_parts_of_itself(name: str, folder: bool, tmp_path: Path) -> None:
    source = open_source(write_case(name, folder, tmp_path))
    assert isinstance(source, Source)
    assert (source.n_rows, source.n_columns) == X.shape
    assert source.is_sparse == (name.endswith(("csr_matrix", "coo_array")) or name == "svmlight")
    assert source.dtype == (np.float64 if name.startswith(TEXTS) else np.float32)
    np.testing.assert_array_equal(dense(source.whole()).astype(np.float32), X)
    for max_rows in (1, 8, 99):
        rows = np.concatenate([dense(block.rows) for block in source.blocks(max_rows)])
        np.testing.assert_array_equal(rows.astype(np.float32), X)
    for start, stop in ((0, 1), (9, 11), (13, 47), (20, 21), (52, 53), (30, 30)):
        blocks = list(source.blocks(6, start, stop))
        assert [block.start for block in blocks] == list(range(start, stop, 6))
        assert all(block.rows.dtype == source.dtype for block in blocks)
        for block in blocks:
            np.testing.assert_array_equal(dense(block.rows).astype(np.float32), X[block.start : block.stop])
    indices = RNG.integers(0, len(X), size=40)
    np.testing.assert_array_equal(dense(source.take(indices)).astype(np.float32), X[indices])
    assert source.take(np.array([], dtype=np.intp)).shape == (0, 4)


@pytest.mark.parametrize(("suffix", "dtype"), [(".bvecs", "uint8"), (".ivecs", "int32")])
def test_integer_vecs_stay_integers(suffix: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    write_vecs(path, X.astype(dtype))
    source = open_source(path)
    assert source.dtype == np.dtype(dtype) and not source.in_memory
    np.testing.assert_array_equal(source.take(np.array([50, 3])), X.astype(dtype)[[50, 3]])


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int64", "bool"])
def test_narrow_types_stay_in_parquet_and_h5(dtype: str, tmp_path: Path) -> None:
    rows = X.astype(dtype)
    write_parquet(tmp_path / "x.parquet", rows)
    write_h5(tmp_path / "x.h5", rows)
    for path in (tmp_path / "x.parquet", tmp_path / "x.h5"):
        source = open_source(path)
        assert source.dtype == np.dtype(dtype)
        assert next(source.blocks(30)).rows.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(source.whole(), rows)


def test_reading_in_blocks_holds_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy reports its arrays to tracemalloc; a mapping is not among them."""
    set_piece_bytes(monkeypatch, 10_000)
    rows = np.arange(256_000, dtype=np.float32).reshape(4000, 64)
    np.save(tmp_path / "x.npy", rows)
    write_vecs(tmp_path / "x.fvecs", rows)
    write_h5(tmp_path / "x.h5", rows, chunks=(50, 64))
    write_parquet(tmp_path / "x.parquet", rows, row_group_size=100)
    write_array(tmp_path / "x.csv", rows)
    for suffix in (".npy", ".fvecs", ".h5", ".parquet", ".csv"):
        path = tmp_path / f"x{suffix}"
        next(open_source(path).blocks(1))  # imports are not what we measure
        tracemalloc.start()
        source = open_source(path)
        total = sum(float(block.rows.sum(dtype=np.float64)) for block in source.blocks(100))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == rows.sum(dtype=np.float64)
        assert peak < rows.nbytes / 4, suffix


def test_parquet_reads_only_the_row_groups_needed(tmp_path: Path, watch: Any) -> None:
    source = open_source(write_case("parquet", False, tmp_path))
    read = watch(ArrowSource, "_pieces", lambda source, segment, *_: segment)
    source.take(np.array([52, 1, 45, 3]))
    assert read == [0, 4, 5]
    read.clear()
    list(source.blocks(100, 12, 25))
    assert read == [1, 2]


def test_columns_choose_and_order(tmp_path: Path) -> None:
    write_text(tmp_path / "x.csv", X, "a,b,c,d")
    pq.write_table(pa.table({name: X[:, j] for j, name in enumerate("abcd")}), tmp_path / "x.parquet")
    for path in (tmp_path / "x.csv", tmp_path / "x.parquet"):
        source = open_source(path, columns=["d", "b"])
        np.testing.assert_array_equal(source.whole().astype(np.float32), X[:, [3, 1]])
        with pytest.raises(DataError, match=r"no column 'z'; it has: a, b, c, d"):
            open_source(path, columns=["a", "z"])
        with pytest.raises(TypeError, match=r"columns must be a list of names.*\['d'\]"):
            open_source(path, columns="d")
        with pytest.raises(DataError, match="names no column"):
            open_source(path, columns=[])


@pytest.mark.parametrize("folder", [False, True])
def test_names_of_columns_are_known_where_the_format_has_them(folder: bool, tmp_path: Path) -> None:
    for name, expected in (("csv with names", tuple("abcd")), ("parquet", ("c0", "c1", "c2", "c3")), ("csv", None)):
        directory = tmp_path / name
        directory.mkdir()
        assert getattr(open_source(write_case(name, folder, directory)), "column_names", None) == expected


def test_columns_need_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    write_text(tmp_path / "x.csv", X)
    with pytest.raises(DataError, match=r"x\.npy: columns= works only for \.csv, \.tsv, \.parquet"):
        open_source(tmp_path / "x.npy", columns=["a"])
    with pytest.raises(DataError, match=r"x\.csv: has no line of column names"):
        open_source(tmp_path / "x.csv", columns=["a"])


# --- text -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("1,2\n3,4", [[1, 2], [3, 4]]),  # no line end after the last row
        ("1,2\r\n\r\n3,4\r\n", [[1, 2], [3, 4]]),  # Windows, and a blank line
        ("\ufeffa,b\n1,2\n", [[1, 2]]),  # byte order mark
        ("\ufeff1,2\n", [[1, 2]]),
        ("\n\na,b\n1,2\n", [[1, 2]]),
        ("# a,b\n1,2\n", [[1, 2]]),  # numpy.savetxt's header
        ('"a","b,c"\n"1","2"\n', [[1, 2]]),
        ("größe,b\n1e3,-2.5E-1\n", [[1000, -0.25]]),
        ("0,1,2\n5.5,6.0,7.0\n", [[5.5, 6, 7]]),  # pandas' names of unnamed columns
        ("0,1,2\n5,6,7\n", [[0, 1, 2], [5, 6, 7]]),  # could be data, so it is
        ("0,1\n5.5,6.5\n", [[0, 1], [5.5, 6.5]]),
        ("year,2019,2020\n5,6,7\n", [[5, 6, 7]]),
        ("x\n1\n\n2\n", [[1], [2]]),
        (" 1, +2\n nan, inf\n", [[1, 2], [np.nan, np.inf]]),
    ],
)
def test_csv_dialects(text: str, expected: list[list[float]], tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(open_source(path).whole(), expected)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("x,city\n1,Oslo\n2,Rome\n", None, r"data row 1: column 'city' holds 'Oslo'.*columns="),
        ("x,y\n" + "1,2\n" * 90 + "3,four\n", None, r"data row 91: column 'y' holds 'four'"),
        ("1,2\n3,x\n", None, r"data row 2: column 2 holds 'x'"),
        ("x,y\n1,\n", None, r"data row 1: column 'y' holds ''.*fill in the missing"),
        ("1.5,\n2,3\n", None, r"data row 1: column 2 holds ''"),  # a first row, not a header
        ("NA,2\n2,3\n", None, r"data row 1: column 1 holds 'NA'.*fill in the missing"),
        ("x,y\n1,2\n1,2,3\n", None, r"data row 2 has 3 fields instead of 2"),
        ("x,y,z\n1,2,3\n1,2\n", ["x"], r"data row 2 has 2 fields instead of 3"),
        ("x,y,z\n1,2\n1,2,3,4\n", ["x"], r"data row 1 has 2 fields instead of 3"),
        ("x,y,z\n1,2\n1,2,3,4\n", None, r"data row 1 has 2 fields instead of 3"),
        ("x,y\n1,2,3\n1,2,3\n", None, r"data row 1 has 3 fields instead of 2"),
        ("x,y\n1_0,2\n", None, r"column 'x' holds '1_0'"),
        ("a;b\n1,5;2,5\n", None, r"column 'a' holds '1,5'.*decimal points"),
        ("1,5;2,5\n1,5;2,5\n", None, r"holds '1,5'.*decimal points"),
        (",a,b\n0,1,2\n", None, r"first column has no name.*index=False"),
        (",0,1,2\n0,1.5,2.5,3.5\n", None, r"first column has no name"),
        ("a,a\n1,2\n", ["a"], r"2 columns are called 'a'; rename them$"),
        ("a,a,b\n1,2,3\n", None, r"2 columns are called 'a'; rename them, or choose others: .*columns="),
        ("a,b\n1,2\n", ["a", "a"], r"column 'a' is asked for twice"),
        ("a,b\n", None, r"0 sample"),
        ("\n\n", None, r"has no rows"),
        ("1,2\0\n", None, r"not a text file"),
    ],
)
def test_csv_faults_are_located(text: str, columns: list[str] | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=rf"x\.csv: {message}|x\.csv: .*{message}"):
        open_source(path, columns=columns).whole()


def test_csv_text_columns_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes('x,city,y\n1,"Oslo, Norway",2\n3,Malmö,4\n'.encode("latin-1"))
    source = open_source(path, columns=["y", "x"])
    np.testing.assert_array_equal(source.whole(), [[2, 1], [4, 3]])
    path.write_bytes(b'x,note,y\n1,"a, b",2\n3,wait\x85,4\n')  # \x85 is a line end to str.splitlines
    np.testing.assert_array_equal(open_source(path, columns=["x", "y"]).whole(), [[1, 2], [3, 4]])
    path.write_text('x,city\n1,"Oslo\nNorway"\n3,Rome\n')
    with pytest.raises(DataError, match=r"fields instead|a row per line, without breaks"):
        open_source(path, columns=["x"])


# --- parquet --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"x": [1.0], "city": ["Oslo"]}, None, r"'city' \((large_)?string\) does not hold numbers.*columns=\['x'\]"),
        ({"city": ["Oslo"]}, None, "has no numeric column"),
        ({"id": [1], "v": [[1.0, 2.0]]}, None, r"'v' holds lists and 1 other.*columns=\['v'\]"),
        ({"id": [1], "name": ["a"], "v": [[1.0, 2.0]]}, None, r"'name'.*columns=\['v'\]"),
        ({"v": [[1.0, 2.0], [1.0]]}, None, "lists of length 2 and 1"),
        ({"v": [[1.0, 2.0], None]}, None, "'v' has missing values"),
        ({"v": [[1.0, 2.0], [1.0, None]]}, None, "'v' has missing values"),
        ({"v": [None, [1.0]]}, None, "first row is missing or empty"),
        ({"x": [1.0, None]}, None, "'x' has missing values"),
        ({"n": [1, None]}, None, "'n' has missing values"),
        ({"v": [["a"]]}, None, "'v' .* does not hold numbers"),
        ({"x": pa.array([], pa.float32())}, None, "0 sample"),
    ],
)
def test_parquet_columns_that_do_not_fit_are_named(table, columns, message, tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=rf"x\.parquet: .*{message}"):
        open_source(path, columns=columns).whole()


def test_parquet_column_is_chosen_among_text_and_similar_names(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = {"id": ["a", "b"], "v": [[1.0, 2.0], [3.0, 4.0]], "v.extra": [7, 8], "__index_level_0__": [0, 1]}
    pq.write_table(pa.table(table), path)
    np.testing.assert_array_equal(open_source(path, columns=["v"]).whole(), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(open_source(path, columns=["v.extra"]).whole(), [[7], [8]])


def test_parquet_index_of_pandas_is_not_data(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0], "__index_level_0__": [10, 20]}), tmp_path / "x.parquet")
    np.testing.assert_array_equal(open_source(tmp_path / "x.parquet").whole(), [[1], [2]])


def test_parquet_damage_inside_is_noticed(tmp_path: Path) -> None:
    """Files that carry checksums, as ours do, are checked against them."""
    path = tmp_path / "x.parquet"
    write_array(path, RNG.random((500, 4)))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.parquet: is truncated, corrupt"):
        open_source(path).whole()


def test_parquet_mixed_numbers_get_a_common_type(tmp_path: Path) -> None:
    table = {"a": pa.array([1, 2], pa.uint8()), "b": pa.array([0.5, 1.5], pa.float32())}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert source.dtype == np.float32
    np.testing.assert_array_equal(source.whole(), [[1, 0.5], [2, 1.5]])


# --- containers -----------------------------------------------------------------------------------------------
def test_h5_dataset_is_selected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    write_h5(path, X, "train")
    write_h5(path, X[:5] * 2, "deep/test")
    write_h5(path, np.arange(5), "labels")
    np.testing.assert_array_equal(open_source(f"{path}::deep/test").whole(), X[:5] * 2)
    with pytest.raises(DataError, match=r"x\.h5: needs one .* it has: deep/test, train.*::NAME"):
        open_source(path)
    with pytest.raises(DataError, match=r"no dataset 'nope'.*deep/test, train"):
        open_source(f"{path}::nope")
    with pytest.raises(DataError, match=r"x\.h5::labels: Expected 2D array, got 1D"):
        open_source(f"{path}::labels")


def test_array_names_are_for_archives_only(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DataError, match=r"::X chooses an array of \.npz, \.h5"):
        open_source(f"{tmp_path / 'x.npy'}::X")


def test_npz_with_several_arrays_lists_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train=X, test=X)
    with pytest.raises(DataError, match=r"x\.npz: needs one array.*train, test.*::NAME"):
        open_source(tmp_path / "x.npz")
    np.testing.assert_array_equal(open_source(f"{tmp_path / 'x.npz'}::test").whole(), X)
    with pytest.raises(DataError, match=r"x\.npz: has no array 'other'; it holds: train, test"):
        open_source(f"{tmp_path / 'x.npz'}::other")


def test_a_pattern_is_the_files_that_match_it(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(X, [20, 30])):
        np.save(tmp_path / f"part-{number}.npy", part)
    np.save(tmp_path / "other.npy", X)
    np.testing.assert_array_equal(open_source(tmp_path / "part-*.npy").whole(), X)
    with pytest.raises(DataError, match=r"nothing-\*\.npy: no file matches"):
        open_source(tmp_path / "nothing-*.npy")
    (tmp_path / "part-3.csv").write_text("1,2,3,4\n")
    with pytest.raises(DataError, match=r"part-3\.csv: is not a \.npy file"):
        open_source(tmp_path / "part-*")
    np.save(tmp_path / "part-[1].npy", X[:7])  # a file of that very name
    assert open_source(tmp_path / "part-[1].npy").n_rows == 7


def test_addresses_are_refused() -> None:
    for address in ("https://example.org/x.npy", "s3://bucket/x.parquet"):
        with pytest.raises(DataError, match=rf"{address}: globular reads files and no addresses; download it first"):
            open_source(address)


def test_what_gzip_unpacks_to_must_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n" * 100_000))
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 50_000)
    with pytest.raises(MemoryBudgetError, match=r"x\.csv\.gz: its text, unpacked.*unpack it"):
        open_source(path)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ('{"a": 1, "t": "x"}\n', None, r"column 't' \(string\) does not hold numbers; .*columns=\['a'\]"),
        ('{"a": 1, "v": [1, 2]}\n', None, r"column 'v' holds lists and 1 other columns stand beside it"),
        ('{"a": 1}\n{"b": 1}\n', None, r"column 'a' has missing values \(row 2\)"),
        ('{"a": 1}\n{"a": null}\n', None, r"column 'a' has missing values \(row 2\)"),
        ('{"a": 1}\n{"a": "x"}\n', None, r"row 2 holds what is not a number"),
        ('{"a": 1}\n{"a":\n', None, r"row 2 is not JSON"),
        ('{"a": 1}\n{"a": 1, "b": ' + "[" * 1_000_000 + "\n", None, r"row 2 is not JSON"),
        ("[1, 2]\n[1, 2, 3]\n", None, r"lists of length 2 and 3 \(row 2\)"),
        ("[1, 2]\n[1,\n", None, r"row 2 is not JSON"),
        ("[1, 2]\n", ["a"], r"lists without names"),
        ("[" * 100_000 + "\n", None, r"row 1 is not JSON"),
        ("3\n", None, r"neither an object nor a list"),
        ("\n\n", None, r"has no rows"),
    ],
)
def test_json_faults_are_located(text: str, columns: list[str] | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"x\.jsonl: .*{message}"):
        open_source(path, columns=columns).whole()


def test_json_columns_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "a", "v": [1, 2], "n": 3}\n\n{"n": 6, "id": "b", "v": [4, 5]}\n')
    np.testing.assert_array_equal(open_source(path, columns=["v"]).whole(), [[1, 2], [4, 5]])
    np.testing.assert_array_equal(open_source(path, columns=["n"]).whole(), [[3], [6]])


def test_tables_are_described_whatever_they_hold(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": "a", "v": [0.5, 1.5]}, {"id": 2, "name": "b", "v": [2.5, 3.5]}]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "x.parquet")
    feather.write_feather(table, str(tmp_path / "x.feather"))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("x.parquet", "x.feather", "x.jsonl"):
        found = described(tmp_path / name)
        assert found is not None and found[0] == 2
        assert [(column.name, column.kind) for column in found[1]] == [
            ("id", "numbers"), ("name", "other"), ("v", "lists"),
        ], name  # fmt: skip
    (tmp_path / "x.csv").write_text("id;name;gap\n1;a;\n2;b;3\n")
    n_rows, columns = described(tmp_path / "x.csv") or (0, [])
    assert n_rows == 2 and [column.type for column in columns] == ["number", "text", "number"]
    np.save(tmp_path / "x.npy", X)
    assert described(tmp_path / "x.npy") is None


def test_npz_with_sparse_indices_out_of_range_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    parts = {"indices": np.array([0, 99]), "indptr": np.array([0, 2]), "data": np.ones(2), "shape": np.array([1, 3])}
    np.savez(path, format=np.array(b"csr"), **parts)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"x\.npz: is not a valid sparse matrix \(indices between 0 and 99"):
        open_source(path)


def test_svmlight_parts_agree_on_columns(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:5 2:6\n")
    (tmp_path / "b.svm").write_text("0,3 4:7 # several labels\n")
    np.testing.assert_array_equal(open_source(tmp_path).whole().toarray(), [[5, 6, 0, 0], [0, 0, 0, 7]])


# --- what is not a table --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "keep"),
    # a text that ends early is still a text, so for those only the empty one can be known to be wrong
    [
        (name, keep)
        for name in WRITERS
        for keep in (0, 3, 0.3, 0.6, -2)
        if keep == 0 or name == "csv.gz" or not name.startswith(TEXTS)
    ],
)
def test_truncated_files_are_refused(name: str, keep: float, tmp_path: Path) -> None:
    path = write_case(name, False, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(DataError, match=path.name):
        open_source(path).whole()


@pytest.mark.parametrize("suffix", supported_formats())
def test_files_of_another_kind_are_refused(suffix: str, tmp_path: Path) -> None:
    packed = gzip.compress(b"one,two\n" * 99 if suffix.endswith(".gz") else b"1,2\n" * 99)
    for content in (b"Dear reader, this is\nnot a table of numbers.\n" * 9, packed, b"\0" * 64):
        path = tmp_path / f"wrong{suffix}"
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"wrong\{suffix}"):
            open_source(path).whole()


class Bomb:
    """Says so if anybody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (os.environ["GLOBULAR_TEST_BOMB"],))


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crater = tmp_path / "crater"
    monkeypatch.setenv("GLOBULAR_TEST_BOMB", str(crater))
    objects = np.array([[Bomb(), 1]], dtype=object)
    np.save(tmp_path / "a.npy", objects)
    np.savez(tmp_path / "b.npz", X=objects)
    (tmp_path / "c.npy").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "d.npz").write_bytes(pickle.dumps(Bomb()))
    refusals = {"a.npy": "Python objects", "b.npz": "Python objects", "c.npy": "not a", "d.npz": "not a"}
    for name, message in refusals.items():
        with pytest.raises(DataError, match=rf"{name}: .*{message}"):
            open_source(tmp_path / name)
    assert not crater.exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(5), "Expected 2D array, got 1D"), (np.ones((2, 2, 2)), "got 3D array"),
        (np.ones((2, 2), complex), "Complex data not supported"), (np.array([["a"]]), "not numbers"),
        (np.ones((0, 4)), "0 sample"), (np.ones((4, 0)), "0 feature"),
    ],
)  # fmt: skip
def test_arrays_of_the_wrong_kind_are_refused(array: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", X=array)
    for path in (tmp_path / "x.npy", tmp_path / "x.npz"):
        with pytest.raises(DataError, match=rf"{path.name}: .*{message}"):
            open_source(path)


def test_vecs_headers_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.fvecs"
    rows = np.tile(X, (40, 1))
    write_vecs(path, rows)
    content = bytearray(path.read_bytes())
    content[1001 * 20 : 1001 * 20 + 4] = np.int32(3).tobytes()  # a row that the sample on opening does not see
    path.write_bytes(content)
    source = open_source(path)
    assert len(list(source.blocks(1000, 0, 1001))) == 2
    for read in (source.whole, lambda: source.take(np.array([5, 1001])), lambda: list(source.blocks(100))):
        with pytest.raises(DataError, match=r"x\.fvecs: row 1001 has length 3, the first row 4"):
            read()
    content[-20:-16] = np.int32(9).tobytes()
    path.write_bytes(content)
    with pytest.raises(DataError, match="row 2119 has length 9"):
        open_source(path)


def test_unknown_formats_are_told_the_known_ones(tmp_path: Path) -> None:
    for name in ("x.xlsx", "x", "x.npy.gz"):
        (tmp_path / name).write_text("?")
        with pytest.raises(DataError, match=r"is not known; globular reads .*\.npy.*\.parquet.*\.svmlight"):
            open_source(tmp_path / name)
    with pytest.raises(DataError, match=r"missing\.npy: no such file"):
        open_source(tmp_path / "missing.npy")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy").chmod(0)
    with pytest.raises(DataError, match=r"x\.npy: cannot be read"):
        open_source(tmp_path / "x.npy")


def test_folders_hold_one_format_and_the_same_columns(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(DataError, match="parts: the folder is empty"):
        open_source(folder)
    write_text(folder / "a.csv", X, "p,q,r,s")
    write_text(folder / "b.csv", X, "p,q,s,r")
    with pytest.raises(DataError, match=r"b\.csv: its columns are not those of .*a\.csv"):
        open_source(folder)
    np.testing.assert_array_equal(
        open_source(folder, columns=["s"]).whole().astype(np.float32), np.vstack([X[:, 3:], X[:, 2:3]])
    )
    write_text(folder / "b.csv", X[:, :2], "p,q")
    with pytest.raises(DataError, match=r"b\.csv: has 2 columns, but .*a\.csv has 4"):
        open_source(folder)
    (folder / "b.csv").unlink()
    np.save(folder / "c.npy", X)
    with pytest.raises(DataError, match=r"c\.npy: is not a \.csv file like a\.csv"):
        open_source(folder)
    (folder / "c.npy").unlink()
    (folder / "deeper").mkdir()
    with pytest.raises(DataError, match=r"deeper: a folder of parts must not hold folders"):
        open_source(folder)


def test_empty_parts_are_skipped_over(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(X, [0, 9, 9])):
        write_parquet(tmp_path / f"{number}.parquet", part)
    source = open_source(tmp_path)
    np.testing.assert_array_equal(source.whole(), X)
    np.testing.assert_array_equal(source.take(np.array([9, 8])), X[[9, 8]])


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.feather", "x.parquet", "x.h5"])
def test_missing_extra_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(b"anything")
    package = "h5py" if name == "x.h5" else "pyarrow"
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*globular\[io\]"):
        open_source(tmp_path / name)


# --- writing --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "float16", "bool"])
def test_written_arrays_read_back_exactly(suffix: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    values = (RNG.standard_normal((30, 3)) * 1e3).astype(dtype)
    write_array(path, values)
    np.testing.assert_array_equal(open_source(path).whole().astype(dtype), values)
    write_array(path, np.asfortranarray(values)[::2])
    np.testing.assert_array_equal(open_source(path).whole().astype(dtype), values[::2])
    write_array(path, values[:, 1])
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(path), values[:, 1])
    else:
        np.testing.assert_array_equal(open_source(path).whole().astype(dtype)[:, 0], values[:, 1])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", ["int64", "float16", "float32", "float64", "longdouble"])
def test_a_first_row_that_counts_is_not_lost_in_csv(dtype: str, tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [0.5, 0.25, 7]]).astype(dtype)
    write_array(tmp_path / "x.csv", values)
    np.testing.assert_array_equal(open_source(tmp_path / "x.csv").whole(), values)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_failed_write_leaves_the_old_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"x{suffix}"
    write_array(path, X)
    before = path.read_bytes()

    monkeypatch.setattr(os, "fsync", raising(OSError(28, "No space left on device")))
    with pytest.raises(DataError, match=rf"x\{suffix}: cannot be written \(No space left"):
        write_array(path, X * 2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("x.txt", X, r"name ends in .npy or .csv or .parquet"),
        ("x.npy", np.ones((2, 2, 2)), "1-D or 2-D"),
        ("x.npy", np.array(["a"]), "numeric"),
        ("x.npy", np.array([None]), "numeric"),
        ("no/such/x.npy", X, "does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused(name: str, array: np.ndarray, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        write_array(tmp_path / name, array)
    assert list(tmp_path.iterdir()) == []


def test_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_array(tmp_path / "x.npy", X)
    assert (tmp_path / "x.npy").stat().st_mode == (tmp_path / "plain").stat().st_mode


# --- files that change while they are in use --------------------------------------------------------------------

CHANGES: dict[str, Callable[[Path, Path], Any]] = {
    "overwritten by numbers of the same shape": lambda path, other: path.write_bytes(other.read_bytes()),
    "replaced by another file": lambda path, other: os.replace(other, path),
    "truncated": lambda path, other: os.truncate(path, path.stat().st_size // 3),
    "extended": lambda path, other: path.write_bytes(path.read_bytes() + b"1,2,3,4\n"),
    "deleted": lambda path, other: path.unlink(),
}
STREAMED = [name for name in WRITERS if not name.startswith(("npz", "svm"))]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", STREAMED)
def test_a_file_that_changes_is_noticed_in_the_middle_of_a_pass(name: str, change: str, tmp_path: Path) -> None:
    """By every way of reading, whichever rows are read, and without a crash."""
    (tmp_path / "new").mkdir()
    path, other = write_case(name, False, tmp_path), write_case(name, False, tmp_path / "new", X[::-1] * 2)
    os.utime(path, ns=(1, 1))  # the clock of a file system may be coarser than this test is long
    source = open_source(path)
    pass_ = source.blocks(6)
    next(pass_)
    CHANGES[change](path, other)
    for read in (lambda: list(pass_), lambda: source.take(np.array([50, 2])), source.whole):
        with pytest.raises(DataError, match=rf"{path.name}: (has changed since|was there when) it was opened"):
            read()


def test_a_part_of_a_folder_that_changes_is_named(tmp_path: Path) -> None:
    folder = write_case("npy", True, tmp_path)
    source = open_source(folder)
    os.truncate(folder / "part2.npy", 200)
    assert len(next(source.blocks(6)).rows) == 6
    for read in (source.whole, lambda: list(source.blocks(6)), lambda: source.take(np.array([0, 52]))):
        with pytest.raises(DataError, match=r"part2\.npy: has changed"):
            read()


@pytest.mark.parametrize("name", ["npy", "npy in Fortran order", "fvecs"])
def test_a_file_that_shrinks_between_check_and_read_is_an_error_not_a_crash(name, tmp_path, monkeypatch):
    source = open_source(write_case(name, False, tmp_path))
    monkeypatch.setattr("globular.data.streamed.FileVersion.check", lambda self: None)
    os.truncate(tmp_path / WRITERS[name][0], 300)
    for read in (source.whole, lambda: source.take(np.array([52]))):
        with pytest.raises(DataError, match="ends before its last row"):
            read()


# --- bombs and files that point elsewhere -----------------------------------------------------------------------
def npy_header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_npz_is_refused_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared must be there, and must fit; neither is asked for before that is known."""
    path = tmp_path / "x.npz"
    for declared in ((2**40, 128), (5, 4), (0, 4)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", npy_header(declared) + bytes(64))
        with pytest.raises(DataError, match=r"x\.npz: is truncated or corrupt \(X declares [\d,]+ bytes"):
            open_source(path)
    np.savez_compressed(path, X=np.zeros((1000, 4)))
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_matrix(np.ones((1000, 4))))
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 10_000)
    for name in ("x.npz", "s.npz"):
        with pytest.raises(MemoryBudgetError, match=rf"{name}: its .* would take .* GiB, this process may use"):
            open_source(tmp_path / name)


def test_sparse_npz_that_would_grow_in_csr_is_refused(tmp_path: Path) -> None:
    """A few entries may lie in any number of rows."""
    place = (np.array([1.0]), (np.array([0]), np.array([0])))
    sparse.save_npz(tmp_path / "x.npz", sparse.coo_matrix(place, shape=(2**48, 3)))
    with pytest.raises(MemoryBudgetError, match=r"x\.npz: a CSR matrix of 281474976710656 rows"):
        open_source(tmp_path / "x.npz")


def test_whole_rows_and_single_rows_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_case(name, False, tmp_path) for name in ("npy", "h5", "parquet", "fvecs")]
    sources = [open_source(path) for path in paths]
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 500)
    for source in sources:
        with pytest.raises(MemoryBudgetError, match=r"all 53 rows together would take .*; read it in blocks"):
            source.whole()
        assert len(next(source.blocks(5)).rows) == 5
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 8)
    for path in paths:
        with pytest.raises(MemoryBudgetError, match=r"would take .* GiB, this process may use"):
            open_source(path)


def test_h5_that_declares_too_much_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("many", (2**60, 64), dtype="f8", chunks=(2**12, 64))
        file.create_dataset("together", (2**40, 2**12), dtype="u1", chunks=(2**30, 1))
    for name in ("many", "together"):
        with pytest.raises(MemoryBudgetError, match=rf"x\.h5::{name}: its \d+ rows that are stored together"):
            open_source(f"{tmp_path / 'x.h5'}::{name}")


def test_memory_that_is_not_there_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svm(tmp_path / "x.svm", X)
    np.savez(tmp_path / "x.npz", X=X)
    for name in ("formats._load_svmlight", "binary_files.ArraySource"):
        monkeypatch.setattr(f"globular.data.{name}", raising(MemoryError))
    for name in ("x.svm", "x.npz"):
        with pytest.raises(DataError, match=rf"{name}: (asks for more memory|cannot be read \(out of memory)"):
            open_source(tmp_path / name)


def test_svmlight_columns_beyond_all_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.svm").write_text("1 99999999999999999999999:1\n")
    with pytest.raises(DataError, match=r"x\.svm: is truncated or not in svmlight format"):
        open_source(tmp_path / "x.svm")


@pytest.mark.parametrize("text", ["1" * 999, "1,2\n3," + "4" * 999 + "\n", "a" * 999 + "\n1\n"])
def test_csv_lines_without_end_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.data.text_files._LONGEST_LINE", 400)
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=r"x\.csv: has a line of more than"):
        open_source(tmp_path / "x.csv")


@pytest.mark.parametrize(
    "text", ["1,2\r3,4\n5,6\n", "1,2\n3\r4,5\n6,7\n", "1,2\r3,4\r", "1,2\n3," + "x" * (1 << 18) + "\n"]
)
def test_csv_lines_that_cannot_be_cut_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match=r"x\.csv: cannot be parsed"):
        open_source(tmp_path / "x.csv").whole()


def test_h5_does_not_lead_to_other_files(tmp_path: Path) -> None:
    write_h5(tmp_path / "secret.h5", X, "Y")
    (tmp_path / "secret.bin").write_bytes(X.tobytes())
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "Y", X.shape)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("raw", X.shape, X.dtype, external=[(str(tmp_path / "secret.bin"), 0, X.nbytes)])
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/Y")
        file["folder"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/")
        file["inner/first"] = h5py.SoftLink("second")
        file["inner/second"] = h5py.SoftLink("/link")
        file["inner/good"] = h5py.SoftLink("better")
        file["inner/better"] = h5py.SoftLink("/own/X")
        file["own/X"] = X
        file["loop"] = h5py.SoftLink("/loop")
        file["nowhere"] = h5py.SoftLink("/missing")
    refusals = {
        "raw": r"keeps its values in other files \(.*secret\.bin\)",
        "virtual": "is put together from other datasets and files",
        "link": r"/link is a link to another file \(.*secret\.h5\)",
        "folder/Y": r"/folder is a link to another file",
        "inner/first": r"/link is a link to another file",
        "loop": "is a link to a link",
        "nowhere": "has no dataset 'nowhere'",
        "/": "has no dataset '/'",
    }
    for name, message in refusals.items():
        with pytest.raises(DataError, match=rf"x\.h5.*{message}"):
            open_source(f"{tmp_path / 'x.h5'}::{name}")
    np.testing.assert_array_equal(open_source(f"{tmp_path / 'x.h5'}::inner/good").whole(), X)
