"""Truncated E-steps of k-means: rows look at neighbourhoods, at a cost that does not depend on the number of clusters.

Rows are grouped by their closest cluster (counting sort); groups are searched side by side on our threads. A row keeps
its label, and K(n) too if C′ > 1. Sums are taken in cluster order. `expect.neighbors` has this search for mixtures.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue, share_kernel
from globular.jit.tiles import line_tile
from globular.kernels import neighbors as kernels
from globular.kernels.members import settle_hard
from globular.kernels.neighborhoods import search_neighborhoods
from globular.model.graph import Graph, Search
from globular.model.groups import group_by
from globular.model.statistics import F64, Floats, HardStatistics, PairStatistics
from globular.passes.cpu.grouped import ROWS_PER_TASK, Grouping, group_rows, move_rows, pack, packed, sort_when_it_pays
from globular.passes.cpu.products import prepared
from globular.passes.cpu.rows import KernelRows, can_be_indexed, gather_rows, on_rows, on_tasks
from globular.passes.cpu.shard import CpuShard
from globular.passes.cpu.sums import wanted_sums
from globular.passes.host import RUN, SEARCHED_AT_ONCE, runs_of, threads_for_runs
from globular.passes.limits import HASH_SIZE
from globular.seam.among import Neighbors
from globular.seam.passes import Assign
from globular.threads import on_all_threads, run_all

GATHERED_ROWS = 16384
"""Least rows of a task whose rows have to be brought together, which is a call of its own; larger = fewer calls."""
TABLES_AT_ONCE = 8
"""Full tables of pairs that a thread has room for before it asks for more."""


@CpuShard.implements(Assign, Neighbors)
def assign_neighbors(shard: CpuShard, work: Assign) -> HardStatistics:
    """Every row against the neighbourhoods of its K(n)."""
    assert isinstance(work.among, Neighbors)
    centers, graph, search = work.centers, work.among.graph, work.among.search
    if search.n_candidates == 1:
        objective, n_distances, pairs, n_changed = _search_neighborhoods(shard, centers, graph, search)
    else:
        members = kept_members(shard, graph, search.n_candidates)
        n_distances, pairs = search_candidates_of(shard, centers, SquaredDistances(), graph, search, members)
        objective, n_changed = _settle_hard(shard, centers, members)
    sums = wanted_sums(shard, work, shard.recall(Grouping) if search.n_candidates == 1 else None)
    return HardStatistics(*sums, objective, n_changed, n_distances, pairs)


class SquaredDistances:
    """What a search compares: for k-means the squared distance, in the rows' dtype."""

    dtype: np.dtype | None = None
    search_precisions: F64 = np.empty((0, 0))
    search_biases: F64 = np.empty(0)
    by_distance = True


def _search_neighborhoods(
    shard: CpuShard, centers: F64, graph: Graph, search: Search
) -> tuple[float, int, PairStatistics, int]:
    """C′ = 1: tables per group. The closest cluster of every row goes to the labels.

    Returns the objective, the number of distances, what Eq. 8 needs, and how many rows moved.
    """
    (C, D), G = centers.shape, graph.shape[1]
    grouping, dtype = group_rows(shard, C), shard.rows.dtype
    starts, order = grouping.starts, grouping.order
    norms, _, quick = prepared(centers, 1.0, dtype, shard.n_threads)
    lanes = line_tile(dtype.itemsize).lanes
    tile = D if lanes > D else 0, G + -G % lanes  # where columns fill no vector, vectors run along the neighbours
    indexed = grouping.copied is not None or can_be_indexed(shard.rows)
    tasks = grouping.tasks(SEARCHED_AT_ONCE if indexed else GATHERED_ROWS)
    begins = starts[tasks]
    room = tasks * (G * (G - 1)) + begins * search.n_random  # where the triples of a task begin, if it has all it may
    width = int(room[-1]) if search.estimate else 0
    triples = np.empty((4, width), dtype=np.int32)
    pairs, sums = triples[:2], triples[2:].view(np.float32)
    moved, numbers = np.empty((3, shard.n_rows), dtype=order.dtype), np.empty((len(tasks) - 1, 3), dtype=np.int64)
    objectives = np.empty(len(tasks) - 1)

    def search_groups(queue: NDArray[np.int64], part: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        search_neighborhoods(
            queue, tasks[part.start : part.stop + 1], room[part], rows, places, order, shard.weights, shard.scales,
            starts, graph, quick, centers, norms, search.n_random, np.uint64(search.seed), shard.first_row,
            shard.labels, grouping.labels, moved, pairs, sums, objectives[part], numbers[part], np.empty(tile, dtype),
            np.empty(tile[1], dtype), np.empty((G, G + 1)),
        )  # fmt: skip

    on_tasks(shard.rows, order, begins[:-1], shard.n_threads, search_groups, lying=grouping.lying())
    n_distances, n_pairs, n_moved = np.ascontiguousarray(numbers.T)
    moved = packed(moved, begins[:-1], n_moved, shard.n_threads)
    triples = packed(triples, room[:-1], n_pairs, shard.n_threads)
    moved[0] = move_rows(shard, grouping, moved)
    sort_when_it_pays(shard, grouping, moved.shape[1])
    shard.keep(grouping)
    found = PairStatistics(triples[:2], triples[2:].view(np.float32))
    return float(objectives.sum()), int(n_distances.sum()), found, moved.shape[1]


def kept_members(shard: CpuShard, graph: Graph, n_candidates: int) -> NDArray[np.int32]:
    """K(n); where it is new or does not fit the labels, the neighbourhood of the label."""
    members = cast(NDArray[np.int32], shard.state.get("members", np.int32, -1, width=n_candidates))
    queue, labels = new_queue(), shard.labels
    share_kernel(
        lambda: kernels.renew_members(queue, RUN, labels, graph, members), queue, threads_for_runs(shard),
        calls_blas=False,
    )  # fmt: skip
    return members


def search_candidates_of(
    shard: CpuShard, centers: F64, costs: SquaredDistances, graph: Graph, search: Search, members: NDArray[np.int32]
) -> tuple[int, PairStatistics]:
    """C′ > 1, or soft: K(n) becomes the best of the union of its members' neighbourhoods."""
    n, C = shard.n_rows, len(centers)
    dtype = shard.rows.dtype if costs.dtype is None else costs.dtype
    norms, _, quick = prepared(centers, 1.0, dtype, shard.n_threads)
    precisions, biases = costs.search_precisions.astype(dtype), costs.search_biases.astype(dtype)
    _, order = group_by(shard.labels, C, shard.n_threads)
    tasks = np.append(np.arange(0, n, ROWS_PER_TASK), n)
    n_distances, found = np.zeros(len(tasks) - 1, dtype=np.int64), list[_Triples]()

    def search_tasks(queue: NDArray[np.int64], part: slice, rows: KernelRows, places: NDArray[np.integer]) -> None:
        scratch = _Scratch.make(C, members.shape[1], graph.shape[1], search, dtype)
        mine, pause = list[_Triples](), np.full(2, -1, dtype=np.int64)
        while not mine or pause[0] >= 0:
            triples = _Triples.make(len(scratch.keys))
            n_stretches = kernels.search_candidates(
                queue, tasks[part.start : part.stop + 1], rows, places, order, shard.weights, shard.scales, graph,
                quick, norms, precisions, biases, search.n_random, np.uint64(search.seed), shard.first_row,
                costs.by_distance, members, n_distances[part], pause, *scratch, *triples,
            )  # fmt: skip
            mine.append(triples._replace(stretches=triples.stretches[:n_stretches]))
        found.extend(mine)

    if can_be_indexed(shard.rows):
        queue, rows = new_queue(), shard.rows.kernel_rows(0, n)
        threads = min(shard.n_threads, len(n_distances))
        on_all_threads(lambda: search_tasks(queue, slice(0, len(n_distances)), rows, order), threads, calls_blas=False)
    else:
        within = np.arange(n, dtype=order.dtype) % ROWS_PER_TASK

        def gathered(t: int) -> None:
            rows = gather_rows(shard.rows, order[tasks[t] : tasks[t + 1]])
            search_tasks(new_queue(), slice(t, t + 1), rows, within)

        run_all(gathered, range(len(n_distances)), shard.n_threads)
    return int(n_distances.sum()), _joined(found, shard.n_threads)


class _Scratch(NamedTuple):
    """Working memory of one thread in one pass."""

    keys: NDArray[np.int64]
    pair_sums: F64
    stamps: NDArray[np.int64]
    former: NDArray[np.int32]
    costs: Floats
    seen: NDArray[np.int32]
    seen_costs: Floats

    @classmethod
    def make(cls, C: int, C_prime: int, G: int, search: Search, dtype: np.dtype) -> _Scratch:
        width = C_prime * G + search.n_random
        size = max(HASH_SIZE, 1 << (4 * width).bit_length()) if search.estimate else 0
        return cls(
            np.full(size, -1, dtype=np.int64), np.empty((size, 2)), np.zeros(C, dtype=np.int64),
            np.empty(C_prime, dtype=np.int32), np.empty(C_prime, dtype=dtype), np.empty(width, dtype=np.int32),
            np.empty(width, dtype=dtype),
        )  # fmt: skip


class _Triples(NamedTuple):
    """What a thread has come across: triples of Eq. 8 in stretches, each of one task."""

    pairs: NDArray[np.int32]
    sums: NDArray[np.float32]
    stretches: NDArray[np.int64]

    @classmethod
    def make(cls, table_size: int) -> _Triples:
        n = TABLES_AT_ONCE * table_size // 2
        return cls(
            np.empty((2, n), dtype=np.int32), np.empty((2, n), dtype=np.float32),
            np.empty((4 * TABLES_AT_ONCE, 3), dtype=np.int64),
        )  # fmt: skip


def _joined(found: list[_Triples], n_threads: int) -> PairStatistics:
    """All triples in the order of their tasks, whoever has done these."""
    stretches = np.concatenate([triples.stretches for triples in found])
    order = np.argsort(stretches[:, 0], kind="stable")
    sizes, to = stretches[order, 2], np.empty(len(order), dtype=np.int64)
    to[order] = np.cumsum(sizes) - sizes
    pairs, sums = np.empty((2, sizes.sum()), dtype=np.int32), np.empty((2, sizes.sum()), dtype=np.float32)
    ends = np.cumsum([len(triples.stretches) for triples in found])

    def pack_buffer(b: int) -> None:
        triples = found[b]
        _, begins, sizes = np.ascontiguousarray(triples.stretches.T)
        places = to[ends[b] - len(begins) : ends[b]]
        pack(new_queue(), begins, sizes, places, triples.pairs, pairs)
        pack(new_queue(), begins, sizes, places, triples.sums, sums)

    run_all(pack_buffer, range(len(found)), n_threads)
    return PairStatistics(pairs, sums)


def _settle_hard(shard: CpuShard, centers: F64, members: NDArray[np.int32]) -> tuple[float, int]:
    """The objective, and how many rows moved."""
    norms, labels = np.einsum("ij,ij->i", centers, centers), shard.labels
    n_runs = -(-shard.n_rows // RUN)
    n_moved, objectives = np.empty(n_runs, dtype=np.int64), np.empty(n_runs)

    def settle(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        runs = runs_of(part)
        settle_hard(
            queue, RUN, rows, shard.scales[part], shard.weights[part], centers, norms, members[part],
            labels[part], n_moved[runs], objectives[runs],
        )  # fmt: skip

    on_rows(shard.rows, threads_for_runs(shard, shard.n_columns), settle, calls_blas=False)
    return float(objectives.sum()), int(n_moved.sum())
