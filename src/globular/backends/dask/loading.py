"""Rows come to the workers that keep them by tasks of Dask, which knows where collections lie and how to make them.

Every task is meant for one worker. If that dies, the task has no place to run and would be waited for in vain, so what
counts is not the task's result: workers are asked afterwards what they hold.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Sequence
from typing import Any

from globular.backends.dask.cluster import POLL_SECONDS, Cluster, Patience
from globular.backends.dask.partitions import Partition
from globular.backends.dask.workers import keep_rows
from globular.errors import GlobularError


def load_rows(cluster: Cluster, key: str, wanted: Sequence[tuple[Partition, str]]) -> None:
    """Load each of the partitions on a worker, as far as those live; `key` names the shard."""
    import dask

    client, tasks = cluster.client, []
    for part, owner in wanted:
        with dask.annotate(workers=[owner], allow_other_workers=False, retries=0):
            keep = dask.delayed(keep_rows, pure=False)
            tasks.append(keep(part.rows, part.weights, key, client.id, part.number, part.name))
    try:
        futures = client.compute(tasks, optimize_graph=False)
    except Exception:
        if client.status == "running":
            raise
        return  # without a connection nothing can be sent; it may come back
    owners = {future: owner for future, (_, owner) in zip(futures, wanted, strict=True)}
    for error in cluster.sync(_wait_for_tasks, cluster, owners):
        _explain(error)


async def _wait_for_tasks(cluster: Cluster, owners: dict[Any, str]) -> list[BaseException]:
    """Wait for tasks until they have ended or their worker has; the errors of those whose worker lives."""
    from distributed import wait

    pending, alive = list(owners), await cluster.alive()
    patience = Patience()
    while pending:
        with cluster.client.as_current(), contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            await wait(pending, timeout=POLL_SECONDS)
        alive, before = await cluster.alive(), pending
        pending = [future for future in pending if future.status in ("pending", "lost") and owners[future] in alive]
        if len(pending) < len(before):
            patience = Patience()
        elif patience.is_over and (paused := await cluster.paused()) >= {owners[future] for future in pending}:
            raise GlobularError(
                f"workers are too full to load their parts of X: {', '.join(sorted(paused))} have paused; "
                "give them more memory, or use more workers"
            )
    failed = [future for future in owners if future.status in ("error", "cancelled") and owners[future] in alive]
    return list(await asyncio.gather(*(future.exception() for future in failed)))


def _explain(error: BaseException) -> None:
    """Raise what a loading task has raised."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        raise GlobularError(
            "a worker was killed while it loaded its part of X, most likely for want of memory; "
            "use smaller partitions or more memory"
        ) from error
    if isinstance(error, concurrent.futures.CancelledError):
        if "scheduler-connection-lost" in str(error):
            return  # loaded again over the new connection
        raise GlobularError(
            "the data that X refers to are no longer on the cluster; persist X anew, or pass it unpersisted"
        ) from error
    raise error
