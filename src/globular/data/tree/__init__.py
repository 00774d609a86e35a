"""A partition tree of cached statistics, and its frontiers."""

from globular.data.tree.frontier import Children, Frontier, FrontierState
from globular.data.tree.partition import PartitionTree

__all__ = ["Children", "Frontier", "FrontierState", "PartitionTree"]
