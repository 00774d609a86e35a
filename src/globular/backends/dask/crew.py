"""The client's side: which worker has which parts, how they are asked, and what happens when one dies.

Parts go to workers in runs of neighbours, so that a worker can add up most of its own. A request travels down a tree of
workers and its answers come back up it: every link carries the parameters once and one sum once, and the client
speaks to two workers however many there are.

A worker that dies is noticed because it no longer answers, or because the scheduler no longer knows it. Its parts go to
others, are loaded again from where they came from, and catch up by the log; then the same request is sent again. Those
who have answered it already repeat their answer. So a fit goes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.backends.dask.log import Log
from globular.backends.dask.messages import Answer, Post, Request, Work, halves
from globular.backends.dask.partitions import Partition
from globular.backends.dask.workers import (
    BEHIND,
    PartInfo,
    PartOptions,
    RowsInfo,
    drop_orphans,
    drop_parts,
    keep_rows,
    make_parts,
    nothing,
    pass_on,
    renumber_rows,
    serve,
)
from globular.backends.protocol import Shard
from globular.errors import DataError, GlobularError
from globular.model.statistics import F64

logger = logging.getLogger("globular")

POLL_SECONDS = 1.0
"""How often to look whether all workers are still there while they work."""
REACH_SECONDS = 3.0
"""How long to try whether this process can connect to a worker."""
PATIENCE_SECONDS = 120.0
"""How long to wait for a worker, and for parts to be loaded on workers that keep dying, before giving up."""
MAX_ATTEMPTS = 30
"""How often to repair what was lost in the middle of one pass."""


class Crew:
    """Workers that hold the parts of one shard."""

    def __init__(
        self,
        client: Any,
        partitions: Sequence[Partition],
        *,
        weights: F64 | None = None,
        unit_rows: bool = False,
        n_threads: int | None = None,
    ) -> None:
        self.client = client
        self.key = f"globular-{uuid.uuid4().hex}"
        self.partitions = list(partitions)
        self.log = Log()
        self.traffic = Traffic()
        self.n_repairs = 0
        self._unit_rows, self._n_threads = unit_rows, n_threads
        self._weights = weights
        self.rows: list[RowsInfo] = []
        self.infos: list[PartInfo] = []
        self.ends: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._clean_up()
        threads = self._wait_for_workers()
        self._direct = client.sync(self._reaches, min(threads))
        self.owners = share_out([part.n_rows for part in self.partitions], threads)
        weakref.finalize(self, _release, client, self.key)
        self._settle()

    # --- asking --------------------------------------------------------------------------------------------------

    def each(self, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        """A function of a shard for every part."""
        singles = self._ask(Work.for_all(function, args, kwargs, None), kwargs).singles
        return [singles[number] for number in range(len(self.partitions))]

    def total(self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The same put together along the tree over the parts."""
        (total,) = self._ask(Work.for_all(function, args, kwargs, merge), kwargs).sums.values()
        return total

    def some(self, function: Callable[..., Any], arguments: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """A function of a shard for some parts, with arguments of their own."""
        return self._ask(Work.for_some(function, arguments), {}).singles if arguments else {}

    def total_of(
        self, merge: Callable[[Any, Any], Any], function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Any:
        """`total` with arguments of its own for every part."""
        (total,) = self._ask(Work.for_some(function, dict(enumerate(arguments)), merge), {}).sums.values()
        return total

    def _ask(self, work: Work, kwargs: dict[str, Any]) -> Answer:
        if work.changes:
            self.log.append(work, kwargs)  # first: a pass that was begun may have been done by some
        for attempt in range(MAX_ATTEMPTS):
            answer = self._send(work, self.log.n_changes, None if work.changes else work.parts)
            if answer.error is not None:
                raise answer.error
            if not answer.lost and not answer.missing:
                return answer
            time.sleep(min(2.0, 0.2 * (attempt + 1)))  # the scheduler needs a moment to notice
            self._repair(answer, work)
        raise GlobularError("workers were lost faster than their parts could be made again; give them more memory")

    def _send(self, work: Work, number: int, only: Iterable[int] | None, *, replay: bool = False) -> Answer:
        """One request to all who have a part in it; the answers put together."""
        route = self._route(only)
        requests = [Request(self.key, number, len(self.partitions), work, half, replay) for half in halves(route)]
        answer = Answer()
        for request, part in zip(requests, self.client.sync(self._exchange, requests), strict=True):
            answer.join(part.unpacked(), request)
        self.traffic.add(work.name, len(work.payload) * len(route), answer.n_bytes)
        return answer

    def _route(self, only: Iterable[int] | None) -> tuple[Post, ...]:
        posts: dict[str, list[int]] = {}
        for number in range(len(self.partitions)) if only is None else sorted(only):
            posts.setdefault(self.owners[number], []).append(number)
        return tuple(Post(address, tuple(parts)) for address, parts in posts.items())

    async def _exchange(self, requests: list[Request]) -> list[Answer]:
        """Send requests at the same time; a worker that the scheduler has given up is lost, whatever it may do."""
        calls = [asyncio.ensure_future(self._call(request)) for request in requests]
        pending = set(calls)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=POLL_SECONDS)
            if pending:
                alive = await self.client.nthreads()
                gone = [post.address for request in requests for post in request.route if post.address not in alive]
                if gone:
                    for call in pending:
                        call.cancel()
                    return [Answer(lost=gone) for _ in requests]
        return [call.result() for call in calls]

    async def _call(self, request: Request) -> Answer:
        if self._direct:
            return await pass_on(self.client.rpc, request)
        address = request.route[0].address
        reply = await self.client.run(serve, request, workers=[address], on_error="return")
        found = reply.get(address, OSError())
        if isinstance(found, OSError):
            return Answer(lost=[address])
        return Answer(error=found) if isinstance(found, BaseException) else found

    async def _reaches(self, address: str) -> bool:
        """Whether a worker can be spoken to without the scheduler, through whose hands all answers would go."""
        if self.client.direct_to_workers is False:
            return False
        try:
            await asyncio.wait_for(self.client.rpc(address).identity(), REACH_SECONDS)
        except (OSError, TimeoutError):
            return False
        return True

    # --- loading and repairing -----------------------------------------------------------------------------------

    def _repair(self, answer: Answer, work: Work) -> None:
        """Make lost parts again on workers that are there, and bring them up to the change before this one."""
        alive = self._wait_for_workers()
        lost = {number for number, owner in enumerate(self.owners) if owner not in alive} | set(answer.missing)
        if not lost:
            return
        self.n_repairs += 1
        logger.warning("%d of %d parts were lost with their worker: making them again", len(lost), len(self.owners))
        self._settle(lost)
        again = [change.work for change in self.log.changes if change.work is not work]
        centers = self.log.first_centers() if self.log.is_cut else None
        if centers is not None:
            again.insert(0, Work.for_all(Shard.hard_pass, (centers,), {"accumulate": False}, None))
        again.append(Work.for_all(nothing, (), {}, None))
        number = self.log.n_changes - work.changes
        for step in again:
            # only who has come through to the end counts as up to date
            caught_up = self._send(step, number if step is again[-1] else BEHIND, lost, replay=True)
            if caught_up.error is not None:
                raise caught_up.error
            if caught_up.lost or caught_up.missing:
                return  # the next attempt begins again

    def _settle(self, lost: set[int] | None = None) -> None:
        """Load these parts, or all, on their workers, or on others where those are gone, until all are there."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            threads = self._wait_for_workers()
            waiting = sorted(range(len(self.partitions)) if lost is None else lost)
            self._reassign([number for number in waiting if self.owners[number] not in threads], threads)
            if self._load(waiting) and self._make(range(len(self.partitions)) if lost is None else waiting):
                return
            if time.monotonic() > give_up:
                raise GlobularError("workers were lost while the data were loaded; give them more memory or less data")

    def _reassign(self, numbers: list[int], threads: dict[str, int]) -> None:
        """Give parts without a worker to those that have least to do."""
        load = {address: self.owners.count(address) / n for address, n in threads.items()}
        for number in numbers:
            address = min(load, key=lambda candidate: (load[candidate], candidate))
            self.owners[number] = address
            load[address] += 1 / threads[address]

    def _load(self, numbers: list[int]) -> bool:
        """Have the rows of these parts loaded by tasks on their workers; False if a worker died over it."""
        import dask
        from distributed import wait
        from distributed.client import FuturesCancelledError

        tasks = []
        for number in numbers:
            part = self.partitions[number]
            with dask.annotate(workers=[self.owners[number]], allow_other_workers=False, retries=0):
                keep = dask.delayed(keep_rows, pure=False)
                tasks.append(keep(part.rows, part.weights, self.key, self.client.id, number, part.name))
        futures = self.client.compute(tasks, optimize_graph=False)
        while True:
            try:
                with self.client.as_current():
                    wait(futures, timeout=POLL_SECONDS)
                break
            except FuturesCancelledError as error:
                if all(self.owners[number] in self.client.nthreads() for number in numbers):
                    raise GlobularError(
                        "the data that X refers to are no longer on the cluster; persist X anew, or pass it unpersisted"
                    ) from error
                return False
            except TimeoutError:
                threads = self.client.nthreads()
                if any(self.owners[number] not in threads for number in numbers):
                    self.client.cancel(futures)
                    return False
        failed = [future for future in futures if future.status != "finished"]
        if failed:
            return self._explain(failed[0])
        infos = dict(zip(numbers, self.client.gather(futures), strict=True))
        if not self.rows:
            self.rows = self._without_empty([infos[number] for number in numbers])
            self._check_rows()
        elif any(infos[number].n_rows != self.rows[number].n_rows for number in numbers):
            raise DataError("X: a partition that was made again has another number of rows; its source has changed")
        return True

    def _without_empty(self, rows: list[RowsInfo]) -> list[RowsInfo]:
        """Leave out partitions without rows, which no pass could do anything with; one stays in any case."""
        kept = [number for number, info in enumerate(rows) if info.n_rows] or [0]
        if len(kept) < len(rows):
            self.partitions = [self.partitions[number] for number in kept]
            self.owners = [self.owners[number] for number in kept]
            self.client.run(renumber_rows, self.key, kept, on_error="ignore")  # a worker that dies now is missed later
        return [rows[number] for number in kept]

    def _explain(self, future: Any) -> bool:
        """Raise what a loading task has raised; False if it was its worker that died."""
        from distributed import CancelledError, KilledWorker

        error = future.exception(timeout=POLL_SECONDS) if future.status == "error" else None
        if isinstance(error, KilledWorker):
            raise GlobularError(
                "a worker was killed while it loaded its part of X, most likely for want of memory; "
                "use smaller partitions or more memory"
            ) from error
        if error is None or isinstance(error, CancelledError):
            return False
        raise error

    def _check_rows(self) -> None:
        """Look at the shapes of all parts together."""
        sizes = np.array([info.n_rows for info in self.rows], dtype=np.intp)
        self.ends = np.cumsum(sizes)
        columns = {info.n_columns for info in self.rows if info.n_rows}
        if len(columns) > 1:
            raise DataError(f"X: partitions have different numbers of columns: {sorted(columns)}")
        if self._weights is not None and len(self._weights) != self.ends[-1]:
            raise ValueError(
                f"sample_weight.shape == {self._weights.shape}, expected ({self.ends[-1]},): one weight per row of X"
            )

    def _make(self, numbers: Sequence[int]) -> bool:
        """Have shards laid over loaded rows; False if a worker died over it."""
        options = {number: self._options(number) for number in numbers}
        infos: dict[int, PartInfo] = {}
        for post in self._route(numbers):
            mine = {number: options[number] for number in post.parts}
            reply = self.client.run(make_parts, self.key, mine, workers=[post.address], on_error="return")
            found = reply.get(post.address, OSError())
            if isinstance(found, OSError | KeyError):
                return False
            if isinstance(found, BaseException):
                raise found
            infos |= found
        if not self.infos:
            self.infos = [infos[number] for number in numbers]
        return True

    def _options(self, number: int) -> PartOptions:
        first = int(self.ends[number - 1]) if number else 0
        weights = None if self._weights is None else self._weights[first : int(self.ends[number])]
        version = BEHIND if self.log.n_changes else 0
        return PartOptions(first, weights, self._unit_rows, self._n_threads, version)

    def _wait_for_workers(self) -> dict[str, int]:
        """Threads by address of worker; waits for one if there is none."""
        threads: dict[str, int] = self.client.nthreads()
        if not threads:
            try:
                self.client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
            except TimeoutError as error:
                raise GlobularError("the Dask cluster has no workers; start some, e.g. cluster.scale(2)") from error
            threads = self.client.nthreads()
        return threads

    def _clean_up(self) -> None:
        """Have workers forget what clients left behind that are gone."""
        clients = self.client.run_on_scheduler(_client_ids)
        self.client.run(drop_orphans, clients, on_error="ignore")


class Traffic:
    """Bytes that passes have moved between processes: parameters out, statistics back; each link counts."""

    def __init__(self) -> None:
        self.out: dict[str, int] = {}
        self.back: dict[str, int] = {}
        self.calls: dict[str, int] = {}

    def add(self, name: str, n_out: int, n_back: int) -> None:
        """Note one pass."""
        self.out[name] = self.out.get(name, 0) + n_out
        self.back[name] = self.back.get(name, 0) + n_back
        self.calls[name] = self.calls.get(name, 0) + 1


def share_out(sizes: Sequence[int | None], threads: dict[str, int]) -> list[str]:
    """A worker for every part: runs of neighbours, in proportion to the workers' threads."""
    weights = np.array([1.0 if None in sizes else float(size or 0) for size in sizes])
    weights = weights if weights.sum() > 0 else np.ones(len(sizes))
    addresses = sorted(threads)
    shares = np.cumsum([threads[address] for address in addresses]) / sum(threads.values())
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return [addresses[i] for i in np.searchsorted(shares, middles).clip(max=len(addresses) - 1)]


def _client_ids(dask_scheduler: Any = None) -> list[str]:
    return list(dask_scheduler.clients)


def _release(client: Any, key: str) -> None:
    """Have the workers forget a shard, without waiting for it and whatever state the client is in."""
    if client.status != "running":
        return

    async def release() -> None:
        # the cluster may be closing down at this moment, and then there is nothing left to forget
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await client.run(drop_parts, key, on_error="ignore")

    client.loop.add_callback(release)
