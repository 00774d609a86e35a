"""Rows in memory. The passes over them, numba kernels and BLAS on our own threads, are the modules beside this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.errors import UnsupportedPassError
from globular.lazy import cached_property
from globular.model.statistics import F64, Floats
from globular.passes.cpu.engine.score import Given
from globular.passes.cpu.rows import CSRRows, DenseRows, Rows, read_only, row_lengths
from globular.passes.host import NONE, PART_BYTES, ROWS_AT_ONCE, HostShard
from globular.seam.among import Need
from globular.seam.passes import Index, Pass, Result
from globular.seam.shard import PointState
from globular.threads import SECONDS_PER_LOOK, even_ranges, map_all, run_all

SURE_OF = 64
"""Rows that are converted before all are."""
OFFSET_ROWS = 256
"""Rows that say whether the mean dwarfs the spread."""
Kept = TypeVar("Kept")

ENTRIES_APART = 256
"""Columns for each entry of a row from which rows have few: larger = an inverted file of the centres for fewer sets. Of
rows without any structure it takes less time than products with all centres from about a thousand on."""
MANY = "the rows have many entries"
SPARSE = "X is sparse and this model needs dense rows"
DENSE = "the rows are dense"
ON_HOST = "the rows lie in the memory of the host"


class CpuShard(HostShard):
    """A matrix in memory with its weights and per-row state.

    Parameters
    ----------
    matrix : 2-D ndarray of any real dtype, CSR matrix, or `Rows`. Never modified. Copied whole only by long truncated
        fits, and only if it is small (see `grouped`).
    weights : one float64 per row, or None.
    unit_rows : whether rows count as scaled to unit length (cosine). Rows of zeros stay zero.
    scales : the factors that do so, from who has them.
    first_row : number of row 0 in the whole data.
    """

    def __init__(
        self,
        matrix: NDArray[np.generic] | sparse.csr_matrix | sparse.csr_array | Rows,
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        scales: F64 = NONE,
        n_threads: int = 1,
        state: PointState | None = None,
        first_row: int = 0,
    ) -> None:
        if isinstance(matrix, DenseRows | CSRRows):
            self.rows: Rows = matrix
        else:
            self.rows = CSRRows(matrix) if sparse.issparse(matrix) else DenseRows(matrix)
        super().__init__(self.rows.shape, weights, n_threads=n_threads, state=state, first_row=first_row)
        self.scales = scales
        if unit_rows:
            parts = map_all(self._inverse_lengths, even_ranges(self.n_rows, 8192), n_threads)
            self.scales = np.concatenate([NONE, *parts])
        self._memory: dict[type, object] = {}

    def _inverse_lengths(self, span: tuple[int, int]) -> F64:
        lengths = np.empty(span[1] - span[0])
        row_lengths(self.rows.kernel_rows(*span), lengths)
        with np.errstate(over="ignore"):
            scales = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        if not np.isfinite(lengths).all() or np.isinf(scales).any():
            raise ValueError(
                "X has rows whose length, or its inverse, overflows in float64; scale these rows to length 1"
            )
        return scales

    @cached_property
    def offset(self) -> F64 | None:
        """What kernels subtract from rows before squaring them: their mean, where it dwarfs their spread.

        Any value gives the same labels (candidates are checked exactly); a good one keeps the nominations few.
        """
        if isinstance(self.rows, CSRRows) or len(self.scales) or self.n_rows == 0:
            return None
        sample = self.rows.sample(OFFSET_ROWS)
        mean = np.add.reduce(sample, axis=0) / len(sample)  # by hand: `mean` and `var` take longer than a small pass
        deviations = sample - mean
        deviations *= deviations
        if mean @ mean <= 4.0 * (np.add.reduce(deviations, axis=0) / len(sample)).sum():
            return None
        return mean.astype(self.rows.dtype).astype(np.float64)

    @property
    def origin(self) -> F64:
        """The offset as kernels take it: empty if there is none."""
        return NONE if self.offset is None else self.offset

    @property
    def given(self) -> Given:
        """What the engine knows of the rows."""
        about = np.zeros((1, self.n_columns)) if self.offset is None else self.offset[None]
        return Given(self.weights, self.scales, self.origin, about, np.zeros(1))

    @property
    def lacks(self) -> Mapping[Need, str]:
        if not isinstance(self.rows, CSRRows):
            return {Need.CARD: ON_HOST, Need.SPARSE: DENSE, Need.FEW_ENTRIES: DENSE}
        many = {Need.FEW_ENTRIES: MANY} if ENTRIES_APART * len(self.rows.data) > self.n_rows * self.n_columns else {}
        return {Need.CARD: ON_HOST, Need.DENSE: SPARSE, **many}

    def recall(self, kind: type[Kept]) -> Kept | None:
        """What a pass has kept for the next one."""
        return cast(Kept | None, self._memory.get(kind))

    def keep(self, value: object) -> None:
        """Keep something for the next pass, one of each type."""
        self._memory[type(value)] = value

    def forget(self, kind: type) -> None:
        """Keep it no longer."""
        self._memory.pop(kind, None)

    @property
    def dense_rows(self) -> DenseRows:
        """The rows of a pass that needs dense ones."""
        if isinstance(self.rows, CSRRows):
            raise TypeError(SPARSE)
        return self.rows

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    def parts(self) -> Iterator[CpuShard]:
        yield self

    def row_blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        rows = self.dense_rows.block(0, self.n_rows)
        yield 0, read_only(rows * self.scales[:, None]) if len(self.scales) else rows

    def _run_parts(self, work: Pass[Result]) -> Result:
        raise UnsupportedPassError(f"{type(work).__name__} is not available here: rows in memory do not know it")

    def take_rows(self, indices: Index) -> F64:
        if len(indices) <= ROWS_AT_ONCE:
            rows = self.rows.take(indices)
            return rows * self.scales[indices, None] if len(self.scales) else rows
        found = np.empty((len(indices), self.n_columns))

        def take(span: tuple[int, int]) -> None:
            found[slice(*span)] = self.take_rows(indices[slice(*span)])

        seconds = SECONDS_PER_LOOK * found.size
        run_all(take, even_ranges(len(indices), ROWS_AT_ONCE), self.n_threads, seconds=seconds, calls_blas=False)
        return found

    def subset(self, indices: Index) -> CpuShard:
        """See `Shard.subset`; dense rows are not copied."""
        everyone = len(indices) == self.n_rows and np.array_equal(indices, np.arange(self.n_rows))
        rows = self.rows if everyone else self.rows.picked(indices)
        weights = self.weights[indices] if len(self.weights) else None
        scales = self.scales[indices] if len(self.scales) else NONE
        part = CpuShard(rows, weights, scales=scales, n_threads=self.n_threads)
        part.__dict__["offset"] = self.offset  # any will do, and to look for another takes as long as a small pass
        return part

    def local(self, rows: Floats, weights: F64 | None = None) -> CpuShard:
        return local_shard(rows, weights, self.n_threads)


def local_shard(rows: Floats, weights: F64 | None, n_threads: int) -> CpuShard:
    """See `Shard.local`: rows that came from float32 go back to it without loss and at twice the speed."""
    if rows.dtype == np.float32:
        return CpuShard(rows, weights, n_threads=n_threads)
    single: NDArray[Any] = np.empty(rows.shape, dtype=np.float32)

    def convert(span: tuple[int, int]) -> bool:
        part = slice(*span)
        with np.errstate(over="ignore"):
            single[part] = rows[part]
        return np.array_equal(single[part], rows[part])

    # the first rows tell it mostly: means are no numbers of float32
    same = convert((0, min(len(rows), SURE_OF)))
    same = same and all(map_all(convert, even_ranges(len(rows), ROWS_AT_ONCE), n_threads))
    return CpuShard(single if same else rows, weights, n_threads=n_threads)


class BlockShard(HostShard):
    """Dense rows that are somewhere else: what a backend gets that only knows how to take some rows.

    It derives from this class and writes `__init__` and `take_rows`; then all passes run, on the CPU, block by block.
    Each function that it registers (`@MyShard.implements(Assign)`) is a pass that it carries out itself.
    """

    @property
    def lacks(self) -> Mapping[Need, str]:
        return {Need.SPARSE: DENSE, Need.CARD: ON_HOST}

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    def parts(self) -> Iterator[CpuShard]:
        for begin, end in even_ranges(self.n_rows, max(1, PART_BYTES // (8 * self.n_columns))):
            part = self.subset(np.arange(begin, end))
            part.state, part.first_row = self.state.view(begin, end), self.first_row + begin
            yield part

    def subset(self, indices: Index) -> CpuShard:
        return self.local(self.take(indices), self.take(indices, "weights") if len(self.weights) else None)

    def local(self, rows: Floats, weights: F64 | None = None) -> CpuShard:
        return local_shard(rows, weights, self.n_threads)
