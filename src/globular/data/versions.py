"""Whether a file is still the one that was opened.

A fit reads a file many times and takes for granted that it always gets the same rows. So the file's size, time of
change and inode are noted before the first look at it, and compared after every piece that is read: rows are handed
out only if they were read from that version of the file. An error of reading a file that has changed meanwhile is
told as such.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from globular.errors import DataError, MemoryBudgetError

Piece = TypeVar("Piece")


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

    def guard(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The same pieces, each compared with this version once it is read."""
        while True:
            with self.reading():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece
