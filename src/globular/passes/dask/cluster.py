"""The way to a cluster: every wait for it has a limit, or an eye on the workers that are waited for.

A connection that breaks is no error by itself: nobody has answered, and who asked asks again once the scheduler does.
Only a scheduler, or a first worker, that stays away for `PATIENCE_SECONDS` ends a fit, with a message that says so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from globular.errors import GlobularError
from globular.passes.dask.workers import Partition, keep_rows

POLL_SECONDS = 1.0
"""How often to look whether all workers are still there while they work."""
PATIENCE_SECONDS = 120.0
"""How long to wait for the scheduler, or for a worker where there is none, before giving up."""
REJOIN_SECONDS = 10.0
"""How long to wait for the other workers once the first has come back, before it gets all the parts."""
_RETRY_SECONDS = 0.2

Result = TypeVar("Result")


class Cluster:
    """The scheduler and the workers that a client is connected to."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._n_workers = 0
        """As many as there have been at a time."""

    def sync(self, function: Callable[..., Coroutine[Any, Any, Result]], *args: Any) -> Result:
        """What a coroutine on the client's event loop returns; a loop that is stopped ends the wait."""
        loop = self.client.loop.asyncio_loop
        if not loop.is_running():
            raise self._gone()
        future = asyncio.run_coroutine_threadsafe(function(*args), loop)
        try:
            while not concurrent.futures.wait([future], POLL_SECONDS).done and loop.is_running():
                pass
        except BaseException:  # Ctrl-C
            future.cancel()
            raise
        if not future.done() or future.cancelled():
            raise self._gone()
        return future.result()

    async def watched(self, work: Awaitable[Result], needed: Collection[str]) -> Result | None:
        """What comes of something that these workers do; None if the scheduler has given up one of them before."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=POLL_SECONDS))[0]:
                if not (await self.alive()).keys() >= set(needed):
                    return None
            return task.result()
        finally:
            task.cancel()

    async def alive(self) -> dict[str, int]:
        """Threads by address of the workers that the scheduler knows."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while self.client.status not in ("closing", "closed") and (left := give_up - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                found: dict[str, int] = await asyncio.wait_for(self.client.nthreads(), left)
                self._n_workers = max(self._n_workers, len(found))
                return found
            await asyncio.sleep(_RETRY_SECONDS)
        raise self._gone()

    def wait_for_workers(self) -> dict[str, int]:
        """The same; waits for one if there is none, and then a little for the others."""
        return self.sync(self._wait_for_workers)

    async def _wait_for_workers(self) -> dict[str, int]:
        threads = await self.alive()
        give_up, wanted = time.monotonic() + PATIENCE_SECONDS, 1 if threads else max(1, self._n_workers)
        while len(threads) < wanted and time.monotonic() < give_up:
            await asyncio.sleep(_RETRY_SECONDS)
            before, threads = threads, await self.alive()
            if threads and not before:
                give_up = time.monotonic() + REJOIN_SECONDS
        if threads:
            return threads
        lost = f"has lost all of its {self._n_workers} workers" if self._n_workers else "has no workers"
        raise GlobularError(
            f"the Dask cluster {lost}, and none has come within {PATIENCE_SECONDS:g} s; start some, e.g. "
            "cluster.scale(2), and fit again: X must be such that they can load it again"
        )

    def run(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """What a function returns or raises on all workers; of those that were lost over it nothing."""
        return self.sync(self.run_async, function, args)

    async def run_async(
        self, function: Callable[..., Any], args: tuple[Any, ...], workers: Collection[str] | None = None
    ) -> dict[str, Any]:
        """The same on the client's event loop, for all or some of the workers."""
        asked = list(await self.alive() if workers is None else workers)
        calls = [self.watched(self._run_one(function, args, address), [address]) for address in asked]
        replies = zip(asked, await asyncio.gather(*calls), strict=True)
        return {address: reply[0] for address, reply in replies if reply}

    async def _run_one(self, function: Callable[..., Any], args: tuple[Any, ...], address: str) -> list[Any]:
        """What one worker says, in a list; an empty one if it does not answer."""
        try:
            reply = await self.client.run(function, *args, workers=[address], on_error="return")
        except OSError:
            return []
        return [found for found in reply.values() if not isinstance(found, OSError)]

    async def of_scheduler(self, function: Callable[..., list[str]]) -> list[str] | None:
        """What a function finds out from the scheduler; None if it cannot be asked just now."""
        with contextlib.suppress(OSError):
            return list(await asyncio.wait_for(self.client.run_on_scheduler(function), PATIENCE_SECONDS))
        return None

    def _gone(self) -> GlobularError:
        return GlobularError(
            f"the Dask cluster is gone: its scheduler does not answer, and the client is {self.client.status}; connect "
            "a new Client and fit again, from a checkpoint if there is one"
        )


def client_ids(dask_scheduler: Any = None) -> list[str]:
    """Names of the clients that the scheduler knows."""
    return list(dask_scheduler.clients)


def _paused(dask_scheduler: Any = None) -> list[str]:
    """Addresses of workers that begin no task because their memory is nearly full."""
    return [address for address, worker in dask_scheduler.workers.items() if worker.status.name == "paused"]


def load_rows(cluster: Cluster, key: str, wanted: Sequence[tuple[Partition, str]]) -> None:
    """Load each of the partitions on a worker, as far as those live; `key` names the shard.

    Rows come to the workers that keep them by tasks of Dask, which knows where collections lie and how to make them.
    Every task is meant for one worker. If that dies, the task has no place to run and would be waited for in vain, so
    what counts is not the task's result: workers are asked afterwards what they hold.
    """
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
    give_up = time.monotonic() + PATIENCE_SECONDS
    while pending:
        with cluster.client.as_current(), contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            await wait(pending, timeout=POLL_SECONDS)
        alive, before = await cluster.alive(), pending
        pending = [future for future in pending if future.status in ("pending", "lost") and owners[future] in alive]
        if len(pending) < len(before):
            give_up = time.monotonic() + PATIENCE_SECONDS
        elif time.monotonic() >= give_up and set(paused := await cluster.of_scheduler(_paused) or ()).issuperset(
            map(owners.get, pending)
        ):
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
