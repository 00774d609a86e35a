"""Rows on Dask workers: from what a user hands over to a shard over them. The passes are the same; see `shard`."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

from globular.data.open import GivenRows
from globular.errors import MissingExtraError
from globular.machine import physical_memory
from globular.model.statistics import F64
from globular.passes.dask.cluster import Cluster
from globular.passes.dask.shard import DaskShard
from globular.passes.dask.workers import Partition, collection_partitions, file_partitions
from globular.passes.registry import Card

__all__ = ["DaskShard", "are_on_workers", "current_client", "open_on_workers"]

logger = logging.getLogger("globular")

WORKER_SHARE = 0.25
"""Files up to this share of the workers' memory are kept there; larger ones are read anew for every pass."""


def current_client() -> Any | None:
    """The Dask client in whose context we are, if any."""
    distributed = sys.modules.get("distributed")  # not loaded: nobody can have made a client
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def are_on_workers(given: GivenRows) -> bool:
    """Whether the rows are for Dask workers: a collection, or files where there is a client whose workers read them."""
    return given.kind == "collection" or (given.kind == "files" and current_client() is not None)


def open_on_workers(
    given: GivenRows,
    weights: F64 | None,
    weight_collection: Any,
    *,
    unit_rows: bool,
    labelled: bool,
    n_threads: int | None,
    card: Card | None = None,
) -> DaskShard:
    """Put a shard over a collection or over files; weights are a collection as well, an array, or None."""
    client = _require_client()
    if given.kind == "files":
        cluster = Cluster(client)
        partitions = _with_memory(cluster, file_partitions(given.value, len(cluster.wait_for_workers())))
    else:
        partitions = collection_partitions(given.value, weight_collection)
    shard = DaskShard(
        client, partitions, weights, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads, card=card
    )
    n_workers = len(set(shard.owners))
    logger.info("%d rows in %d partitions on %d workers", shard.n_rows, len(partitions), n_workers)
    return shard


def _require_client() -> Any:
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("distributed", "dask", "a fit on Dask workers") from error
    client = current_client()
    if client is None:
        raise RuntimeError(
            "X lies on Dask, and there is no client; start one: from dask.distributed import Client; client = Client()"
        )
    if client.asynchronous:
        raise RuntimeError("the current Dask client is asynchronous; use a Client made with asynchronous=False")
    return client


def _with_memory(cluster: Cluster, partitions: list[Partition]) -> list[Partition]:
    """Partitions of files to be kept in memory, or to be streamed if the workers have too little of it."""
    memory = sum(cluster.run(_memory_limit).values())
    if sum(part.n_bytes or 0 for part in partitions) <= WORKER_SHARE * memory:
        return partitions
    logger.info("the files exceed a share of %g of the workers' memory: streamed", WORKER_SHARE)
    return [replace(part, rows=replace(part.rows, in_memory=False)) for part in partitions]


def _memory_limit(dask_worker: Any = None) -> int:
    return int(dask_worker.memory_manager.memory_limit or physical_memory())
