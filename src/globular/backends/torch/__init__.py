"""Rows on a GPU, and the passes over them: torch for memory and sorting, triton for kernels."""

from globular.backends.torch import assign, columns, expect, seeds, sums, swaps, truncated, within  # they register
from globular.backends.torch.shard import TorchShard

__all__ = ["TorchShard", "assign", "columns", "expect", "seeds", "sums", "swaps", "truncated", "within"]
