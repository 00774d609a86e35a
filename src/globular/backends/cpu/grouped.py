"""Rows in groups by their cluster: where each group begins, and where its rows lie.

Rows of a cluster lie anywhere in X, and fetching them one by one takes as long as all the arithmetic of a truncated
E-step. Once few rows change their cluster any more, the rows are copied together in cluster order, up to `SORT_UP_TO`
bytes of them; the passes then read memory almost from front to back. Row numbers, and with them labels, weights and
random candidates, stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import CSRRows, Floats, KernelRows, load_rows, read_only
from globular.model.groups import group_by
from globular.threads import even_ranges, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

SORT_UP_TO = 1 << 30
"""Largest copy of the rows, in bytes. A fixed limit: the same fit takes the same steps on any machine."""
SHORTEST_ROW = 64
"""Shorter rows share cache lines with others: copying them together gains little."""
SETTLED = 8
"""Rows are sorted once only one in so many changes its cluster in a pass …"""
STALE = 4
"""… and sorted again when one in so many has changed it since."""
_ROWS_PER_COPY = 8192


@dataclass(slots=True)
class SortedRows:
    """A copy of the rows in the order of their clusters."""

    array: Floats
    numbers: NDArray[np.integer]
    """The row number of each of them."""
    n_moved: int = 0
    """Changes of cluster since."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """All rows of a shard by their label; within a group in the order in which they lie."""

    shard: CpuShard
    starts: NDArray[np.int64]
    """Group g is order[starts[g]:starts[g + 1]], (C + 1,)."""
    order: NDArray[np.integer]
    """Row numbers."""
    places: NDArray[np.integer]
    """Where the rows lie in what `load` gives, unless it has to gather them."""

    def load(self, begin: int, end: int) -> tuple[KernelRows, NDArray[np.integer]]:
        """Rows for a kernel that contain those of order[begin:end], and where they lie."""
        copied = self.shard.sorted_rows
        if copied is not None:
            return (read_only(copied.array),), self.places[begin:end]
        rows, gathered = load_rows(self.shard.rows, self.order[begin:end])
        return rows, np.arange(end - begin, dtype=self.order.dtype) if gathered else self.places[begin:end]


def group_rows(shard: CpuShard, n_clusters: int) -> Grouping:
    """Group by `shard.labels`. O(N)."""
    copied = shard.sorted_rows
    if copied is None:
        starts, order = group_by(shard.labels, n_clusters)
        return Grouping(shard, starts, order, order)
    starts, places = group_by(shard.labels[copied.numbers], n_clusters)
    return Grouping(shard, starts, copied.numbers[places], places)


def sort_when_it_pays(shard: CpuShard, n_clusters: int, n_moved: int) -> None:
    """Copy the rows together by cluster if they have settled, or anew if the copy is no longer in order."""
    rows, copied = shard.rows, shard.sorted_rows
    if isinstance(rows, CSRRows) or not rows.is_direct():
        return
    if copied is not None:
        copied.n_moved += n_moved
    stale = copied is not None and copied.n_moved * STALE > shard.n_rows
    row_bytes = rows.dtype.itemsize * shard.n_columns
    fits = row_bytes >= SHORTEST_ROW and row_bytes * shard.n_rows <= SORT_UP_TO
    if not fits or n_moved * SETTLED > shard.n_rows or (copied is not None and not stale):
        return
    _, order = group_by(shard.labels, n_clusters)
    array: Floats = np.empty((shard.n_rows, shard.n_columns), dtype=rows.dtype) if copied is None else copied.array

    def copy(span: tuple[int, int]) -> None:
        np.take(rows.array, order[slice(*span)], axis=0, out=array[slice(*span)], mode="clip")

    run_all(copy, even_ranges(shard.n_rows, _ROWS_PER_COPY), shard.n_threads)
    shard.sorted_rows = SortedRows(array, order)
