"""Rows in memory on the CPU, and the passes over them."""

from globular.passes.cpu import answer, assign, columns, expect, nearest, project, seeds, sums, swaps  # they register
from globular.passes.cpu.shard import CpuShard

__all__ = ["CpuShard", "answer", "assign", "columns", "expect", "nearest", "project", "seeds", "sums", "swaps"]
