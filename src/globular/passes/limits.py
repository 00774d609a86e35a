"""Sizes of what passes take for themselves, for those who must foretell the memory of a fit."""

from __future__ import annotations

from globular.model.covariances import ScatterKind

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


def tree_bytes(n_rows: int, n_columns: int, leaf_size: int, kind: ScatterKind) -> int:
    """About how much memory a tree takes; twice that while it is built."""
    n_nodes = min(NODES_PER_LEAF_SIZE * n_rows / leaf_size, 2 * n_rows)
    return int(n_nodes * (8 * (1 + n_columns + kind.width(n_columns)) + 32) + 4 * n_rows)
