"""Sources made of segments that are read one after the other: row groups, text chunks, parts of a folder.

A fit reads a file many times and takes for granted that it always gets the same rows. So the file's size, time of
change and inode are noted before the first look at it, and compared after every piece that is read: rows are handed
out only if they were read from that version of the file. An error of reading a file that has changed meanwhile is
told as such.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from globular.data.blocks import Matrix, RowBlock, Source, check_indices, check_span, regroup
from globular.errors import DataError, MemoryBudgetError
from globular.machine import check_fits

PIECE_BYTES = 1 << 22  # what one read from disk aims at: large enough to be efficient, small beside a block
_MOST_ROWS = 1 << 53  # what a file declares beyond it is damage, and would overflow sums of rows


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it was at one time."""

    path: Path
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """The present version of a file."""
        found = os.stat(path)
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ino)

    def check(self) -> None:
        """Raise if the file is another one by now, or gone."""
        try:
            now = FileVersion.of(self.path)
        except OSError as error:
            raise DataError(
                f"{self.path}: was there when it was opened and cannot be read any more ({error.strerror}); "
                "leave it in place until the fit has ended"
            ) from error
        if now != self:
            what = f"{self.size:,} bytes then, {now.size:,} now" if now.size != self.size else "other contents"
            raise DataError(
                f"{self.path}: has changed since it was opened ({what}), so its rows do not belong together; "
                "wait until it is written, then open it or fit again"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever is read within was read from this version of the file, or there is an error."""
        try:
            yield
        except MemoryBudgetError:
            raise
        except (OSError, MemoryError) as error:
            self.check()
            reason = getattr(error, "strerror", None) or str(error) or "out of memory"
            raise DataError(f"{self.path}: cannot be read ({reason})") from error
        except Exception:
            self.check()
            raise
        self.check()


class StreamedSource(ABC):
    """A dense source in segments; a subclass says how to read rows of one segment.

    `segment_rows` holds the number of rows of each segment, in order. With a `version`, every piece is handed out
    only if the file was still that one after the piece was read.
    """

    is_sparse = False
    in_memory = False
    seeks = False
    """Whether a block takes as long wherever it begins."""

    def __init__(
        self,
        name: str,
        segment_rows: ArrayLike,
        n_columns: int,
        dtype: np.dtype[Any],
        version: FileVersion | None = None,
    ) -> None:
        self.name = name
        self.n_columns = n_columns
        self.dtype = dtype
        self._version = version
        n_rows = np.sum(segment_rows, dtype=np.float64)
        if n_rows > _MOST_ROWS:
            raise DataError(f"{name}: declares {n_rows:.3g} rows, so it is corrupt; copy or write it again")
        check_fits(n_columns * dtype.itemsize, f"{name}: one row of {n_columns} columns", "choose fewer columns")
        # bounds[s] is the first row of segment s, bounds[-1] the number of rows
        self._bounds = np.concatenate([[0], np.cumsum(segment_rows, dtype=np.int64)]).astype(np.intp)

    @property
    def n_rows(self) -> int:
        return int(self._bounds[-1])

    @property
    def segment_starts(self) -> NDArray[np.intp]:
        """The rows at which a block may begin without a look at those before."""
        return self._bounds[:-1]

    @abstractmethod
    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        """Rows `first` to `last` (exclusive) of one segment, counted from its start, in pieces of any length."""

    def blocks(self, max_rows: int, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        first, last = check_span(max_rows, start, stop, self.n_rows)
        return regroup(self._pieces_between(first, last, max_rows), max_rows, first, last, self.dtype)

    def take(self, indices: NDArray[np.intp]) -> Matrix:
        """Return these rows in this order; only the segments that hold some of them are read."""
        wanted = check_indices(indices, self.n_rows)
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        cuts = np.searchsorted(ascending, self._bounds)
        rows = np.empty((wanted.size, self.n_columns), self.dtype)
        for segment in np.flatnonzero(np.diff(cuts)):
            here = slice(cuts[segment], cuts[segment + 1])
            rows[order[here]] = self._take_ascending(int(segment), ascending[here] - self._bounds[segment])
        return rows

    def whole(self) -> Matrix:
        self._check_whole()
        rows = np.empty((self.n_rows, self.n_columns), self.dtype)
        filled = 0
        for piece in self._pieces_between(0, self.n_rows, self._rows_per_piece()):
            rows[filled : filled + len(piece)] = piece
            filled += len(piece)
        return rows

    def _check_whole(self) -> None:
        size = self.n_rows * self.n_columns * self.dtype.itemsize
        check_fits(size, f"{self.name}: all {self.n_rows} rows together", "read it in blocks")

    def _rows_per_piece(self) -> int:
        return max(1, PIECE_BYTES // max(1, self.n_columns * self.dtype.itemsize))

    def _read(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        """The pieces of a segment, each compared with the version of the file once it is read."""
        pieces = self._pieces(segment, first, last, max_rows)
        while True:
            with nullcontext() if self._version is None else self._version.reading():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def _pieces_between(self, start: int, stop: int, max_rows: int) -> Iterator[NDArray[Any]]:
        """Rows `start` to `stop`, walking the segments that they touch."""
        segment = int(np.searchsorted(self._bounds, start, side="right")) - 1
        while start < stop:
            offset, end = int(self._bounds[segment]), int(self._bounds[segment + 1])
            last = min(stop, end)
            if start < last:
                yield from self._read(segment, start - offset, last - offset, max_rows)
            start, segment = last, segment + 1

    def _take_ascending(self, segment: int, rows: NDArray[np.intp]) -> Matrix:
        """Rows of one segment by ascending number: read from the first to the last of them and pick."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        picked = []
        for piece in self._read(segment, first, last, self._rows_per_piece()):
            low, high = np.searchsorted(rows, [first, first + len(piece)])
            picked.append(piece[rows[low:high] - first])
            first += len(piece)
        return np.concatenate(picked)


def starts_of_segments(source: Source) -> NDArray[np.intp]:
    """The same of any source."""
    starts: NDArray[np.intp] = getattr(source, "segment_starts", np.zeros(1, dtype=np.intp))
    return starts


class ConcatenatedSource(StreamedSource):
    """Several sources of dense rows one below the other, e.g. the parts of a folder; see `sources.concatenate`."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        dtype = np.result_type(*{part.dtype for part in parts})
        super().__init__(name, [part.n_rows for part in parts], parts[0].n_columns, dtype)
        self.parts = tuple(parts)
        self.column_names: tuple[str, ...] | None = getattr(parts[0], "column_names", None)
        self.in_memory = all(part.in_memory for part in parts)
        self.seeks = all(getattr(part, "seeks", False) for part in parts)

    @property
    def segment_starts(self) -> NDArray[np.intp]:
        firsts = zip(self._bounds[:-1], self.parts, strict=True)
        return np.concatenate([first + starts_of_segments(part) for first, part in firsts])

    def _pieces(self, segment: int, first: int, last: int, max_rows: int) -> Iterator[NDArray[Any]]:
        for block in self.parts[segment].blocks(max_rows, first, last):
            yield cast(NDArray[Any], block.rows)

    def _take_ascending(self, segment: int, rows: NDArray[np.intp]) -> Matrix:
        return self.parts[segment].take(rows)
