"""Every constant at which another path begins (a size of blocks, a number from which on something else is done), with a
value for either side: whatever it is, the fits named beside it must say what brute force says, with any threads.

Every number with a name in capitals stands here or among the `exceptions`; a test sees to it.
"""

from collections.abc import Mapping
from typing import Any

Values = tuple[Any, ...]
NEVER = 1 << 40

_CENTERS: Mapping[str, Mapping[str, Values]] = {
    "threads.pool": {"WAKING": (1e-12, 1.0), "WAITING": (1e-12, 1.0)},
    "passes.host": {
        "PART_BYTES": (1 << 10, NEVER), "RUN": (8, 1 << 20), "ROWS_PER_LONG_SPAN": (1, NEVER),
        "SPANS_AT_ONCE": (1, 1 << 10),
        "ROWS_AT_ONCE": (1, NEVER), "CACHED_NUMBERS": (64, 1 << 20), "ROWS_PER_PRODUCT": (16, 1 << 12),
    },
    "passes.cpu.sums": {"ROWS_PER_RUN": (64, NEVER), "SUMMED_SPANS": (1, 1 << 10)},
    "passes.cpu.cells": {"PREPARED_AT_ONCE": (1, NEVER), "BLOCK_ROWS": ((1, 1), (1, 1 << 12))},
    "passes.cpu.shard": {"SURE_OF": (1, NEVER), "OFFSET_ROWS": (1, NEVER)},
    "passes.cpu.center_scores": {
        "BLOCKS": (1, 64), "ROWS_PER_SEARCH": (1, 1 << 12), "ROWS_PER_THREAD": (1, NEVER),
        "SCORES_PER_BLOCK": (16, 1 << 20),
        "BYTES_AT_ONCE": (1, NEVER),
    },
    "passes.cpu.seeds": {"FEW": (0, 100)},
    "passes.cpu.assign.down": {"CENTERS_PER_TASK": (1, 1 << 12)},
    "passes.cpu.assign.all": {
        "ROWS_PER_LABELLED_SPAN": (64, NEVER), "SPANS": (2, 1 << 12), "MANY_SUMS": (1, NEVER),
        "CANCELLED_ERROR": (1e-6, 1.0),
    },
    "passes.cpu.grouped": {"ROWS_PER_TASK": (16, NEVER)},
    "passes.cpu.engine.score": {"ROWS_PER_BLOCK": (16, 1 << 12), "CACHED": (1, NEVER)},
    "passes.cpu.settled": {"FADED": (0.0, 1.0)},
    "passes.cpu.engine.group": {"APART": (0, 32), "SORTED_ALONE": (0, NEVER)},
    "passes.cpu.graph": {"_CLUSTERS_PER_BLOCK": (3, NEVER)},
    "model.subspace": {"WHOLE_SPECTRUM_UP_TO": (4, 1 << 12), "LEADING": (2, 1 << 10)},
    "algorithms.kmeans.subspace": {
        "FROM_COLUMNS": (2, NEVER), "SAMPLED_ROWS": (64, NEVER), "SAMPLED_NUMBERS": (1, NEVER),
        "LARGEST_COPY": (1, NEVER), "SOME_DIRECTIONS": (1, 1 << 10), "ROWS_PER_DIRECTION": (1, NEVER),
    },
    "algorithms.kmeans.cells": {
        "CELLS_OF_CELLS_FROM": (20, NEVER), "EXACT_UP_TO": (1, NEVER), "LARGEST_CELL": (1, NEVER),
    },
    "algorithms.kmeans.pipeline": {
        "PROBING_FROM": (10, NEVER), "CLUSTERS_STARTED": (1, NEVER), "ROWS_PER_START": (1, NEVER),
        "ENDS_ALIKE": (1, NEVER), "SAME_ERROR": (0.0, 1e9), "LEFT_TO_NEXT": ((-2.0, -1.0), (1e9, 2e9)),
        "LARGEST_SHARE": ({"exact": 0.0, "probing": 0.0}, {"exact": 1.0, "probing": 1.0}),
    },
    "algorithms.kmeans.coreset": {
        "PART_ROWS_PER_CLUSTER": (4, NEVER), "FEWEST_PART_ROWS": ((8, 8), (NEVER, NEVER)),
        "LEAST_PER_CLUSTER": (1, NEVER),
        "FIRST_SHARE": (1, NEVER), "LAST_SHARE": (1, NEVER), "LEAST_GROWTH": (1, NEVER), "TIMES_MORE_ROWS": (1, NEVER),
        "TIMES_MORE_FOR_TRIALS": (1, NEVER), "CREDIBLE": (0.0, 1e9), "FAR_OFF": (0.0, 1e9),
    },
    "estimators.validation": {"CHECKED_AT_ONCE": (16, NEVER)},
    "passes.cpu.answer": {"_CANCELLED": (0.0, 1.0)},
    "algorithms.kmeans.centers": {"NUMBERS_PER_PART": (1, NEVER)},
    "algorithms.kmeans.trials": {"CLUSTERS_TRIED": (1, NEVER), "SWAPPED_FROM": (3, NEVER)},
    "estimators.inputs": {"EXACT_BELOW": (1, NEVER)},
    "estimators.centroids": {"BLOCK_BYTES": (1, NEVER)},
}  # fmt: skip
_SPARSE: Mapping[str, Mapping[str, Values]] = {
    "model.sparse_centers": {"SPARSE_FROM": (1, NEVER), "NUMBERS_PER_ENTRY": (0, NEVER)},
    "passes.cpu.shard": {"ENTRIES_APART": (0, NEVER)},
    "algorithms.kmeans.sparse": {"SEEDS_AT_ONCE": ((1, NEVER), (NEVER, 1))},
    "passes.cpu.assign.sparse": {"CLUSTERS_AT_ONCE": (1, NEVER), "BLOCK": (1, NEVER)},
    "passes.cpu.sparse_seeds": {"SPAN": (1 << 12, NEVER)},
}  # fmt: skip
_FEW: Mapping[str, Mapping[str, Values]] = {
    "algorithms.seeding.common": {
        "MOST_ROWS": (1, NEVER), "MOST_NUMBERS": (1, NEVER), "MOST_DISTANCES": (1, NEVER), "MOST_CLUSTERS": (1, NEVER),
        "SEED_DISTANCES": (1, NEVER),
    },
}  # fmt: skip
_SEEDS: Mapping[str, Mapping[str, Values]] = {
    "algorithms.graphs": {"ADJACENT_CELLS": (1, 1 << 10)},
    "algorithms.seeding.common": {"TAKEN_NUMBERS": (1, NEVER)},
    "algorithms.seeding.named": {
        "GREEDY_UP_TO": (1, NEVER), "GREEDY_DISTANCES": (0, NEVER), "PLUS_PLUS_UP_TO": (1, NEVER),
        "PLUS_PLUS_BEFORE_SWAPS_UP_TO": (1, NEVER), "JUDGED_NUMBERS": (1, NEVER),
    },
    "algorithms.seeding.hierarchical": {
        "FLAT_UP_TO": (4, NEVER), "THREE_LEVELS_FROM": (20, NEVER), "ROWS_PER_CHILD": (1, NEVER), "LARGE": (0, NEVER),
    },
    "algorithms.seeding.shares": {"JUDGES": (1, NEVER), "HUBS": (0.0, 1e9)},
    "algorithms.seeding.afk_mc2": {"_PROPOSED_NUMBERS": (1, NEVER), "_LONGEST_BLOCK": (1, 1 << 10)},
    "algorithms.seeding.plus_plus": {"_LONGEST_BATCH": (1, 1 << 14)},
    "algorithms.seeding.random": {"_BLOCK": (1, NEVER)},
}  # fmt: skip
_BATCHES: Mapping[str, Mapping[str, Values]] = {
    "passes.cpu.assign.batch": {"DIRECT_SHARE": (0.0, 1.0)},
    "model.nested": {"DRAWN_AT_ONCE": (16, NEVER)},
    "passes.many": {"HELD_BYTES": (1 << 10, NEVER)},
    "passes.cpu.by_column": {"COLUMNS_PER_TASK": (1, NEVER), "ROWS_WORTH_PARTS": (1, NEVER), "COLUMN_PARTS": (1, 3)},
    "model.columns": {"LINES_AT_ONCE": (1, 1 << 12), "NORM_SHARE": (0.0, 1.0)},
    "algorithms.kmeans.votes": {"LARGEST_OFFSET": (0.0, 1e100)},
    "algorithms.kmeans.nested_choices": {
        "CELLS_FROM": (10, NEVER), "STREAMED_BOUNDS": (1, NEVER), "FEW_CLUSTERS": (1, NEVER),
        "SMALL_GROUPS": (1, NEVER), "RUN_BYTES": (1, NEVER), "RUNS_PER_BATCH": (1, NEVER),
    },
    "algorithms.kmeans.probing": {
        "EXACT_LABELS_UP_TO": (10, NEVER), "LEAST_RECALL": (0.0, 1.0), "GOOD_RECALL": (0.0, 1.0),
        "MORE_LOOKS": (0.0, 1e9), "WIDER": ((1,), (8,)),
    },
}  # fmt: skip
_NEIGHBORS: Mapping[str, Mapping[str, Values]] = {
    "passes.host": {"SEARCHED_AT_ONCE": (16, NEVER), "HASH_SIZE": (1, 1 << 20)},
    "passes.cpu.assign.neighbors": {"TABLES_AT_ONCE": (1, 64)},
    "passes.cpu.assign.neighborhoods": {"GATHERED_ROWS": (1, NEVER)},
    "model.graph": {"_MANY_REPETITIONS": (0, NEVER)},
}  # fmt: skip
_MIXTURES: Mapping[str, Mapping[str, Values]] = {
    "passes.cpu.expect.remembered": {"LEADING_SHARE": (0.0, 1.0), "_DENSE": (0.0, 1.0)},
    "passes.cpu.expect.blocks": {
        "BLOCK_ENTRIES": (64, 1 << 20), "SPAN_SUMS": (1 << 8, 1 << 28), "PAIR_WORK": (0, NEVER),
        "TINY_WORK": (1, NEVER),
        "EXPECTED_SPANS": (1, 1 << 10), "FEWEST_SPANS": (1, 1 << 10), "SPAN_WORK": (1, NEVER), "LEAST_ROWS": (1, NEVER),
        "LEAST_PAIRS": (1, NEVER), "SUMMED_AT_ONCE": (1, NEVER),
    },
    "passes.cpu.answer": {"TABLE_NUMBERS": (1, NEVER)},
    "model.covariances.scatter": {"CANCELLATION_LIMIT": (0.0, 1e12), "WIDE": (1, 1 << 12)},
    "algorithms.mixtures.pipeline": {
        "FEWEST_ROWS": (64, NEVER), "TIMES_MORE_ROWS": (1, NEVER), "FEW_COMPONENTS": (0, NEVER),
        "FEW_ROWS_PER_COMPONENT": (1, NEVER), "FEW_NUMBERS": (1000, NEVER), "SETTLED_COMPONENTS": (0, NEVER),
        "SHORT_SHARE": (0, NEVER), "COMPONENTS_PER_STEP": (0.1, NEVER), "WORK_OF_A_STEP": (1.0, 1e12),
    },
    "algorithms.mixtures.probing": {"WORK_OF_A_MEMBER": (1e-9, 1e12), "LONGEST_WAIT": (1, NEVER)},
    "estimators.mixture": {"VARIATIONAL_FROM": (2, NEVER)},
    "estimators.variational_mixture": {"NEIGHBORS_UP_TO": (1, NEVER)},
}  # fmt: skip
_FAMILIES: Mapping[str, Mapping[str, Values]] = {
    "passes.cpu.expect.linear": {"NONZEROS_PER_SUM": (1, NEVER)},
    "estimators.families": {"PROBING_FROM": (2, NEVER)},
    "algorithms.mixtures.exponential": {
        "FEWEST_SEARCHED": (64, NEVER), "PART_ROWS_PER_COMPONENT": (1, NEVER), "SWAPPED": ((3, 1), (3, NEVER)),
    },
}  # fmt: skip
_CORRELATED: Mapping[str, Mapping[str, Values]] = {
    "passes.host": {"GATHERED_AT_ONCE": (16, 1 << 14), "COSTS_AT_ONCE": (1, NEVER)},
    "passes.cpu.expect.low_rank": {"MOST_ROUNDING": (0.0, 1e9)},
    "model.coordinates": {"MULTIPLIED_AT_ONCE": (1, NEVER)},
}  # fmt: skip
_TREES: Mapping[str, Mapping[str, Values]] = {
    "passes.tree.partition": {"SMALLEST_SUBTREE": (8, NEVER), "SUBTREES": (1, 1 << 10), "DEEPEST": (1, 60)},
    "passes.tree.cells": {"_ENTRIES_AT_ONCE": (16, NEVER), "MOMENTS_AT_ONCE": (64, 1 << 26)},
    "algorithms.mixtures.ahead": {"FEWEST_BATCH_ROWS": (64, NEVER)},
    "passes.cpu.expect.shares": {"CHUNKS_AT_ONCE": (16, NEVER)},
    "algorithms.infinite.data": {
        "_MANY_ROWS": (64, NEVER), "_WORTHWHILE": (0, NEVER), "_LOOK_EVERY": (1, NEVER), "_LEAST_CELLS": (1, NEVER),
    },
    "passes.cpu.engine.densities": {"FEW_COLUMNS": (0, 100)},
    "algorithms.infinite.infinite": {"PART_ROWS": (60, NEVER), "WORTHWHILE": (1, NEVER)},
    "algorithms.infinite.clusters": {
        "_MOST_SAMPLED": (60, NEVER), "_FEWEST_ROWS": (60, NEVER), "_MOST_SHARES": (1, NEVER),
    },
    "algorithms.infinite.run": {"_MERGED_ROWS": (10, NEVER)},
    "algorithms.infinite.polishing": {
        "FEWEST_POLISHED": (1, NEVER), "_MOST_LEFT_OUT": (10, NEVER), "_MOST_DENSITIES": (0, NEVER),
    },
    "algorithms.infinite.sowing": {"_ROWS": (60, NEVER)},
    "algorithms.infinite.tree_partition": {"_FITTED": (2, NEVER)},
    "passes.cpu.answer": {"PREDICTIVE_AT_ONCE": (1, NEVER)},
    "passes.tree.expect": {"GAP_ROWS": (4, 1 << 16)},
    "estimators.chunky_mixture": {"TRUNCATED_FROM": (2, NEVER), "FEWEST_CELLS": (1, NEVER)},
    "estimators.infinite_base": {"MOST_LEAVES": (1, NEVER)},
    "model.wishart": {"SHAPED_FROM": (1, NEVER), "SHAPED_ROWS": (0, NEVER)},
}  # fmt: skip
_FILES: Mapping[str, Mapping[str, Values]] = {
    "data.binary_files": {
        "_GAP_BYTES": (0, NEVER), "_COLUMNS_AT_ONCE": (1, 1 << 10), "_MAP_PROBES": (1, 1 << 10),
        "_N_PROBES": (1, 1 << 10),
    },
    "data.streamed": {"PIECE_BYTES": (64, 1 << 26)},
    "estimators.inputs": {"MEMORY_SHARE": (0.0, 1.0)},
    "io": {"_ROWS_OF_TEXT": (1, NEVER)},
}  # fmt: skip
THRESHOLDS: Mapping[str, tuple[str, Values]] = {
    f"{module}.{name}": (family, values)
    for family, table in {
        "centers": _CENTERS, "sparse": _SPARSE, "few": _FEW, "seeds": _SEEDS, "batches": _BATCHES,
        "neighbors": _NEIGHBORS,
        "mixtures": _MIXTURES, "families": _FAMILIES, "correlated": _CORRELATED, "trees": _TREES, "files": _FILES,
    }.items()
    for module, constants in table.items()
    for name, values in constants.items()
}  # fmt: skip
"""Constant: what it is tried with, and the values on either side."""
