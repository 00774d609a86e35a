"""The hard pass: every row to its exactly closest centre, sums per cluster.

Blocks of rows are multiplied with chunks of centres (BLAS, sized so that the scores stay in the second-level cache);
the scores nominate labels which `kernels.hard` checks exactly. Sums are then taken in cluster order over a counting
sort of the labels: no buffers per thread, the same bits for any number of threads. Memory beyond the rows: 8 bytes a
row, the centres once more in the rows' dtype, and one block of scores per thread; never N×C.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.grouped import Grouping
from globular.backends.cpu.rows import CSRRows, DenseRows, Floats, KernelRows, read_only
from globular.kernels import hard as kernels
from globular.kernels import thin
from globular.kernels.moments import add_moments
from globular.model.groups import group_by
from globular.model.statistics import F64, FarRows, HardStatistics
from globular.threads import even_ranges, map_all, ordered_map, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

CENTER_CHUNK = 1024
SCORES_PER_BLOCK = 512 * CENTER_CHUNK
THIN = 8
"""Rows of up to so many columns are multiplied by our own kernel: BLAS would mostly pack and unpack."""
FEW_SUMS = 1 << 16
"""Sums of so many numbers (clusters × columns) stay in the second-level cache."""
ROWS_PER_RUN = 16384
"""Longest run of rows that one task sums; longer clusters are cut, and the pieces added in order."""


@dataclass(frozen=True, slots=True)
class ScoreChunk:
    """Some of the centres, ready for the product with a block of rows."""

    members: NDArray[np.intp]
    """Their indices, ascending."""
    factors: Floats
    """−2 (m − offset)ᵀ, (D, chunk)."""
    norms: Floats
    """‖m − offset‖², (chunk,)."""
    longest: float
    """The largest ‖m − offset‖."""


class CenterProduct:
    """Centres prepared for nominating by matrix products, and the scratch memory of each thread.

    `members` says which centres go together into one product; by default fixed chunks that suit the cache.
    """

    def __init__(self, shard: CpuShard, centers: F64, members: list[NDArray[np.intp]] | None = None) -> None:
        self.rows = shard.rows
        self.scales = shard.scales
        self.offset = shard.offset
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        self.norms: F64 = np.einsum("ij,ij->i", self.centers, self.centers)
        self.unit = float(np.finfo(self.rows.dtype).eps) / 2
        self.tiny = float(np.finfo(self.rows.dtype).tiny)
        if members is None:
            members = [np.arange(a, b) for a, b in even_ranges(len(centers), CENTER_CHUNK)]
        self.chunks = [self._chunk(indices) for indices in members]
        self._n_keys = max(len(chunk.members) for chunk in self.chunks) // kernels.TILE + 1
        self._scratch = threading.local()

    def _chunk(self, members: NDArray[np.intp]) -> ScoreChunk:
        shifted = self.centers[members] if self.offset is None else self.centers[members] - self.offset
        norms = np.einsum("ij,ij->i", shifted, shifted)
        dtype = self.rows.dtype
        with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
            factors = np.ascontiguousarray((-2.0 * shifted).T, dtype=dtype)
            return ScoreChunk(members, factors, norms.astype(dtype), float(np.sqrt(norms.max())))

    @property
    def is_thin(self) -> bool:
        """Whether rows are dense and have few columns."""
        return not isinstance(self.rows, CSRRows) and 0 < self.centers.shape[1] <= THIN

    def lanes(self) -> tuple[Floats, NDArray[np.int32]]:
        """Scratch for the kernels of thin rows."""
        shape = (thin.STATE + self.centers.shape[1], thin.LANES)
        return np.empty(shape, dtype=self.rows.dtype), np.empty(thin.LANES, dtype=np.int32)

    @property
    def rows_per_block(self) -> int:
        """Rows to be handled at once, from the number of centres alone: blocks never depend on threads."""
        return min(8192, max(512, SCORES_PER_BLOCK // len(self.centers)))

    def nearest(self, rows: KernelRows, seen: KernelRows, scales: F64, best: F64, labels: NDArray[np.int32]) -> None:
        """Lower `best` and `labels` of some rows by all the centres; see `nominate_and_check`."""
        lengths = np.empty(len(labels))
        kernels.row_lengths(seen, lengths)
        if self.is_thin:
            self._nearest_of_thin(rows, seen, lengths, scales, best, labels)
            return
        for chunk in self.chunks:
            scores = self.scores(seen, None, chunk)
            kernels.nominate_and_check(
                rows, lengths, scales, scores, chunk.norms, self.centers, self.norms,
                int(chunk.members[0]), self.unit, self.tiny, best, labels, self.keys,
            )  # fmt: skip

    def _nearest_of_thin(
        self, rows: KernelRows, seen: KernelRows, lengths: F64, scales: F64, best: F64, labels: NDArray[np.int32]
    ) -> None:
        lanes, nearest = self.lanes()
        for chunk in self.chunks:
            thin.nearest_of_thin(
                rows, seen[0], lengths, scales, chunk.factors, chunk.norms, self.centers, self.norms,
                int(chunk.members[0]), self.unit, self.tiny, best, labels, lanes, nearest,
            )  # fmt: skip

    def scores(self, seen: KernelRows, chosen: NDArray[np.intp] | None, chunk: ScoreChunk) -> Floats:
        """−2 x·(m − offset) of the chosen rows (None: all) with the chunk's centres, in this thread's scratch."""
        if len(seen) == 3:
            chosen = np.arange(len(seen[2]) - 1) if chosen is None else chosen
            out = self._buffer(len(chosen), len(chunk.members))
            kernels.csr_scores(seen, chosen, chunk.factors, out)
            return out
        block = seen[0] if chosen is None else np.take(seen[0], chosen, axis=0)
        if self.is_thin:
            out = self._buffer(len(block), len(chunk.members))
            kernels.thin_scores(block, chunk.factors, out)
            return out
        with np.errstate(over="ignore", invalid="ignore"):
            return np.matmul(block, chunk.factors, out=self._buffer(len(block), len(chunk.members)))

    @property
    def keys(self) -> NDArray[np.generic]:
        """This thread's scratch for tile minima, once it has had scores."""
        return self._scratch.keys

    def _buffer(self, n: int, width: int) -> Floats:
        size = n * width
        held = getattr(self._scratch, "scores", None)
        if held is None or held.size < size:
            self._scratch.scores = np.empty(size, dtype=self.rows.dtype)
            key_type = np.int32 if self.rows.dtype == np.float32 else np.int64
            self._scratch.keys = np.empty(self._n_keys, dtype=key_type)
        return self._scratch.scores[:size].reshape(n, width)

    def load(self, start: int, stop: int) -> tuple[KernelRows, KernelRows, F64]:
        """Rows start..stop, the same as the product wants them, and their scales."""
        rows = self.rows.kernel_rows(start, stop)
        return rows, self.seen(rows), self.scales[start:stop]

    def seen(self, rows: KernelRows) -> KernelRows:
        """Rows about the offset, if there is one."""
        if self.offset is None:
            return rows
        return (read_only((rows[0] - self.offset).astype(rows[0].dtype, copy=False)),)


def row_offset(shard: CpuShard) -> F64 | None:
    """What to subtract from rows before squaring them: their mean, where it dwarfs their spread.

    Any value gives the same labels (candidates are checked exactly); a good one keeps the nominations few.
    """
    if isinstance(shard.rows, CSRRows) or len(shard.scales) or shard.n_rows == 0:
        return None
    sample = shard.rows.gather(np.arange(0, shard.n_rows, -(-shard.n_rows // 1024))).astype(np.float64)
    mean = sample.mean(axis=0)
    if mean @ mean <= 4.0 * sample.var(axis=0).sum():
        return None
    return mean.astype(shard.rows.dtype).astype(np.float64)


def hard_pass(shard: CpuShard, centers: F64, accumulate: bool) -> HardStatistics:
    """See `Shard.hard_pass`."""
    product = CenterProduct(shard, centers)
    labels = shard.labels

    def assign(span: tuple[int, int]) -> tuple[float, int]:
        start, stop = span
        rows, seen, scales = product.load(start, stop)
        best = np.full(stop - start, np.inf)
        found = np.full(stop - start, -1, dtype=np.int32)
        product.nearest(rows, seen, scales, best, found)
        return kernels.settle_block(best, found, shard.weights[start:stop], labels[start:stop])

    objective, n_changed = 0.0, 0
    spans = even_ranges(shard.n_rows, product.rows_per_block)
    for block_objective, block_changed in map_all(assign, spans, shard.n_threads):
        objective += block_objective
        n_changed += block_changed
    sums, counts = cluster_sums(shard, len(centers)) if accumulate else (np.empty((0, shard.n_columns)), np.empty(0))
    return HardStatistics(sums, counts, objective, n_changed, shard.n_rows * len(centers))


def cluster_sums(shard: CpuShard, n_clusters: int, grouping: Grouping | None = None) -> tuple[F64, F64]:
    """Σ w x and Σ w per label, the same bits for any number of threads. O(N·D).

    `grouping`: the rows by their labels, from who has it.
    """
    if n_clusters * shard.n_columns <= FEW_SUMS and isinstance(shard.rows, DenseRows):
        return _sums_by_block(shard, n_clusters)
    if grouping is None:
        starts, order = group_by(shard.labels, n_clusters)
        grouping = Grouping(shard.labels, starts, order[None])
    return _sums_in_cluster_order(shard, grouping)


def _sums_by_block(shard: CpuShard, n_clusters: int) -> tuple[F64, F64]:
    """Few sums: every block of rows has its own, added in the order of the blocks; rows are read as they lie."""
    rows, offset = shard.rows, shard.offset
    shift = np.zeros(shard.n_columns) if offset is None else offset

    def add_block(span: tuple[int, int]) -> tuple[F64, F64]:
        part = slice(*span)
        sums, counts = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
        kernels.sum_block(
            rows.kernel_rows(*span), shard.weights[part], shard.scales[part], shift, shard.labels[part], sums, counts
        )
        return sums, counts

    total, count = np.zeros((n_clusters, shard.n_columns)), np.zeros(n_clusters)
    for sums, counts in ordered_map(
        add_block, even_ranges(shard.n_rows, max(ROWS_PER_RUN, 8 * n_clusters)), shard.n_threads
    ):
        total += sums
        count += counts
    return (total if offset is None else total + count[:, None] * offset), count


def _sums_in_cluster_order(shard: CpuShard, grouping: Grouping) -> tuple[F64, F64]:
    """Many sums: rows are taken in the order of their clusters, so that every sum is written once."""
    starts = grouping.starts
    offset = shard.offset
    shift = np.zeros(shard.n_columns) if offset is None else offset
    sums, counts = np.zeros((len(starts) - 1, shard.n_columns)), np.zeros(len(starts) - 1)

    def add_run(run: _Run, sums: F64, counts: F64, base: int) -> None:
        rows, places = grouping.load(shard, run.begin, run.end)
        kernels.sum_run(
            rows, places, grouping.order[run.begin : run.end], shard.weights, shard.scales, shift, starts,
            run.begin, run.cluster, base, sums, counts,
        )  # fmt: skip

    def whole_clusters(run: _Run) -> None:
        add_run(run, sums, counts, 0)

    def piece_of_cluster(run: _Run) -> tuple[int, F64, F64]:
        part, count = np.zeros((1, shard.n_columns)), np.zeros(1)
        add_run(run, part, count, run.cluster)
        return run.cluster, part, count

    whole, pieces = _runs(starts)
    run_all(whole_clusters, whole, shard.n_threads)
    for cluster, part, count in ordered_map(piece_of_cluster, pieces, shard.n_threads):
        sums[cluster] += part[0]
        counts[cluster] += count[0]
    if offset is not None:
        sums += counts[:, None] * offset
    return sums, counts


@dataclass(frozen=True, slots=True)
class _Run:
    begin: int
    end: int
    cluster: int
    """The cluster of its first row."""


def _runs(starts: NDArray[np.int64]) -> tuple[list[_Run], list[_Run]]:
    """Cut the grouped rows into runs of whole clusters, and pieces of clusters too large for one run."""
    whole, pieces = [], []
    large = np.flatnonzero(np.diff(starts) > ROWS_PER_RUN)
    begin = 0
    for cluster in [*large.tolist(), len(starts) - 1]:
        end = int(starts[cluster])
        while begin < end:
            first = int(np.searchsorted(starts, begin, side="right")) - 1
            # the last cluster boundary within reach; every cluster here fits into a run
            stop = min(end, int(starts[np.searchsorted(starts, begin + ROWS_PER_RUN, side="right") - 1]))
            whole.append(_Run(begin, stop, first))
            begin = stop
        if cluster < len(starts) - 1:
            begin = int(starts[cluster + 1])
            pieces += [_Run(end + a, end + b, cluster) for a, b in even_ranges(begin - end, ROWS_PER_RUN)]
    return whole, pieces


def column_moments(shard: CpuShard) -> tuple[F64, F64]:
    """See `Shard.column_moments`: weighted mean and variance per column, in one pass about a sample's mean, float64."""
    if isinstance(shard.rows, CSRRows):
        return _csr_moments(shard, shard.rows)
    rows, total = shard.rows, shard.total_weight
    sample = shard.take(np.arange(0, shard.n_rows, -(-shard.n_rows // 256)))
    # a constant column is to have the variance zero, not what rounding its mean leaves
    shift = np.where((sample == sample[0]).all(axis=0), sample[0], sample.mean(axis=0))

    def moments(span: tuple[int, int]) -> F64:
        part, out = slice(*span), np.zeros((2, shard.n_columns))
        add_moments(rows.block(*span), shard.scales[part], shard.weights[part], shift, out[0], out[1])
        return out

    spans = even_ranges(shard.n_rows, 4096)
    first, second = sum(map_all(moments, spans, shard.n_threads), np.zeros((2, shard.n_columns))) / total
    with np.errstate(over="ignore", invalid="ignore"):  # callers see infinity or NaN and say so
        return shift + first, np.maximum(second - first**2, 0.0)


def _csr_moments(shard: CpuShard, rows: CSRRows) -> tuple[F64, F64]:
    """About the mean, the zeros of a column together: a large offset must not cancel."""
    indices, values, weights = rows.indices, rows.data.astype(np.float64), None
    if len(shard.scales) or len(shard.weights):
        row_of = np.repeat(np.arange(shard.n_rows), np.diff(rows.indptr))
        values = values * shard.scales[row_of] if len(shard.scales) else values
        weights = shard.weights[row_of] if len(shard.weights) else None

    def share(values: F64 | None) -> F64:
        """Σ w v of the nonzeros of every column, by the weight of all rows."""
        each = values if weights is None else weights if values is None else weights * values
        return np.bincount(indices, each, shard.n_columns) / shard.total_weight

    filled = np.bincount(indices, minlength=shard.n_columns) == shard.n_rows
    with np.errstate(over="ignore", invalid="ignore"):  # callers see infinity or NaN and say so
        mean = share(values)
        values -= mean[indices]
        zeros = np.where(filled, 0.0, np.maximum(1.0 - share(None), 0.0))
        return mean, share(np.square(values, out=values)) + zeros * mean**2


def farthest(shard: CpuShard, n: int, centers: F64) -> FarRows:
    """See `Shard.farthest`."""
    centers = np.ascontiguousarray(centers, dtype=np.float64)
    norms = np.einsum("ij,ij->i", centers, centers)

    def block(span: tuple[int, int]) -> tuple[F64, NDArray[np.intp]]:
        start, stop = span
        distances = np.empty(stop - start)
        rows = shard.rows.kernel_rows(start, stop)
        kernels.own_distances(rows, shard.scales[start:stop], centers, norms, shard.labels[start:stop], distances)
        if len(shard.weights):
            distances[shard.weights[start:stop] == 0] = -1.0
        chosen = np.argsort(-distances, kind="stable")[:n]
        return distances[chosen], chosen + start

    found = map_all(block, even_ranges(shard.n_rows, 8192), shard.n_threads)
    distances = np.concatenate([np.empty(0), *(d for d, _ in found)])
    indices = np.concatenate([np.empty(0, dtype=np.intp), *(i for _, i in found)])
    best = np.argsort(-distances, kind="stable")[:n]
    best = best[distances[best] >= 0]
    chosen = indices[best]
    return FarRows(
        shard.take(chosen), distances[best], shard.take_weights(chosen), shard.labels[chosen].astype(np.int64)
    )
