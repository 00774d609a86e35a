"""Rows on a GPU, and the passes over them: torch for memory and sorting, triton for kernels."""

from globular.passes.torch.opening import StreamedShard
from globular.passes.torch.shard import TorchShard

from globular.passes.torch import (  # isort: skip  # they register
    assign, columns, expect, low_rank, seeds, truncated,
)  # fmt: skip

__all__ = ["StreamedShard", "TorchShard", "assign", "columns", "expect", "low_rank", "seeds", "truncated"]
