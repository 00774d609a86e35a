"""Read data from files without loading it whole, and write results whole or not at all.

``open_source`` turns a path into a *source*, which every ``fit`` and ``predict`` accepts in place of an array;
passing the path itself does the same. ``write_array`` is its counterpart for labels and centres.

Tables with names are written block by block: labels and distances of more rows than memory has room for. A block is a
mapping of names to arrays with an entry per row. An array of two dimensions is a column of lists in parquet; in text
its columns are numbered, ``label_0, label_1, …``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from globular.data.arrow_files import batches_of, open_arrow, segment_rows
from globular.data.blocks import Source
from globular.data.formats import SUFFIXES, expanded, open_path, parts_of, suffix_of
from globular.data.text_files import TextFile, read_header, scan
from globular.errors import DataError, import_extra

__all__ = ["open_source", "supported_formats", "write_array"]


def supported_formats() -> tuple[str, ...]:
    """Suffixes of the files that :func:`open_source` reads.

    Examples
    --------
    >>> from globular.io import supported_formats
    >>> ".parquet" in supported_formats()
    True
    """
    return SUFFIXES


def open_source(path: str | os.PathLike[str], *, columns: Sequence[str] | None = None) -> Source:
    """Open a table of numbers; its rows are read when they are needed, block by block.

    Parameters
    ----------
    path : path
        One of

        - ``.npy``: in C or Fortran order;
        - ``.npz``: the only array, or the one called ``X``, or what ``scipy.sparse.save_npz`` wrote; in memory.
          ``file.npz::name`` chooses one of several;
        - ``.csv``, ``.tsv``: numbers separated by commas or tabs, with or without a line of names. Semicolons, tabs,
          bars and single spaces in a ``.csv`` file are told by its first two lines. A first line
          with a word in it holds names, and so does the line ``0,1,2,...`` that pandas writes, if the next one
          shows by its decimal points that it is of another kind;
        - ``.csv.gz``, ``.tsv.gz``: the same, unpacked into memory;
        - ``.parquet``, ``.feather``, ``.arrow``: numeric columns, or one column of equally long lists;
        - ``.jsonl``, ``.ndjson``: per line an object with numbers, or with one list of them, or a list;
        - ``.fvecs``, ``.bvecs``, ``.ivecs``: records of equal length;
        - ``.h5``, ``.hdf5``: the only two-dimensional dataset; ``file.h5::name`` chooses one of several;
        - ``.svm``, ``.svmlight``, ``.libsvm``: sparse, labels are ignored; in memory;
        - a folder of such files, all of one format, taken in the order of their names. Names that begin with
          ``.`` or ``_`` are skipped;
        - a pattern such as ``part-*.npy``, taken alike.
    columns : sequence of str, default=None
        For formats with names: the columns to read, in this order. ``None`` reads all.

    Returns
    -------
    Source
        With ``n_rows``, ``n_columns``, ``dtype``, and the methods ``blocks``, ``take`` and ``whole``.

    Raises
    ------
    globular.errors.DataError
        If the file is missing, empty, truncated, of another format than its name says, or does not hold a
        table of real numbers; while it is read, if it has changed since it was opened. The message names the file
        and the remedy. Python objects are never unpickled, and no file leads to another.
    globular.errors.MemoryBudgetError
        If what has to be in memory at once is larger than the memory of this machine.
    globular.errors.MissingExtraError
        If the format needs a package that is not installed: tables and HDF5 files need ``globular[io]``.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from globular.io import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "points.npy")
    ...     np.save(path, np.arange(10, dtype=np.float32).reshape(5, 2))
    ...     source = open_source(path)
    ...     print(source.n_rows, source.n_columns, source.dtype)
    ...     print([len(block.rows) for block in source.blocks(max_rows=2)])
    5 2 float32
    [2, 2, 1]
    """
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got the string {columns!r}; pass [{columns!r}]")
    return open_path(path, columns)


def write_array(path: str | os.PathLike[str], array: ArrayLike, *, names: Sequence[str] | None = None) -> None:
    """Write a one- or two-dimensional array of numbers to a file, whole or not at all.

    Parameters
    ----------
    path : path
        Ends in ``.npy``, ``.csv`` or ``.parquet``.
    array : array-like of shape (n,) or (n, d)
        In ``.csv`` a row per line with as many digits as it takes to read the same numbers back.
        In ``.parquet`` one column ``value``, of numbers or, for two dimensions, of lists.
    names : sequence of str, optional
        A name for every column: then ``.csv`` begins with a line of them, and ``.parquet`` has a column for each.

    Raises
    ------
    globular.errors.DataError
        If the suffix is another, the array is not of numbers, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from globular.io import write_array
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "labels.csv")
    ...     write_array(path, [3, 1, 2])
    ...     print(path.read_text().split())
    ['3', '1', '2']
    """
    target = check_file(path, (".npy", ".csv", ".parquet"), "an array")
    suffix, values = target.suffix.lower(), np.asarray(array)
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf":
        raise DataError(f"{target}: array must be 1-D or 2-D and numeric, got {values.ndim}-D {values.dtype}")
    table = values[:, None] if values.ndim == 1 else values
    if names is not None and len(names) != table.shape[1]:
        raise ValueError(f"names: {len(names)} names for {table.shape[1]} columns")
    block = {"value": values}
    if suffix == ".csv" and names is None:
        write_whole(target, lambda file: file.writelines(line.encode() for line in text_lines(block)))
        return
    if suffix != ".npy" and names is not None:
        block = {name: table[:, column] for column, name in enumerate(names)}
    # .npy not by np.save, which writes around Python's files and overlooks a disk that is full at the end
    write_whole(target, lambda file: TABLE_WRITERS[suffix](file, [block], len(values), None))


def write_table(
    path: str | os.PathLike[str], blocks: Blocks, n_rows: int, *, beside: Lines | Batches | None = None
) -> None:
    """Write named columns block by block, whole or not at all: ``.npy`` (one), ``.npz``, ``.csv`` or ``.parquet``."""
    target = check_file(path, tuple(TABLE_WRITERS), "a table")
    write_whole(target, lambda file: TABLE_WRITERS[target.suffix.lower()](file, blocks, n_rows, beside))


class Lines:
    """The lines of text files one below the other; blank ones are no rows."""

    suffix = ".csv"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._texts = [TextFile(path) for path in paths]
        self._headers = [read_header(text) for text in self._texts]
        self.delimiter = self._headers[0].delimiter.encode()
        if any(header.delimiter != self._headers[0].delimiter for header in self._headers):
            raise DataError(f"{paths[0]}: other files have other signs between their fields; write them alike")
        self.names = self._headers[0].names
        self._lines = (
            line
            for text, header in zip(self._texts, self._headers, strict=True)
            for chunk in scan(text, header.data_start)
            for line in chunk.read(text).splitlines()
            if line
        )

    @property
    def head(self) -> bytes | None:
        """The line of names, where there is one."""
        header = self._headers[0]
        if header.names is None:
            return None
        with self._texts[0].open() as file:
            return file.read(header.data_start).removeprefix(b"\xef\xbb\xbf").strip()

    def take(self, n_rows: int) -> list[bytes]:
        """The next lines."""
        return list(islice(self._lines, n_rows))


class Batches:
    """The record batches of parquet or feather files one below the other."""

    suffix = ".parquet"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._batches = self._all_batches(paths)
        self._held: Any = next(self._batches)
        self.names = tuple(self._held.schema.names)

    def _all_batches(self, paths: Sequence[Path]) -> Iterator[Any]:
        import pyarrow

        for path in paths:
            with open_arrow(path) as file:
                for segment in range(len(segment_rows(file))):
                    yield from map(pyarrow.table, batches_of(file, segment))

    def take(self, n_rows: int) -> Any:
        """A table of the next rows."""
        import pyarrow

        while self._held.num_rows < n_rows:
            self._held = pyarrow.concat_tables([self._held, next(self._batches)])
        taken, self._held = self._held.slice(0, n_rows), self._held.slice(n_rows)
        return taken


def open_beside(data: Sequence[str]) -> Lines | Batches:
    """The columns of files, all of one kind, with their names."""
    paths = [path for name in data for path in parts_of(name)]
    kinds = {Batches if suffix_of(path) in (".parquet", ".feather", ".arrow") else Lines for path in paths}
    known = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".arrow")
    if len(kinds) > 1 or any(suffix_of(path) not in known for path in paths):
        raise DataError(f"{paths[0]}: columns are kept of text, or of parquet and feather files; leave that out")
    return kinds.pop()(paths)


Block: TypeAlias = Mapping[str, NDArray[Any]]
Blocks: TypeAlias = Iterable[Block]
Beside: TypeAlias = Lines | Batches | None

_ROWS_OF_TEXT = 1 << 12


def write_npy_blocks(file: BinaryIO, blocks: Blocks, n_rows: int, beside: Beside) -> None:
    """One array; of several names, or beside other columns, there is none."""
    for number, block in enumerate(blocks):
        if len(block) != 1:
            raise DataError(
                f"a .npy file holds one array, and here are {' and '.join(block)}; write .npz, .csv or .parquet"
            )
        (values,) = block.values()
        if number == 0:
            kind = {"descr": values.dtype.str, "fortran_order": False, "shape": (n_rows, *values.shape[1:])}
            np.lib.format.write_array_header_1_0(file, kind)
        file.write(np.ascontiguousarray(values).data)


def write_npz_blocks(file: BinaryIO, blocks: Blocks, n_rows: int, beside: Beside) -> None:
    """An array for every name; all of them are gathered in memory."""
    gathered = list(blocks)
    np.savez(file, **{name: np.concatenate([block[name] for block in gathered]) for name in gathered[0]})  # type: ignore[arg-type]


def write_csv_blocks(file: BinaryIO, blocks: Blocks, n_rows: int, beside: Beside) -> None:
    """A line of names, then a line per row, with as many digits as it takes to read the same numbers back."""
    delimiter = beside.delimiter if isinstance(beside, Lines) else b","
    head = beside.head if isinstance(beside, Lines) else None
    for number, block in enumerate(blocks):
        names = ",".join(_flat_names(block)).encode().replace(b",", delimiter)
        if number == 0 and not (isinstance(beside, Lines) and head is None):
            file.write((names if head is None else head + delimiter + names) + b"\n")
        for line in text_lines(block, delimiter.decode()):
            if isinstance(beside, Lines):
                file.write(beside.take(1)[0] + delimiter)
            file.write(line.encode())


def text_lines(block: Block, delimiter: str = ",") -> Iterator[str]:
    """The rows of a block as text."""
    tables = [values if values.ndim == 2 else values[:, None] for values in block.values()]
    words = delimiter.join(word_for(table.dtype) for table in tables for _ in range(table.shape[1])) + "\n"
    for start in range(0, len(tables[0]), _ROWS_OF_TEXT):
        some = [table[start : start + _ROWS_OF_TEXT] for table in tables]
        wide = [table.dtype.kind == "f" and table.dtype.itemsize > 8 for table in some]
        exact = [table.astype(np.float64) if is_wide else table for table, is_wide in zip(some, wide, strict=True)]
        for rows in zip(*(table.tolist() for table in exact), strict=True):
            yield words % tuple(value for row in rows for value in row)


def word_for(dtype: np.dtype[Any]) -> str:
    """The format of a number, or of a word."""
    if dtype.kind == "U":
        return "%s"
    if dtype.kind in "biu":
        return "%d"  # also for bool: True would not read back as a number
    # always with a point or an exponent: a first row 0,1,2 could be taken for names of columns
    return {2: "%.4e", 4: "%.8e"}.get(dtype.itemsize, "%r")


def _flat_names(block: Block) -> list[str]:
    return [
        name if values.ndim == 1 else f"{name}_{column}"
        for name, values in block.items()
        for column in range(1 if values.ndim == 1 else values.shape[1])
    ]


def write_parquet_blocks(file: BinaryIO, blocks: Blocks, n_rows: int, beside: Beside) -> None:
    """A column per name, a row group per block."""
    parquet = import_extra("pyarrow.parquet", "pyarrow", "io", "writing .parquet")
    import pyarrow

    writer = None
    for block in blocks:
        n_here = len(next(iter(block.values())))
        table: Any = beside.take(n_here) if isinstance(beside, Batches) else pyarrow.table({})
        for name, values in block.items():
            flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
            column = flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
            table = pyarrow.table({name: column}) if not table.num_columns else table.append_column(name, column)
        writer = writer or parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
        writer.write_table(table)
    if writer is not None:
        writer.close()


TABLE_WRITERS: dict[str, Callable[[BinaryIO, Blocks, int, Beside], None]] = {
    ".npy": write_npy_blocks, ".npz": write_npz_blocks, ".csv": write_csv_blocks, ".parquet": write_parquet_blocks
}  # fmt: skip


def check_file(path: str | os.PathLike[str], suffixes: tuple[str, ...], what: str) -> Path:
    """Refuse a place where a file cannot be written; useful before the work rather than after it."""
    target = expanded(path)
    if target.suffix.lower() not in suffixes:
        raise DataError(f"{path}: {what} is written to a file whose name ends in {' or '.join(suffixes)}")
    if target.is_dir():
        raise DataError(f"{path}: is a folder; choose the name of a file")
    if not target.absolute().parent.is_dir():
        raise DataError(f"{path}: the folder {target.parent} does not exist; create it first")
    return target


def file_size(n_bytes: float) -> str:
    """A number of bytes with three digits, in the unit that suits it."""
    return in_units(n_bytes, " bytes", " kB", " MB", " GB", " TB")


def in_units(value: float, *units: str) -> str:
    """A number with three digits, in the unit that suits it; each unit is a thousand of the one before."""
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:,.3g}{units[-1]}"


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write beside the target under a name of its own, then rename: readers see the old file or the new one."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror or error}); check the folder and the free space"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
