"""Rows on Dask workers: the same passes, asked of processes and machines; see `shard`."""

from globular.passes.dask.shard import DaskShard

__all__ = ["DaskShard"]
