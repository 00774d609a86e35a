"""Rows that come in blocks: what every backend gets that only knows how to take some rows.

A backend derives from `BlockShard` and writes `__init__` and `take_rows`; then all passes run, on the CPU, block by
block. Each function that it registers (`@MyShard.implements(Assign)`) is a pass that it carries out itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from globular.model.statistics import F64, Floats
from globular.passes.cpu.shard import DENSE, HERE, CpuShard, local_shard
from globular.passes.host import PART_BYTES, HostShard
from globular.seam.among import Need
from globular.seam.passes import Index
from globular.threads import even_ranges


class BlockShard(HostShard):
    """Dense rows that are somewhere else."""

    @property
    def lacks(self) -> Mapping[Need, str]:
        return {"sparse rows": DENSE, "rows on a card": HERE}

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
