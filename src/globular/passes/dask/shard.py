"""Rows on Dask workers: map and add over processes and machines.

A `DaskShard` is a shard like any other: its parts are partitions of the data, each a `CpuShard` or a `StreamShard` in
the memory of a worker, with the per-point state beside the rows. Parameters go out, additive statistics come back;
rows and state stay where they are. Algorithms do not notice.

Sums are added in a fixed tree over the parts (`TreeSum`), the same as in a `SplitShard`, so results do not depend on
the number of workers and equal those of a split into the same parts bit for bit.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from globular.data.open import Given
from globular.errors import MissingExtraError
from globular.machine import physical_memory
from globular.model.statistics import F64
from globular.passes.dask.cluster import Cluster
from globular.passes.dask.crew import Crew
from globular.passes.dask.partitions import Partition, collection_partitions, file_partitions
from globular.passes.many.split import SideBySide
from globular.seam.among import Need
from globular.seam.passes import AllLabels, Labels, Pass, Result
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

WORKER_SHARE = 0.25
"""Files up to this share of the workers' memory are kept there; larger ones are read anew for every pass."""


class DaskShard(SideBySide):
    """Partitions on the workers of a cluster.

    Parameters
    ----------
    client : a connected `distributed.Client`.
    partitions : where the rows of every part come from.
    weights : one float64 per row of all parts, or None (also where partitions have their own).
    unit_rows : whether rows count as scaled to unit length (cosine).
    labelled : whether rows of weight 0 are wanted, for their labels.
    n_threads : threads of each worker; None takes what the worker has.
    """

    def __init__(
        self,
        client: Any,
        partitions: Sequence[Partition],
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        labelled: bool = True,
        n_threads: int | None = None,
    ) -> None:
        self.crew = Crew(
            client, partitions, weights=weights, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads
        )
        self._ends = self.crew.ends
        self.n_columns = max(info.n_columns for info in self.crew.rows)
        self.n_threads = resolve_threads(n_threads)
        self.is_streamed = any(part.is_streamed for part in partitions)
        """Whether workers read rows from files anew for every pass."""
        self.dtype: np.dtype[Any] = np.result_type(np.uint8, *{info.dtype for info in self.crew.rows})

    @property
    def _lacks_of_parts(self) -> list[Mapping[Need, str]]:
        return [info.lacks for info in self.crew.infos]

    @property
    def weights_of_parts(self) -> F64:
        return np.array([info.total_weight for info in self.crew.infos])

    @property
    def labels(self) -> Labels:
        return cast(Labels, RemoteLabels(self))

    def _merged(self, work: Pass[Result]) -> Result:
        return self.crew.merged(work)

    def _each(self, work: Pass[Result]) -> list[Result]:
        return self.crew.each(work)

    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        return self.crew.some(work)


class RemoteLabels:
    """The labels of all rows, which stay on the workers until they are looked at.

    Some rows by number (`labels[indices]`) bring those alone; `np.asarray(labels)` and `labels.copy()` bring all.
    """

    dtype = np.dtype(np.int32)
    ndim = 1

    def __init__(self, shard: DaskShard) -> None:
        self._shard = shard
        self.shape = (shard.n_rows,)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Labels:
        return self.copy().astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        indices = np.asarray(key) if isinstance(key, np.ndarray | list) else None
        if indices is not None and indices.ndim == 1 and indices.dtype.kind in "iu":
            return self._shard.take(np.where(indices < 0, indices + len(self), indices), "labels")
        return np.asarray(self)[key]

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Labels:
        """All labels as they are now."""
        return np.concatenate(self._shard.run(AllLabels()))

    def __reduce__(self) -> Any:
        return np.asarray, (np.asarray(self),)


def current_client() -> Any | None:
    """The Dask client in whose context we are, if any."""
    distributed = sys.modules.get("distributed")  # not loaded: nobody can have made a client
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def are_on_workers(given: Given) -> bool:
    """Whether the rows are for Dask workers: a collection, or files where there is a client whose workers read them."""
    return given.kind == "collection" or (given.kind == "files" and current_client() is not None)


def open_on_workers(
    given: Given, weights: F64 | None, weight_collection: Any, *, unit_rows: bool, labelled: bool, n_threads: int | None
) -> DaskShard:
    """Put a shard over a collection or over files; weights are a collection as well, an array, or None."""
    client = _require_client()
    if given.kind == "files":
        cluster = Cluster(client)
        partitions = _with_memory(cluster, file_partitions(given.value, len(cluster.wait_for_workers())))
    else:
        partitions = collection_partitions(given.value, weight_collection)
    shard = DaskShard(client, partitions, weights, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads)
    n_workers = len(set(shard.crew.owners))
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
