"""A partition tree of cached statistics over the rows of a shard, its frontiers, and the passes over their cells."""

from globular.passes.tree import expect, expect_neighbors  # they register their passes

__all__ = ["expect", "expect_neighbors"]
