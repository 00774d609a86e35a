"""Every constant at which another path begins (a size of blocks, a number from which on something else is done), with a
value for either side: whatever it is, the fits named beside it must say what brute force says, with any threads.

Constants inside compiled kernels are not here: they are held to their oracles by `tests/passes`.
"""

from __future__ import annotations

from collections.abc import Mapping

Values = tuple[float, ...]
NEVER = 1 << 40

_CENTERS: Mapping[str, Values] = {
    "backends.limits.SORT_UP_TO": (1, NEVER),
    "backends.host.PART_BYTES": (1 << 10, NEVER),
    "backends.host.ROWS_PER_THREAD": (64, NEVER),
    "backends.cpu.sums.FEW_SUMS": (1, NEVER),
    "backends.cpu.sums.ROWS_PER_RUN": (64, NEVER),
    "backends.cpu.sums.MOVES_PER_TASK": (1, NEVER),
    "backends.cpu.answer.ROWS_PER_BLOCK": (1, 7, NEVER),
    "backends.cpu.products.SCORES_PER_BLOCK": (64, 1 << 24),
    "backends.cpu.products.THIN": (1, 64),
    "backends.cpu.shard.TAKEN_AT_ONCE": (1, NEVER),
    "backends.cpu.cells.ROWS_PER_TASK": (1, 1 << 20),
    "backends.cpu.cells.GATHERED_ROWS": (16, 1 << 16),
    "backends.cpu.cells.BLOCK_SCORES": (16, 1 << 20),
    "backends.cpu.center_scores.BLOCKS": (1, 64),
    "backends.cpu.center_scores.ROWS_PER_SEARCH": (1, 1 << 12),
    "backends.cpu.center_scores.LEAST_ROWS": (1, NEVER),
    "backends.cpu.project.ROWS_PER_BLOCK": (1, 1 << 16),
    "backends.cpu.seeds.FEW": (0, 100),
    "backends.cpu.assign.down.CENTERS_PER_TASK": (1, 1 << 12),
    "backends.cpu.assign.all.ROWS_PER_SPAN": (64, NEVER),
    "backends.cpu.assign.all.SPANS": (1, 1 << 12),
    "backends.cpu.assign.all.MANY_SUMS": (1, NEVER),
    "backends.cpu.assign.all.ADDED_AT_ONCE": (64, NEVER),
    "backends.cpu.grouped.SETTLED": (1, NEVER),
    "backends.cpu.grouped.STALE": (1, NEVER),
    "backends.cpu.grouped.ROWS_PER_TASK": (16, NEVER),
    "backends.cpu.swaps.ROWS_PER_BLOCK": (16, NEVER),
    "backends.cpu.settled.ROWS_PER_BLOCK": (16, 1 << 12),
    "backends.cpu.settled.CACHED": (1, NEVER),
    "model.groups.MEMBERS_PER_SPAN": (16, NEVER),
    "model.graph._CLUSTERS_PER_BLOCK": (3, NEVER),
    "model.subspace.WHOLE_SPECTRUM_UP_TO": (4, 1 << 12),
    "algorithms.kmeans.subspace.FROM_COLUMNS": (2, NEVER),
    "algorithms.kmeans.subspace.SAMPLED_ROWS": (64, NEVER),
    "algorithms.kmeans.cells.CELLS_OF_CELLS_FROM": (20, NEVER),
    "algorithms.kmeans.cells.EXACT_UP_TO": (1, NEVER),
    "algorithms.kmeans.cells.LARGEST_CELL": (1, NEVER),
    "algorithms.kmeans.pipeline.PROBING_FROM": (10, NEVER),
    "algorithms.kmeans.coreset.ROWS_PER_CLUSTER": (4, NEVER),
    "algorithms.seeding.named.GREEDY_UP_TO": (1, NEVER),
    "algorithms.seeding.named.PLUS_PLUS_UP_TO": (1, NEVER),
    "algorithms.seeding.hierarchical.FLAT_UP_TO": (4, NEVER),
    "algorithms.seeding.hierarchical.THREE_LEVELS_FROM": (20, NEVER),
    "estimators.inputs.SUMMED_AT_ONCE": (16, NEVER),
}
_BATCHES: Mapping[str, Values] = {
    "backends.cpu.assign.batch.DIRECT_SHARE": (0.0, 1.0),
    "backends.cpu.assign.batch.ROWS_PER_BLOCK": (16, NEVER),
    "backends.cpu.assign.batch.ROWS_PER_THREAD": (16, NEVER),
    "backends.cpu.assign.votes.ROWS_PER_SUM": (16, NEVER),
    "backends.many.batches.HELD_BYTES": (1 << 10, NEVER),
    "model.columns.COLUMNS_PER_TASK": (1, NEVER),
    "model.votes.ENTRIES_PER_TASK": (16, NEVER),
    "algorithms.kmeans.nested_choices.CELLS_FROM": (10, NEVER),
}
_NEIGHBORS: Mapping[str, Values] = {
    "backends.cpu.assign.neighbors.FEW_COLUMNS": (0, 100),
    "backends.cpu.assign.neighbors.TABLES_AT_ONCE": (1, 64),
    "backends.cpu.assign.neighbors.NUMBERS_PER_BLOCK": (64, 1 << 20),
}
_MIXTURES: Mapping[str, Values] = {
    "backends.cpu.expect.pairs.LEADING": (0.0, 1.0),
    "backends.cpu.expect.pairs.ROWS_AT_ONCE": (16, NEVER),
    "backends.cpu.expect.rows_of.ROWS_AT_ONCE": (16, NEVER),
    "backends.cpu.expect.probe.ROWS_PER_TASK": (16, NEVER),
    "backends.cpu.expect.within.ROWS_PER_TASK": (16, NEVER),
    "backends.cpu.expect.blocks._BLOCK_ENTRIES": (64, 1 << 20),
    "backends.cpu.expect.blocks.SPAN_SUMS": (1 << 8, 1 << 28),
    "backends.cpu.expect.blocks.TINY": (1, NEVER),
    "model.covariances.scatter.WIDE": (1, 1 << 12),
    "algorithms.mixtures.pipeline.FEWEST_ROWS": (64, NEVER),
    "estimators.mixture.VARIATIONAL_FROM": (2, NEVER),
    "estimators.variational_mixture.NEIGHBORS_UP_TO": (1, NEVER),
}
_TREES: Mapping[str, Values] = {
    "backends.tree.expect_neighbors.CELLS_PER_TASK": (4, NEVER),
    "backends.tree.partition.NODES_AT_ONCE": (4, NEVER),
    "backends.tree.growth.SMALLEST_SUBTREE": (8, NEVER),
    "backends.tree.growth.SUBTREES": (1, 1 << 10),
    "backends.tree.best_cut._ENTRIES_AT_ONCE": (16, NEVER),
    "backends.tree.expect.CELLS_AT_ONCE": (64, 1 << 26),
    "backends.tree.expect.KEPT_FEATURES": (1, NEVER),
    "algorithms.mixtures.ahead.FEWEST_ROWS": (64, NEVER),
    "algorithms.infinite.data._MANY_ROWS": (64, NEVER),
    "algorithms.infinite.data._SMALL": (1, NEVER),
    "estimators.chunky_starts.TRUNCATED_FROM": (2, NEVER),
}
THRESHOLDS: Mapping[str, tuple[str, Values]] = {
    name: (family, values)
    for family, table in {
        "centers": _CENTERS, "batches": _BATCHES, "neighbors": _NEIGHBORS, "mixtures": _MIXTURES, "trees": _TREES,
    }.items()
    for name, values in table.items()
}  # fmt: skip
"""Constant: what it is tried with, and the values on either side."""
