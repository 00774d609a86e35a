"""Passes over rows in memory on the CPU."""

from globular.backends.cpu.shard import CpuShard

__all__ = ["CpuShard"]
