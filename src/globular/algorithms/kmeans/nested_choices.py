"""What "auto" comes to in nested mini-batches, and where a run starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from globular.algorithms.kmeans.nested import BoundKind, default_groups
from globular.algorithms.kmeans.pipeline import QUALITIES
from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.kmeans.swaps import swapped_start
from globular.algorithms.seeding.named import Starting
from globular.seam.passes import Assign
from globular.seam.shard import Shard

BOUNDS: dict[str, BoundKind] = {"elkan": "elkan", "yinyang": "yinyang"}
SEARCHES = ("exact", *BOUNDS, "cells")
ALGORITHMS = {
    "nmbatch": {"nested": True, "remove_old": True},
    "nmbatch.deact": {"nested": True, "remove_old": True},
    "mbatch": {"nested": False, "remove_old": False},
    "mbatch.remove": {"nested": False, "remove_old": True},
}
"""The paper's names of what `NestedOptions` does; all but the first do without bounds, which only batches that nest are
worth the memory of."""
BATCH_ROWS, BATCH_ROWS_PER_CLUSTER = 5000, 10
"""batch_size="auto": the paper's 5,000 rows, but at least ten per cluster."""
CELLS_FROM = 1000
"""Number of clusters from which "auto" searches cells of centres instead of all of them."""
FEW_CLUSTERS, SMALL_GROUPS = 200, 25
"""Yinyang's bounds save time with at most 200 clusters, or 25 in a group: a row that a bound leaves open searches a
whole group, and where that is large a product with all centres is the faster one. Elkan's hardly ever cost more than
they save. Measured with 20 to 500 clusters of 2 to 128 columns; the table is in docs/nested.md."""
STREAMED_BOUNDS = 512 * 2**20
"""The most bytes of bounds that "auto" takes for rows that are streamed, since memory is short there."""
CELLS_GAIN = 1e-3
"""Share of the energy that a batch gains at least where cells are drawn anew: these always improve it a little."""
RUN_BYTES, RUNS_PER_BATCH = 256 * 2**10, 64
"""Rows on disk stay together in runs of up to 256 KiB, but a batch has at least 64 runs."""


@dataclass(frozen=True, slots=True)
class NestedSettings:
    """What a fit asks for, and of which rows."""

    n_clusters: int
    n_rows: int
    n_columns: int
    itemsize: int
    """Bytes of a number."""
    in_memory: bool
    """Whether the rows lie in the memory of this process."""
    is_streamed: bool
    """Whether they are read anew for every pass, here or by workers."""
    batch_size: int | str = "auto"
    init_size: int | None = None

    @property
    def batch_rows(self) -> int:
        """Rows in the first batch."""
        if isinstance(self.batch_size, str):
            return min(self.n_rows, max(BATCH_ROWS, BATCH_ROWS_PER_CLUSTER * self.n_clusters))
        return min(self.n_rows, self.batch_size)

    @property
    def init_rows(self) -> int:
        """Rows to draw the starting centres from."""
        return self.init_size or max(3 * self.batch_rows, 3 * self.n_clusters)

    @property
    def run(self) -> int:
        """How many neighbouring rows stay together: one in memory, more where every place costs a read."""
        if self.in_memory:
            return 1
        return max(1, min(RUN_BYTES // (self.n_columns * self.itemsize), self.batch_rows // RUNS_PER_BATCH))

    @property
    def n_groups(self) -> int:
        """Groups of centres that share a yinyang bound."""
        return default_groups(self.n_clusters, self.n_columns)

    def bound_bytes(self, search: str) -> int:
        """Memory of the bounds of all rows."""
        widths = {"elkan": self.n_clusters + 1, "yinyang": self.n_groups + 1}
        return 4 * self.n_rows * widths.get(search, 0)

    def choose_search(self, budget: float) -> str:
        """What "auto" comes to: by the memory of bounds, at most `budget` bytes, and the time that they save."""
        if self.n_clusters >= CELLS_FROM:
            return "cells"
        budget = min(budget, STREAMED_BOUNDS) if self.is_streamed else budget
        if self.bound_bytes("elkan") <= budget:
            return "elkan"
        saves = self.n_clusters <= max(FEW_CLUSTERS, SMALL_GROUPS * self.n_groups)
        return "yinyang" if saves and self.bound_bytes("yinyang") <= budget else "exact"


def best_start(
    shard: Shard,
    seed: Callable[[], Starting],
    n_starts: int,
    random_state: np.random.RandomState,
    *,
    swapped: bool,
    unit_centers: bool,
) -> Starting:
    """The best of several starts on some rows, which seeds were drawn from and, if asked for, are `swapped` on."""
    starts, options = [], ProbingOptions(min_gain=QUALITIES["balanced"].least_gains[1], unit_centers=unit_centers)
    for _ in range(n_starts):
        start = yield from seed()
        if swapped and start.is_seeding:
            rng = np.random.default_rng(random_state.randint(2**31, size=4))
            start = yield from swapped_start(shard, start, options, rng)
        starts.append(start)
    if n_starts == 1:
        return starts[0]
    errors = [shard.run(Assign(start.centers, want="labels")).objective for start in starts]
    return starts[int(np.argmin(errors))]
