"""Results as tables with names, written block by block: labels and distances of more rows than memory has room for.

A block is a mapping of names to arrays with an entry per row. An array of two dimensions is a column of lists in
parquet; in text its columns are numbered, ``label_0, label_1, …``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.data.arrow_files import batches_of, open_arrow, segment_rows
from globular.data.formats import parts_of, suffix_of
from globular.data.text_files import read_header
from globular.data.text_lines import TextFile, scan
from globular.errors import DataError, import_extra


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
