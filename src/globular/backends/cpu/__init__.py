"""Rows in memory on the CPU, and the passes over them."""

from globular.backends.cpu import answer, assign, columns, expect, nearest, project, seeds, sums, swaps  # they register
from globular.backends.cpu.shard import CpuShard

__all__ = ["CpuShard", "answer", "assign", "columns", "expect", "nearest", "project", "seeds", "sums", "swaps"]
