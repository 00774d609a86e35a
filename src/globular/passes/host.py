"""What shards of this process share: per-row state, the table of who carries out which pass, and passes over state.

A backend derives from `HostShard` by way of `cpu.shard.BlockShard`, and registers a function for each pass that it
carries out itself: `@MyShard.implements(Assign)`, or `@MyShard.implements(Assign, Probe)` for one source of candidates.
What needs weights and per-row state alone is written here once. Passes that nobody has registered are carried out part
by part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, new_queue, share_kernel, take_number
from globular.lazy import cached_property
from globular.model.covariances import ScatterKind
from globular.model.statistics import F64
from globular.seam import center_passes, passes
from globular.seam.passes import Index, Labels, Pass, Result, RowValue
from globular.seam.shard import PointState, Shard
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all, worth_waking

Handler = Callable[[Any, Any], Any]
Function = TypeVar("Function", bound=Handler)

NONE: F64 = np.empty(0)
"""Stands for absent weights or scales in kernel calls: kernels look at its length."""
NO_NUMBERS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
"""The same for places and names."""
NO_TABLE: F64 = np.empty((0, 0))
"""The same for what has a line for each row."""
PART_BYTES = 128 * 2**20
"""Bytes of a part, where rows that are not here come in parts."""
RUN = 4096
"""Rows whose sum is kept as one number, or whose list as one piece; another value changes the last bits of sums."""
ROWS_AT_ONCE = 1 << 13
"""Rows that a thread converts, copies or labels before it takes the next ones; larger = fewer calls, and fewer tasks
for the threads of a small pass. No result depends on it."""
GATHERED_AT_ONCE = 1 << 11
"""Rows, or nodes of a tree, that a thread brings together at once: larger = larger products, and more memory."""
SEARCHED_AT_ONCE = 1 << 10
"""Rows, cells or pairs of a task that looks at centres for each of them; larger = fewer tasks for many threads."""
ROWS_PER_PRODUCT = 512
"""Most rows of a product with centres: with their scores they stay in the second-level cache."""
CACHED_NUMBERS = 1 << 16
"""Numbers that stay in the second-level cache beside what they come from; larger = larger blocks."""
ROWS_PER_LONG_SPAN = 16 * RUN
"""Least rows of a span whose sums by key are taken."""
SPANS_AT_ONCE = 16
"""Most spans of rows whose sums by key are taken side by side."""
HASH_SIZE = 1 << 15
"""Least number of places in a thread's table of pairs of clusters."""
HORIZON = 2.25
"""Squared: a random candidate half as far again as the farthest neighbour is none, and its pair is not listed."""
NOMINEES = 8
"""Components of low rank that a search nominates for every row."""
COSTS_AT_ONCE = 1 << 18
"""Densities of low rank that a thread has before it where all components are looked at."""
NODES_PER_LEAF_SIZE = 2.8
"""Nodes are about this number times N / leaf_size (measured on Gaussian data; most leaves are half full or more)."""


@kernel
def weighted_sum(
    d2: Any,  # IN  (n,)
    weights: Any,  # IN  (n,) or empty
) -> float:
    """Σ w d². O(n)."""
    total = 0.0
    for i in range(d2.shape[0]):
        total += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return total


@kernel
def settle_runs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    former: Any,  # IN  (N,), or empty: nothing is compared
    labels: Any,  # IN  (N,), or as empty
    d2: Any,  # IN  (N,), or empty: nothing is summed
    weights: Any,  # IN  (N,) or empty
    sums: Any,  # OUT (runs,) Σ w d²
    changes: Any,  # OUT (runs,) rows whose labels differ
) -> None:
    """O(N)."""
    r = take_number(queue)
    while r < sums.shape[0]:
        begin, end = r * length, min((r + 1) * length, max(d2.shape[0], former.shape[0]))
        sums[r] = weighted_sum(d2[begin:end], weights[begin:end])
        n = 0
        for i in range(begin, min(end, former.shape[0])):
            n += former[i] != labels[i]
        changes[r] = n
        r = take_number(queue)


@kernel
def sum_by_key(
    queue: Queue,  # IN/OUT spans of rows
    keys: Any,  # IN  (N,)
    d2: Any,  # IN  (N,), or empty: all ones
    weights: Any,  # IN  (N,) or empty
    sums: Any,  # OUT (spans, K) Σ w d² of the rows of each key
) -> None:
    """A span of the rows at a time. O(N + spans · K)."""
    n, n_spans = keys.shape[0], sums.shape[0]
    s = take_number(queue)
    while s < n_spans:
        sums[s] = 0.0
        for i in range(n * s // n_spans, n * (s + 1) // n_spans):
            share = d2[i] if d2.shape[0] else 1.0
            sums[s, keys[i]] += share * weights[i] if weights.shape[0] else share
        s = take_number(queue)


@kernel
def locate_in_runs(
    queue: Queue,  # IN/OUT runs that masses fall into
    length: int,  # IN  rows of a run
    runs: Any,  # IN  (R,)
    firsts: Any,  # IN  (R + 1,) where the masses of each run begin
    masses: Any,  # IN  (m,) ascending, less the sum of all rows before their run
    d2: Any,  # IN  (N,), or empty: all ones
    weights: Any,  # IN  (N,) or empty
    found: Any,  # OUT (m,) the first row at which the sum of w d² exceeds the mass, or else the last that adds to it
) -> None:
    """O(R · length)."""
    n = max(d2.shape[0], weights.shape[0])
    r = take_number(queue)
    while r < runs.shape[0]:
        k, total, last = firsts[r], 0.0, runs[r] * length
        for i in range(runs[r] * length, min((runs[r] + 1) * length, n)):
            share = d2[i] if d2.shape[0] else 1.0
            raised = total + (share * weights[i] if weights.shape[0] else share)
            last = i if raised > total else last
            total = raised
            while k < firsts[r + 1] and masses[k] < total:
                found[k] = i
                k += 1
        for rest in range(k, firsts[r + 1]):
            found[rest] = last
        r = take_number(queue)


class HostShard(Shard):
    """Rows whose weights and per-row state are in the memory of this process."""

    _handlers: ClassVar[dict[tuple[type, type | None], Handler]] = {}
    frontier: Any = None
    """The cells of a tree over the rows, once there is one; see `passes.tree`."""
    few: Any = None
    """What a search keeps of few rows; see `passes.cpu.few_rows`."""

    def __init__(
        self,
        shape: tuple[int, int],
        weights: F64 | None = None,
        *,
        n_threads: int = 1,
        state: PointState | None = None,
        first_row: int = 0,
    ) -> None:
        self.n_rows, self.n_columns = int(shape[0]), int(shape[1])
        self.weights: F64 = NONE if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        """One number a row, or none at all."""
        self.n_threads = n_threads
        self.first_row = first_row
        """The number of row 0 in the whole data, for random numbers that do not depend on the split."""
        self.state = PointState(self.n_rows) if state is None else state
        self.error_runs: F64 | None = None
        """Σ w d² of every run of rows, where a pass has left it."""

    def __init_subclass__(cls) -> None:
        cls._handlers = {}

    @classmethod
    def implements(cls, kind: type[Pass[Any]], variant: type | None = None) -> Callable[[Function], Function]:
        """Register a function (shard, pass) → result for a kind of pass, or for one variant of it."""

        def register(function: Function) -> Function:
            cls._handlers[kind, variant] = function
            return function

        return register

    def _handler(self, work: Pass[Any]) -> Handler | None:
        variants = (*work.variant.__mro__, None) if work.variant else (None,)
        for cls in type(self).__mro__:
            for variant in variants:
                found = cls.__dict__.get("_handlers", {}).get((type(work), variant))
                if found is not None:
                    return cast(Handler, found)
        return None

    def run(self, work: Pass[Result]) -> Result:
        self._check(work)
        if "d2" in work.effect.writes:
            self.error_runs = None
        handler = self._handler(work)
        return self._run_parts(work) if handler is None else handler(self, work)

    def _run_parts(self, work: Pass[Result]) -> Result:
        """The pass on one part after the other: one result is held, not many."""
        return reduce(work.merge, (part.run(work) for part in self.parts()))

    @property
    @abstractmethod
    def dtype(self) -> np.dtype:
        """The type that kernels see the rows in."""

    @abstractmethod
    def parts(self) -> Iterator[HostShard]:
        """The rows in order as shards in memory, with their weights and views of the state."""

    def row_blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """All rows as the passes see them, block by block: the number of the first, and the rows."""
        for begin, end in even_ranges(self.n_rows, max(1, PART_BYTES // (8 * self.n_columns))):
            yield begin, self.take(np.arange(begin, end))

    @abstractmethod
    def take_rows(self, indices: Index) -> F64:
        """Some rows as the passes see them."""

    @cached_property
    def total_weight(self) -> float:
        return float(self.weights.sum()) if len(self.weights) else float(self.n_rows)

    @property
    def labels(self) -> Labels:
        return cast(Labels, self.state.get("labels", np.int32, -1))

    @property
    def squared_distances(self) -> F64:
        """Per-row state: squared distance to the closest seed, or to the row's own centre."""
        return cast(F64, self.state.get("d2", np.float64, np.inf))

    @property
    def closest_seeds(self) -> Labels:
        """Per-row state: number of the closest seed."""
        return cast(Labels, self.state.get("seeds", np.int32, -1))

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        if what == "rows":
            return self.take_rows(indices)
        if what == "labels":
            return self.labels[indices]
        weights = self.weights[indices] if len(self.weights) else np.ones(len(indices))
        return weights if what == "weights" else self.squared_distances[indices] * weights

    def totals(self, of: str, by: str | None, n: int) -> F64:
        """Σ w ("weights") or Σ w·d² ("errors"), of all rows or of those of each label or seed."""
        if by is None:
            return np.array([self.total_weight if of == "weights" else error_runs(self).sum()])
        return sum_by(self, self.labels if by == "labels" else self.closest_seeds, n, errors=of == "errors")

    def locate(self, masses: F64, by: Any = "weights") -> Index:
        if by == "errors":
            return _locate_by(self, masses, error_runs(self), errors=True)
        if not len(self.weights):
            return np.clip(masses, 0, self.n_rows - 1).astype(np.intp)
        return _locate_by(self, masses, self._weight_runs, errors=False)

    @cached_property
    def _weight_runs(self) -> F64:
        return np.add.reduceat(self.weights, np.arange(0, self.n_rows, RUN))


def tree_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """About how much memory a tree takes; twice that while it is built."""
    n_nodes = min(NODES_PER_LEAF_SIZE * n_rows / leaf_size, 2 * n_rows)
    return int(n_nodes * (8 * (1 + n_columns + kind.width(n_columns)) + 32) + 4 * n_rows)


def runs_of(rows: slice, length: int = 0) -> slice:
    """The runs of these rows, of which the first begins a run; `length` is RUN where it is not given."""
    length = length or RUN
    return slice(rows.start // length, -(-rows.stop // length))


def threads_for_runs(shard: HostShard, n_numbers: int = 1) -> int:
    """Threads for a pass at memory speed over `n_numbers` numbers a row: a few runs are not worth waking one for."""
    return worth_waking(shard.n_threads, SECONDS_PER_NUMBER * n_numbers * shard.n_rows)


def on_runs(n_threads: int, kernel: Callable[..., None], *arguments: Any) -> None:
    """Call a kernel that takes runs of rows from a queue."""
    queue = new_queue()
    share_kernel(lambda: kernel(queue, RUN, *arguments), queue, n_threads, calls_blas=False)


def error_runs(shard: HostShard) -> F64:
    """Σ w d² of every run of rows, as kept by the last pass or taken from the state."""
    if shard.error_runs is None:
        settle(shard, np.empty(0, dtype=np.int32))
    assert shard.error_runs is not None
    return shard.error_runs


def settle(shard: HostShard, former: Labels) -> tuple[float, int]:
    """Σ w d² after a pass, whose runs are kept, and how many rows have another label than the former, if there are."""
    d2, n_threads, labels = shard.squared_distances, threads_for_runs(shard), shard.labels if len(former) else former
    shard.error_runs = sums = np.empty(-(-shard.n_rows // RUN))
    changes = np.empty(len(sums), dtype=np.int64)
    on_runs(n_threads, settle_runs, former, labels, d2, shard.weights, sums, changes)
    return float(sums.sum()), int(changes.sum())


def sum_by(shard: HostShard, keys: Labels, n: int, *, errors: bool) -> F64:
    """Σ w d² of the rows of each key, or Σ w. Spans of rows depend on their number alone."""
    n_spans = max(1, min(SPANS_AT_ONCE, len(keys) // max(ROWS_PER_LONG_SPAN, 4 * n)))
    sums, queue = np.empty((n_spans, n)), new_queue()
    d2 = shard.squared_distances if errors else NONE
    n_threads = threads_for_runs(shard)
    share_kernel(lambda: sum_by_key(queue, keys, d2, shard.weights, sums), queue, n_threads, calls_blas=False)
    return np.add.reduce(sums, axis=0)


def _locate_by(shard: HostShard, masses: F64, sums: F64, *, errors: bool) -> Index:
    """Find the run of each mass from the runs' sums, then the row inside it. O(runs touched · RUN + m log m)."""
    if len(sums) == 1:
        return _locate_inside(shard, masses, errors=errors)
    ends = np.cumsum(sums)
    positive = np.flatnonzero(sums > 0)
    found = np.zeros(len(masses), dtype=np.intp)
    if not len(positive) or not len(masses):
        return found
    order = np.argsort(masses, kind="stable")
    # a mass that rounding has pushed past the total belongs to the last row that can be drawn at all
    run_of = np.minimum(np.searchsorted(ends, masses[order], side="right"), positive[-1])
    firsts = np.flatnonzero(np.diff(run_of, prepend=-1, append=len(sums)))
    runs, inside = run_of[firsts[:-1]], masses[order] - (ends - sums)[run_of]
    located, d2 = np.empty_like(found), shard.squared_distances if errors else NONE
    on_runs(threads_for_runs(shard), locate_in_runs, runs, firsts, inside, d2, shard.weights, located)
    found[order] = located
    return found


def _locate_inside(shard: HostShard, masses: F64, *, errors: bool) -> Index:
    """The same in a single run, where NumPy is done before a kernel has looked at its arguments."""
    shares = shard.squared_distances if errors else shard.weights
    ends = np.cumsum(shares * shard.weights if errors and len(shard.weights) else shares)
    last = ends.searchsorted(ends[-1])  # the row at which the sum reaches its final value
    return np.minimum(ends.searchsorted(masses, side="right"), last)


HostShard.implements(passes.Take)(lambda shard, work: shard.take(work.indices, work.what))
HostShard.implements(passes.Locate)(lambda shard, work: shard.locate(work.masses, work.by))
HostShard.implements(passes.Total)(lambda shard, work: shard.totals(work.of, work.by, work.n))
HostShard.implements(passes.AllLabels)(lambda shard, work: [shard.labels])

BY_METHODS = (
    passes.Take, passes.Locate, passes.Total, passes.AllLabels, center_passes.SeedFew, center_passes.SearchFew,
    center_passes.AcceptSeeds, center_passes.RunChains, center_passes.EstimateNeighbors, center_passes.Transport,
)  # fmt: skip
"""Passes that ask methods of a shard for all they need, wherever rows, weights and state lie."""


@HostShard.implements(passes.LabelBySeeds)
def label_by_seeds(shard: HostShard, work: passes.LabelBySeeds) -> None:
    shard.labels[:] = shard.closest_seeds


@HostShard.implements(passes.TakeLabels)
def take_labels(shard: HostShard, work: passes.TakeLabels) -> None:
    shard.labels[:] = work.labels[shard.first_row : shard.first_row + shard.n_rows]


@HostShard.implements(passes.BlendErrors)
def blend_errors(shard: HostShard, work: passes.BlendErrors) -> None:
    d2 = shard.squared_distances
    d2 *= work.share
    d2 += np.asarray(work.of_seeds)[shard.closest_seeds]


@HostShard.implements(passes.Relabel)
def relabel(shard: HostShard, work: passes.Relabel) -> None:
    names, labels = np.asarray(work.names, dtype=np.int32), shard.labels

    def rename(span: tuple[int, int]) -> None:
        labels[slice(*span)] = np.take(names, labels[slice(*span)], mode="wrap")

    spans, seconds = even_ranges(len(labels), ROWS_PER_LONG_SPAN), SECONDS_PER_NUMBER * len(labels)
    run_all(rename, spans, shard.n_threads, seconds=seconds, calls_blas=False)
