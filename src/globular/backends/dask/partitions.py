"""Where the rows of a part come from: a partition of a Dask collection, or a range of rows in files.

A worker that dies takes its parts with it; what is described here is enough to make them again elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse

from globular.data.blocks import Matrix, Source, check_table
from globular.data.formats import open_path
from globular.data.some_rows import RowRange
from globular.data.sources import as_source
from globular.data.sparse_rows import checked_csr
from globular.data.streamed import ConcatenatedSource
from globular.errors import DataError
from globular.model.statistics import F64


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows `start` to `stop` of files one below the other, which every worker must be able to read."""

    paths: tuple[str, ...]
    start: int
    stop: int
    columns: tuple[str, ...] | None = None
    in_memory: bool = True
    """Whether to read them once and keep them, or anew for every pass."""

    def open(self) -> Matrix | RowRange:
        """The rows, or a source of them."""
        source = open_files(self.paths, self.columns)
        if self.stop > source.n_rows:
            raise DataError(f"{source.name}: has {source.n_rows} rows here, {self.stop} where the fit was started")
        part = RowRange(source, self.start, self.stop)
        return part.whole() if self.in_memory else part


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one part."""

    number: int
    rows: Any
    """A Delayed, or `FileRows`."""
    weights: Any
    """A Delayed, or None."""
    n_rows: int | None
    """None where only loading tells."""
    name: str
    n_bytes: int | None = None
    """Size of the rows, where it is known before they are read."""
    collections: tuple[Any, ...] = ()
    """What the rows and weights are parts of: Dask forgets data that were persisted once nobody refers to them."""


@dataclass(frozen=True, slots=True)
class FilesOnWorkers:
    """Files as input of a fit or a prediction on the workers of the current client."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> FilesOnWorkers:
        """The files of a folder, or one file."""
        folder = Path(path).expanduser()
        open_path(folder, columns)  # for its checks
        inside = folder.iterdir() if folder.is_dir() else [folder]
        files = sorted(item for item in inside if not item.name.startswith((".", "_")))
        return cls(tuple(map(str, files)), None if columns is None else tuple(columns))

    def first_file(self) -> Source:
        """The first of them, for validation."""
        return open_path(self.paths[0], self.columns)


def open_files(paths: Sequence[str], columns: Sequence[str] | None = None) -> Source:
    """One source of files one below the other."""
    sources = [open_path(path, columns) for path in paths]
    return sources[0] if len(sources) == 1 else ConcatenatedSource(sources, name=f"{sources[0].name} …")


def is_collection(X: Any) -> bool:
    """Whether X is a Dask array or data frame; Dask is not imported to find out."""
    return hasattr(X, "__dask_graph__") and hasattr(X, "to_delayed")


def is_frame(X: Any) -> bool:
    """Whether a collection is a data frame."""
    return hasattr(X, "columns")


def collection_partitions(X: Any, weights: Any = None) -> list[Partition]:
    """One partition for every chunk of rows; `weights` is a collection cut in the same way, or None."""
    sizes: list[int | None]
    if is_frame(X):
        chunks, sizes = X.to_delayed(), [None] * X.npartitions
    else:
        check_table(X.shape, X.dtype, "X")
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})  # a part needs whole rows
        chunks = X.to_delayed().ravel().tolist()
        sizes = [None if np.isnan(size) else int(size) for size in X.chunks[0]]
    own = _weight_chunks(X, weights, len(chunks))
    return [
        Partition(number, rows, weight, size, f"partition {number} of X", collections=(X, weights))
        for number, (rows, weight, size) in enumerate(zip(chunks, own, sizes, strict=True))
    ]


def _weight_chunks(X: Any, weights: Any, n_chunks: int) -> list[Any]:
    if weights is None:
        return [None] * n_chunks
    if not is_frame(X) and not np.isnan(sum(X.chunks[0])) and hasattr(weights, "rechunk"):
        if weights.shape != (X.shape[0],):
            raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(X.shape[0],)}: one per row of X")
        weights = weights.rechunk((X.chunks[0],))
    chunks = weights.to_delayed()
    chunks = chunks.ravel().tolist() if isinstance(chunks, np.ndarray) else list(chunks)
    if len(chunks) != n_chunks:
        raise ValueError(
            f"sample_weight has {len(chunks)} partitions and X has {n_chunks}; cut both in the same way, "
            "or pass the weights as a NumPy array"
        )
    return chunks


def file_partitions(files: FilesOnWorkers, n_workers: int) -> list[Partition]:
    """A partition for every file; fewer files than two for each worker are cut into ranges of rows."""
    names = [os.path.abspath(path) for path in files.paths]
    sources = [open_path(name, files.columns) for name in names]
    ConcatenatedSource(sources)  # for its check that they go together
    n_cuts = -(-2 * n_workers // len(names)) if len(names) < 2 * n_workers else 1
    parts: list[Partition] = []
    for path, source in zip(names, sources, strict=True):
        cuts = np.linspace(0, source.n_rows, min(n_cuts, source.n_rows) + 1).round().astype(int).tolist()
        for start, stop in pairwise(cuts):
            size = (stop - start) * source.n_columns * source.dtype.itemsize
            rows = FileRows((path,), start, stop, files.columns)
            name = f"{source.name}, rows {start} to {stop}"
            parts.append(Partition(len(parts), rows, None, stop - start, name, size))
    return parts


def streamed(partition: Partition) -> Partition:
    """The same partition read anew for every pass."""
    return replace(partition, rows=replace(partition.rows, in_memory=False))


# --- on the worker -------------------------------------------------------------------------------------------------


def rows_from_chunk(chunk: Any, name: str) -> Matrix:
    """The matrix in a chunk: an array, a sparse matrix or a data frame."""
    if sparse.issparse(chunk):
        return cast(Matrix, checked_csr(chunk, name))
    if hasattr(chunk, "columns"):
        if len(chunk) == 0:
            return np.empty((0, len(chunk.columns)), dtype=np.float32)
        return as_source(chunk).whole()
    rows = np.asarray(chunk)
    check_table(rows.shape, rows.dtype, name)
    # what came over the network lies at any address; kernels would convert it block by block in every pass
    return rows if rows.flags.aligned else rows.copy()


def weights_from_chunk(chunk: Any, n_rows: int, name: str) -> F64:
    """Weights that came with the rows of a part, checked."""
    weights = np.ascontiguousarray(chunk, dtype=np.float64)
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight: {name} has {n_rows} rows and weights of shape {weights.shape}")
    if not (weights >= 0).all() or not np.isfinite(weights).all():
        raise ValueError(f"sample_weight: {name} has weights that are negative, NaN or infinite")
    return weights
