"""Rows in memory on the CPU, and the passes over them."""

from globular.passes.cpu import (  # they register
    answer,
    assign,
    columns,
    expect,
    few_rows,
    nearest,
    project,
    seeds,
    sums,
    swaps,
)  # fmt: skip
from globular.passes.cpu.shard import CpuShard

__all__ = [
    "CpuShard", "answer", "assign", "columns", "expect", "few_rows", "nearest", "project", "seeds", "sums", "swaps",
]  # fmt: skip
