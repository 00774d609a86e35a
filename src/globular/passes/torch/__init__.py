"""Rows on a GPU, and the passes over them: torch for memory and sorting, triton for kernels."""

from globular.passes.torch.shard import TorchShard
from globular.passes.torch.streaming import StreamedShard

from globular.passes.torch import (  # isort: skip  # they register
    assign, columns, expect, neighbors, seeds, truncated,
)  # fmt: skip

__all__ = ["StreamedShard", "TorchShard", "assign", "columns", "expect", "neighbors", "seeds", "truncated"]
