"""Rows in memory on the CPU, and the passes over them."""

from globular.passes.cpu import (  # they register
    answer,
    assign,
    by_column,
    codes,
    columns,
    expect,
    few_rows,
    graph,
    line,
    nearest,
    project,
    seeds,
    sparse_seeds,
    sums,
    swaps,
    transport,
)  # fmt: skip
from globular.passes.cpu.shard import CpuShard

__all__ = [
    "CpuShard", "answer", "assign", "by_column", "codes", "columns", "expect", "few_rows", "graph", "line", "nearest",
    "project", "seeds", "sparse_seeds", "sums", "swaps", "transport",
]  # fmt: skip
