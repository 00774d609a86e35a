"""Rows in memory as kernels want them: C-contiguous float32 or float64 blocks, or CSR triples.

Arrays of other types (float16, uint8, integers, big-endian, Fortran order) are converted block by block and never
copied whole. Small integers and float16 become float32 without loss; wider integers become float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from globular.data.blocks import working_dtype
from globular.jit import Queue, kernel, new_queue, share_kernel, take_number
from globular.jit.instructions import CACHE_LINE
from globular.model.statistics import F64, Floats
from globular.passes.cpu.engine.rows import row_length
from globular.passes.host import ROWS_AT_ONCE
from globular.threads import SECONDS_PER_LOOK, even_ranges, on_all_threads, run_all, single_threaded_blas, worth_waking

Number = TypeVar("Number", bound=np.generic)
KernelRows: TypeAlias = tuple[Any, ...]
"""(array,) or (data, indices, indptr): see `engine.rows`."""


def read_only(array: NDArray[Number]) -> NDArray[Number]:
    """A view that cannot be written: kernels are compiled for such rows alone, whatever the user hands over."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class DenseRows:
    """A 2-D array of any real dtype."""

    array: NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, int]:
        return cast(tuple[int, int], self.array.shape)

    @property
    def dtype(self) -> np.dtype:
        return working_dtype(self.array.dtype)

    def block(self, start: int, stop: int) -> Floats:
        """Rows start..stop in the working dtype; a view where that is possible."""
        return read_only(np.ascontiguousarray(self.array[start:stop], dtype=self.dtype))

    def kernel_rows(self, start: int, stop: int) -> KernelRows:
        """Rows start..stop as kernels take them."""
        return (self.block(start, stop),)

    def gather(self, indices: NDArray[np.integer]) -> Floats:
        """Those rows in the working dtype."""
        return read_only(np.ascontiguousarray(self._take(indices), dtype=self.dtype))

    def _take(self, indices: NDArray[np.integer]) -> NDArray[np.generic]:
        # np.take is the faster one and lets go of the GIL, but would first copy an array of another layout whole
        return np.take(self.array, indices, axis=0) if self.array.flags.c_contiguous else self.array[indices]

    def take(self, indices: NDArray[np.integer]) -> F64:
        """Those rows in float64."""
        return self.gather(indices).astype(np.float64)

    def sample(self, size: int) -> F64:
        """Up to `size` rows at even distances, in float64."""
        step = -(-self.shape[0] // size)
        if step == 1:
            return self.block(0, self.shape[0]).astype(np.float64, copy=False)
        return self.take(np.arange(0, self.shape[0], step))

    def picked(self, chosen: NDArray[np.integer]) -> DenseRows:
        """Some rows, not copied."""
        return PickedRows(self.array, chosen)

    def most_terms(self) -> int:
        """Most numbers of a row."""
        return self.shape[1]

    def is_direct(self) -> bool:
        """Whether kernels may index the array itself."""
        return self.array.dtype == self.dtype and self.array.flags.c_contiguous and self.array.flags.aligned


@dataclass(frozen=True, slots=True)
class PickedRows(DenseRows):
    """Some rows of an array, gathered block by block."""

    chosen: NDArray[np.integer]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.chosen), self.array.shape[1]

    def block(self, start: int, stop: int) -> Floats:
        return DenseRows.gather(self, self.chosen[start:stop])

    def gather(self, indices: NDArray[np.integer]) -> Floats:
        return DenseRows.gather(self, self.chosen[indices])

    def picked(self, chosen: NDArray[np.integer]) -> DenseRows:
        return PickedRows(self.array, self.chosen[chosen])

    def is_direct(self) -> bool:
        return False


@kernel
def copy_csr(
    rows: Any,  # IN  (data, indices, indptr)
    chosen: Any,  # IN  (m,) rows to copy
    data: Any,  # OUT
    indices: Any,  # OUT
    indptr: Any,  # IN  (m + 1,) where each row goes
) -> None:
    """Those CSR rows one after the other. O(nnz)."""
    for k in range(chosen.shape[0]):
        source = rows[2][chosen[k]]
        for j in range(indptr[k + 1] - indptr[k]):
            data[indptr[k] + j] = rows[0][source + j]
            indices[indptr[k] + j] = rows[1][source + j]


class CSRRows:
    """A CSR matrix, its indices as int32 and its row pointers as int64 so that kernels have one signature a dtype.

    Rows must be sorted and without duplicates, as `data.sparse_rows` leaves them.
    """

    __slots__ = ("data", "indices", "indptr", "shape")

    def __init__(self, matrix: sparse.csr_matrix | sparse.csr_array) -> None:
        if matrix.shape[1] > np.iinfo(np.int32).max:
            raise ValueError(f"X has {matrix.shape[1]} columns; sparse input may have at most 2**31 - 1")
        data: Floats = np.ascontiguousarray(matrix.data, dtype=working_dtype(matrix.dtype))
        self._set(data, matrix.indices, matrix.indptr, matrix.shape[1])

    def _set(self, data: Floats, indices: NDArray[np.integer], indptr: NDArray[np.integer], n_columns: int) -> None:
        self.shape: tuple[int, int] = (len(indptr) - 1, n_columns)
        self.data = cast(Floats, read_only(data))
        self.indices: NDArray[np.int32] = read_only(np.ascontiguousarray(indices, dtype=np.int32))
        self.indptr: NDArray[np.int64] = read_only(np.ascontiguousarray(indptr, dtype=np.int64))

    def picked(self, chosen: NDArray[np.integer]) -> CSRRows:
        """Some rows, copied together."""
        indptr = np.concatenate([[0], np.cumsum(self.indptr[chosen + 1] - self.indptr[chosen])]).astype(np.int64)
        data, indices = np.empty(indptr[-1], dtype=self.dtype), np.empty(indptr[-1], dtype=np.int32)
        copy_csr((self.data, self.indices, self.indptr), chosen, data, indices, indptr)
        picked = object.__new__(CSRRows)
        picked._set(data, indices, indptr, self.shape[1])
        return picked

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def most_terms(self) -> int:
        """Most entries of a row."""
        return int(np.diff(self.indptr).max(initial=0))

    def block(self, start: int, stop: int) -> sparse.csr_array:
        """Rows start..stop as a matrix, without a copy of their entries."""
        span = slice(self.indptr[start], self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - span.start
        return sparse.csr_array((self.data[span], self.indices[span], indptr), (stop - start, self.shape[1]))

    def kernel_rows(self, start: int, stop: int) -> KernelRows:
        """Rows start..stop as kernels take them, without a copy (row pointers are not rebased)."""
        return self.data, self.indices, self.indptr[start : stop + 1]

    def take(self, indices: NDArray[np.integer]) -> F64:
        """Those rows as a dense float64 array."""
        out = np.zeros((len(indices), self.shape[1]))
        for position, row in enumerate(indices):
            span = slice(self.indptr[row], self.indptr[row + 1])
            out[position, self.indices[span]] = self.data[span]
        return out


@kernel
def look_up(
    queue: Queue,  # IN/OUT stretches
    length: int,  # IN  places of a stretch
    values: Any,  # IN  (m,)
    places: Any,  # IN  (n,)
    out: Any,  # OUT (n,)
) -> None:
    """out = values[places]. O(n)."""
    begin = length * take_number(queue)
    while begin < places.shape[0]:
        for i in range(begin, min(begin + length, places.shape[0])):
            out[i] = values[places[i]]
        begin = length * take_number(queue)


@kernel
def row_lengths(
    rows: Any,  # IN
    out: Any,  # OUT (n,) ‖x‖
) -> None:
    """Euclidean length of every row. O(n · D)."""
    for i in range(out.shape[0]):
        out[i] = row_length(rows, i)


Rows: TypeAlias = DenseRows | CSRRows


def gather_rows(rows: Rows, chosen: NDArray[np.integer]) -> KernelRows:
    """Those dense rows as kernels take them, copied together."""
    assert not isinstance(rows, CSRRows)  # kernels index them where they lie
    return (rows.gather(chosen),)


def can_be_indexed(rows: Rows) -> bool:
    """Whether kernels may index the rows where they lie."""
    return isinstance(rows, CSRRows) or rows.is_direct()


def picked_in_place(rows: Rows) -> tuple[KernelRows, NDArray[np.int64]] | None:
    """The array that rows are picked from, if kernels may index it, and where in it they lie."""
    if not (isinstance(rows, PickedRows) and DenseRows.is_direct(rows)):
        return None
    return (read_only(rows.array),), np.asarray(rows.chosen, dtype=np.int64)


def in_place(rows: Rows, chosen: NDArray[np.integer], n_threads: int) -> tuple[KernelRows, NDArray[np.integer]] | None:
    """Rows that kernels may index, and where the chosen ones lie in them; None where they have to be gathered."""
    picked = picked_in_place(rows)
    if picked is None:
        return (rows.kernel_rows(0, rows.shape[0]), chosen) if can_be_indexed(rows) else None
    array, picks = picked
    places = np.empty(len(chosen), dtype=chosen.dtype if len(array[0]) < 2**31 else np.int64)

    queue, threads = new_queue(), worth_waking(n_threads, SECONDS_PER_LOOK * len(chosen))
    share_kernel(lambda: look_up(queue, ROWS_AT_ONCE, picks, chosen, places), queue, threads, calls_blas=False)
    return array, places


def on_rows(
    rows: Rows,
    n_threads: int,
    work: Callable[[NDArray[np.int64], KernelRows, slice], object],
    *,
    length: int = 0,
    calls_blas: bool = True,
) -> None:
    """Call a kernel that takes blocks of rows from a queue, with all rows; see `share`.

    `work` gets the queue, rows, and which ones they are. Rows that have to be converted come in parts, each with a
    queue of its own. `length`: rows of a block, if each has a place of its own for what it adds up; a part is one then.
    """
    n = rows.shape[0]
    if can_be_indexed(rows):
        queue = new_queue(max(1, min(n_threads, -(-n // length))) if length else n_threads)
        everyone = rows.kernel_rows(0, n)
        if calls_blas:
            single_threaded_blas.run(work, queue, everyone, slice(0, n))
        else:
            work(queue, everyone, slice(0, n))
        return
    parts = even_ranges(n, length or ROWS_AT_ONCE)
    run_all(
        lambda part: work(new_queue(), rows.kernel_rows(*part), slice(*part)), parts, n_threads,
        calls_blas=calls_blas,
    )  # fmt: skip


def on_tasks(
    rows: Rows,
    numbers: NDArray[np.integer],
    begins: NDArray[np.int64],
    n_threads: int,
    work: Callable[[NDArray[np.int64], slice, KernelRows, NDArray[np.integer]], object],
    *,
    lying: tuple[KernelRows, NDArray[np.integer]] | None = None,
    calls_blas: bool = False,
    one_call: bool = True,
) -> None:
    """Call a kernel that takes tasks from a queue; task t has the rows numbers[begins[t]], … up to the next task.

    `work` gets the queue, which tasks, rows, and where each of `numbers` lies among these; rows that kernels cannot
    index are brought together task by task. `lying`: rows and places, from who has them. A `work` that does more than
    one call of a kernel says so.
    """
    n_tasks = len(begins)
    if lying is None and can_be_indexed(rows):
        lying = rows.kernel_rows(0, rows.shape[0]), numbers
    if lying is not None:
        queue, (all_rows, places) = new_queue(), lying
        threads = max(1, min(n_threads, n_tasks))
        if one_call:
            share_kernel(
                lambda: work(queue, slice(0, n_tasks), all_rows, places), queue, threads, calls_blas=calls_blas
            )
        else:
            on_all_threads(lambda: work(queue, slice(0, n_tasks), all_rows, places), threads, calls_blas=calls_blas)
        return
    ends = np.append(begins[1:], len(numbers))
    within = (np.arange(len(numbers)) - np.repeat(begins, ends - begins)).astype(numbers.dtype)

    def gathered(t: int) -> None:
        work(new_queue(), slice(t, t + 1), gather_rows(rows, numbers[begins[t] : ends[t]]), within)

    run_all(gathered, range(n_tasks), n_threads, calls_blas=calls_blas)


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that begin with a cache line: no vector of a tile, and no `LINE`, then lies across two of them."""
    n = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n + CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + n].view(dtype).reshape(shape)
