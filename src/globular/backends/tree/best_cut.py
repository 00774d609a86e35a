"""The tree as a hierarchy of clusters: which of its nodes, taken as clusters, are worth most together?

From the leaves up a node is worth what it is worth as one cluster, or what its children are worth together if that is
more. One look at every node answers for all partitions that the tree contains, of two clusters or of a million.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.backends.tree.partition import PartitionTree
from globular.kernels.tree_sums import part_nodes
from globular.model.chunks import NodeValue
from globular.model.statistics import I64
from globular.threads import even_ranges, map_all

_ENTRIES_AT_ONCE = 2**17
"""Numbers in the matrices of nodes that are looked at together: a megabyte, which the cache holds."""


def best_parts(tree: PartitionTree, value: NodeValue, gain: float, n_threads: int = 1) -> NDArray[np.bool_]:
    """The nodes that are better left for their children, by so much per unit of weight, (n_nodes,)."""
    step = max(1, _ENTRIES_AT_ONCE // tree.means.shape[1] ** 2)
    blocks = even_ranges(tree.n_nodes, step)
    worth = np.concatenate(map_all(lambda block: value(tree.chunks(np.arange(*block))), blocks, n_threads))
    parted = np.empty(tree.n_nodes, dtype=bool)
    part_nodes(tree.children, tree.weights, gain, worth, parted)
    return parted


def parts_below(tree: PartitionTree, parted: NDArray[np.bool_]) -> I64:
    """The nodes that remain when those are left for their children."""
    found, front = [], np.zeros(1, dtype=np.int64)
    while len(front):
        found.append(front[~parted[front]])
        front = tree.children[front[parted[front]]].ravel()
    return np.concatenate(found)
