"""Rows on a GPU, and the passes over them: torch for memory and sorting, triton for kernels."""

from globular.backends.torch import assign, columns, seeds, sums, swaps  # they register
from globular.backends.torch.shard import TorchShard
from globular.backends.torch.streaming import StreamedShard

__all__ = ["StreamedShard", "TorchShard", "assign", "columns", "seeds", "sums", "swaps"]
