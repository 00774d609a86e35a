"""Rows in memory on the CPU, and the passes over them."""

from globular.backends.cpu import (  # they register their passes
    bounded,
    claims,
    columns,
    d2,
    direct,
    hard,
    kept,
    nested,
    probed,
    probed_soft,
    projected,
    routed,
    soft,
    sums,
    transform,
    truncated,
)
from globular.backends.cpu.shard import CpuShard

__all__ = [
    "CpuShard",
    "bounded",
    "claims",
    "columns",
    "d2",
    "direct",
    "hard",
    "kept",
    "nested",
    "probed",
    "probed_soft",
    "projected",
    "routed",
    "soft",
    "sums",
    "transform",
    "truncated",
]
