"""Where the rows of a part come from: a partition of a Dask collection, or a range of rows in files.

A worker that dies takes its parts with it; what is described here is enough to make them again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from scipy import sparse

from globular.data.blocks import Matrix, check_table
from globular.data.formats import open_path
from globular.data.open import Files, as_source
from globular.data.sources import RowRange, checked_csr
from globular.errors import DataError
from globular.model.statistics import F64


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows `start` to `stop` of a file, which every worker must be able to read."""

    path: str
    start: int
    stop: int
    columns: tuple[str, ...] | None = None
    in_memory: bool = True
    """Whether to read them once and keep them, or anew for every pass."""

    def open(self) -> Matrix | RowRange:
        """The rows, or a source of them."""
        source = open_path(self.path, self.columns)
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
        chunks = _chunks(X)
        sizes = [None if np.isnan(size) else int(size) for size in X.chunks[0]]
    own = _weight_chunks(X, weights, len(chunks))
    return [
        Partition(number, rows, weight, size, f"partition {number} of X", collections=(X, weights))
        for number, (rows, weight, size) in enumerate(zip(chunks, own, sizes, strict=True))
    ]


def _chunks(array: Any) -> list[Any]:
    """The chunks of a Dask array as Delayeds.

    Up to version 2025.3 Dask optimises those of persisted data into keys that no task resolves.
    """
    from distributed import futures_of

    chunks: list[Any] = array.to_delayed(optimize_graph=not futures_of(array)).ravel().tolist()
    return chunks


def _weight_chunks(X: Any, weights: Any, n_chunks: int) -> list[Any]:
    if weights is None:
        return [None] * n_chunks
    if not is_frame(X) and not np.isnan(sum(X.chunks[0])) and hasattr(weights, "rechunk"):
        if weights.shape != (X.shape[0],):
            raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(X.shape[0],)}: one per row of X")
        weights = weights.rechunk((X.chunks[0],))
    chunks = _chunks(weights) if hasattr(weights, "rechunk") else list(weights.to_delayed())
    if len(chunks) != n_chunks:
        raise ValueError(
            f"sample_weight has {len(chunks)} partitions and X has {n_chunks}; cut both in the same way, "
            "or pass the weights as a NumPy array"
        )
    return chunks


def file_partitions(files: Files, n_workers: int) -> list[Partition]:
    """A partition for every file; fewer files than two for each worker are cut into ranges of rows."""
    names = list(files.names())
    n_cuts = -(-2 * n_workers // len(names)) if len(names) < 2 * n_workers else 1
    parts: list[Partition] = []
    for path in names:
        source = open_path(path, files.columns)
        cuts = np.linspace(0, source.n_rows, min(n_cuts, source.n_rows) + 1).round().astype(int).tolist()
        for start, stop in pairwise(cuts):
            size = (stop - start) * source.n_columns * source.dtype.itemsize
            rows = FileRows(path, start, stop, files.columns)
            name = f"{source.name}, rows {start} to {stop}"
            parts.append(Partition(len(parts), rows, None, stop - start, name, size))
    return parts


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
