"""What "auto" comes to in `NestedMiniBatchKMeans`, and where a run starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from globular.algorithms.nested import RHO_TOGETHER, BoundKind, NestedOptions
from globular.algorithms.probing import ProbingOptions, find_labels
from globular.algorithms.steps import last_step
from globular.algorithms.swaps import swap_and_step
from globular.algorithms.yinyang import default_groups
from globular.backends.cpu.memory import TAKEN_AT_ONCE
from globular.backends.stream import StreamShard
from globular.data.memory import physical_memory
from globular.estimators.inputs import MEMORY_SHARE, Input, check_allocation, mean_variance
from globular.estimators.starts import Start, starting_centers
from globular.model.nested import Batch
from globular.threads import resolve_threads

if TYPE_CHECKING:
    from globular.estimators.nested import NestedMiniBatchKMeans

BATCH_ROWS, BATCH_ROWS_PER_CLUSTER = 5000, 10
"""batch_size="auto": the paper's 5,000, but so many rows per cluster at least."""
CELLS_FROM = 1000
"""From so many clusters on, "auto" searches cells of centres instead of all of them."""
N_PROBES = 2
FEW_CLUSTERS, SMALL_GROUPS = 200, 25
"""Yinyang's bounds save time up to so many clusters, or so many in a group: a row that one leaves open searches a whole
group, and where that is large a product with all centres is the faster one. Elkan's hardly ever cost more than they
save. Measured with 20 to 500 clusters of 2 to 128 columns; the table is in docs/nested.md."""
STREAMED_BOUNDS = 512 * 2**20
"""Rows are streamed because memory is short: "auto" takes bounds of so many bytes at most for them."""
SWAPS_GAIN = 5e-3
"""Of the swaps, as in balanced `KMeans`."""
CELLS_GAIN = 1e-3
"""Cells are drawn anew for every batch and always improve a little: less than this is no improvement."""
FIXED_BYTES = 16 * 2**20
"""Cells and the blocks of a few threads."""
RUN_BYTES, RUNS_PER_BATCH = 256 * 2**10, 64
"""Rows on disk stay together up to so many bytes, but a batch has so many runs at least."""


def refuse_what_does_not_go_together(model: NestedMiniBatchKMeans) -> None:
    """One clear error for settings that contradict each other."""
    if model.nested and not model.remove_old:
        raise ValueError(
            "remove_old=False needs nested=False: nested batches visit a row in every iteration, and it would vote "
            "as often"
        )
    if isinstance(model.bounds, str) and model.bounds != "auto" and not model.nested:
        raise ValueError(f"bounds={model.bounds!r} needs nested=True: rows of random batches have none; leave it out")
    if model.search == "cells" and model.bounds in ("elkan", "yinyang"):
        raise ValueError(f"bounds={model.bounds!r} needs search='exact': cells are searched without; leave one out")


def choose_search(model: NestedMiniBatchKMeans) -> str:
    """All centres, or cells of them."""
    by_cells = model.n_clusters >= CELLS_FROM and model.bounds == "auto"
    return ("cells" if by_cells else "exact") if model.search == "auto" else model.search


def choose_bounds(model: NestedMiniBatchKMeans, data: Input) -> BoundKind | None:
    """By the memory that bounds would take and the time that they would save; says so before anything is taken."""
    if model.bounds is None or not model.nested or model.search_ == "cells":
        return None
    k, groups = model.n_clusters, default_groups(model.n_clusters, data.n_columns)
    sizes = {"elkan": 4 * data.n_rows * (k + 1), "yinyang": 4 * data.n_rows * (groups + 1)}
    chosen = model.bounds
    if chosen == "auto":
        budget = MEMORY_SHARE * physical_memory()
        if isinstance(data.shard, StreamShard):
            budget = min(budget, STREAMED_BOUNDS)
        pays = {"elkan": True, "yinyang": k <= FEW_CLUSTERS or k <= SMALL_GROUPS * groups}
        chosen = next((kind for kind, size in sizes.items() if size <= budget and pays[kind]), "none")
    size = sizes.get(chosen, 0)
    check_allocation(size, f"bounds={chosen!r} of all rows", "take bounds='yinyang' or bounds=None")
    return {"elkan": "elkan", "yinyang": "yinyang"}.get(chosen)  # type: ignore[return-value]


def batch_rows(model: NestedMiniBatchKMeans, n_rows: int) -> int:
    """Rows in the first batch."""
    if isinstance(model.batch_size, str):
        return min(n_rows, max(BATCH_ROWS, BATCH_ROWS_PER_CLUSTER * model.n_clusters))
    return min(n_rows, int(model.batch_size))


def most_bytes(model: NestedMiniBatchKMeans, data: Input) -> int:
    """The most that a fit takes beside X and the bounds.

    Centres, sums and their copies; labels, the order of the batch and what a pass keeps of its rows; the rows that the
    start is drawn from, as they are and in float64, and distances of them; blocks of a few threads.
    """
    sampled = min(init_rows(model, data.n_rows), data.n_rows) * data.n_columns
    start = 2 * data.dtype.itemsize * sampled + 5 * min(8 * sampled, TAKEN_AT_ONCE) // 2
    return 8 * (16 * model.n_clusters * data.n_columns + 5 * data.n_rows) + start + FIXED_BYTES


def run_length(model: NestedMiniBatchKMeans, data: Input) -> int:
    """How many neighbouring rows stay together: one in memory, more where every place costs a read."""
    if data.matrix is not None:
        return 1
    in_bytes = RUN_BYTES // (data.n_columns * data.dtype.itemsize)
    return max(1, min(in_bytes, batch_rows(model, data.n_rows) // RUNS_PER_BATCH))


def nested_options(model: NestedMiniBatchKMeans, data: Input, variance: float) -> NestedOptions:
    """The settings as the algorithm takes them."""
    by_cells = model.search_ == "cells"
    rho, together = model.growth_threshold, isinstance(model.growth_threshold, str)
    return NestedOptions(
        b0=batch_rows(model, data.n_rows),
        rho=RHO_TOGETHER if together else float(rho),
        together=together,
        nested=model.nested,
        remove_old=model.remove_old,
        bounds=model.bounds_,
        n_probes=N_PROBES if by_cells else 0,
        run=run_length(model, data),
        max_epochs=model.max_iter,
        tol=model.tol * variance,
        max_no_improvement=model.max_no_improvement,
        min_gain=CELLS_GAIN if by_cells else 0.0,
        reassignment_ratio=model.reassignment_ratio,
        unit_centers=model.metric == "cosine",
        n_threads=resolve_threads(model.n_threads),
    )


def best_start(model: NestedMiniBatchKMeans, data: Input, n_rows: int, random_state: np.random.RandomState) -> Start:
    """The best of `n_init` starts, drawn from and compared on some random rows."""
    sample = random_sample(model, data, n_rows, random_state)
    mean_variance(sample)  # for its check
    given = not isinstance(model.init, str) and not callable(model.init)
    n_starts = 1 if model.n_init == "auto" or given or model.warm_start else int(model.n_init)
    starts = [_one_start(model, sample, random_state) for _ in range(n_starts)]
    if n_starts == 1:
        return starts[0]
    errors = [sample.shard.hard_pass(start.centers, accumulate=False).objective for start in starts]
    return starts[int(np.argmin(errors))]


def _one_start(model: NestedMiniBatchKMeans, sample: Input, random_state: np.random.RandomState) -> Start:
    start = starting_centers(model, sample, random_state)
    if not (start.is_seeding and model.search_ == "cells"):
        return start
    # as in `KMeans`: what so many seeds get wrong, batches cannot repair
    rng = np.random.default_rng(random_state.randint(2**31, size=4))
    if not start.labelled:
        find_labels(sample.shard, start.centers, rng, n_rounds=1)
    # one step after the swaps: swapped centres get their rows, and centres that momentum left without any a new place
    options = ProbingOptions(max_iter=1, min_gain=SWAPS_GAIN, unit_centers=model.metric == "cosine")
    step = last_step(swap_and_step(sample.shard, start.centers, options, rng))
    return replace(start, centers=step.model)


def random_sample(model: NestedMiniBatchKMeans, data: Input, n_rows: int, random_state: np.random.RandomState) -> Input:
    """So many random rows; all where these have too little to start from."""
    if n_rows >= data.n_rows:
        return data
    seed = int(random_state.randint(2**31))
    rows = Batch(seed, n_rows, data.n_rows, run_length(model, data)).rows(data.n_rows)
    shard = data.shard.pick(rows)
    if len(rows) < model.n_clusters or shard.total_weight == 0:
        return data
    return Input(shard, data.dtype, len(rows), data.n_columns, None if data.matrix is None else data.matrix[rows])


def init_rows(model: NestedMiniBatchKMeans, n_rows: int) -> int:
    """Rows to draw the starting centres from."""
    if model.init_size is not None and model.init_size < model.n_clusters:
        raise ValueError(f"init_size={model.init_size} should be >= n_clusters={model.n_clusters}.")
    return model.init_size or max(3 * batch_rows(model, n_rows), 3 * model.n_clusters)
