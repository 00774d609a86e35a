"""Read data from files without loading it whole, and write results whole or not at all.

``open_source`` turns a path into a *source*, which every ``fit`` and ``predict`` accepts in place of an array;
passing the path itself does the same. ``write_array`` is its counterpart for labels and centres.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from globular.data.blocks import Source
from globular.data.formats import SUFFIXES, open_path
from globular.errors import DataError
from globular.io.files import check_file, write_whole
from globular.io.tables import TABLE_WRITERS, Batches, Blocks, Lines, text_lines

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
