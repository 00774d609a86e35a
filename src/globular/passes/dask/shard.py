"""Rows on Dask workers, seen from the client: which worker has which parts, how they are asked, and what if one dies.

A `DaskShard` is a shard like any other: its parts are partitions of the data, each a `CpuShard` or a `StreamShard` in
the memory of a worker, or a shard on its card, with the per-point state beside the rows. Parameters go out, additive
statistics come back; rows and state stay where they are. Algorithms do not notice. Sums are added in a fixed tree over
the parts (`TreeSum`), so results do not depend on the number of workers, and equal bit for bit those of one process
with the same parts.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from globular.errors import DataError, GlobularError
from globular.model.statistics import F64
from globular.passes.dask import workers
from globular.passes.dask.cluster import Cluster, client_ids, load_rows
from globular.passes.dask.messages import SNAPSHOT_BYTES, Log, Post, Reply, Request, Work, halves
from globular.passes.dask.workers import PartInfo, Partition, PartOptions, RowsInfo
from globular.passes.many import SideBySide
from globular.passes.registry import Card
from globular.seam.passes import AllLabels, Assign, Labels, Pass, Result, Take
from globular.seam.tree_passes import ReadFrontier
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

REACH_SECONDS = 3.0
"""How long to try whether this process can connect to a worker."""
NO_ROWS = Take(np.empty(0, dtype=np.intp), "weights")
"""Leaves a part as it is."""
MAX_ATTEMPTS = 30
"""How often to load parts, or to repair what was lost in the middle of one pass, on workers that keep dying."""


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
    card : the workers' cards that compute, or None for their CPUs.
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
        card: Card | None = None,
    ) -> None:
        self.client = client
        self.cluster = Cluster(client)
        self.key = f"globular-{uuid.uuid4().hex}"
        self.partitions = list(partitions)
        self.log = Log()
        self.n_repairs = 0
        self.n_threads = resolve_threads(n_threads)
        self._unit_rows, self._labelled, self._threads_wanted = unit_rows, labelled, n_threads
        self._weights, self._card = weights, card
        self._codes: NDArray[Any] | None = None
        self._books: Sequence[NDArray[Any]] = ()
        threads = self.cluster.wait_for_workers()
        clients = self.cluster.sync(self.cluster.of_scheduler, client_ids)
        if clients is not None:  # what clients that are gone have left behind is forgotten
            self.cluster.run(workers.drop_orphans, clients)
        self._direct = self.cluster.sync(self._reaches, min(threads))
        self.owners = share_out([part.n_rows for part in self.partitions], threads)
        weakref.finalize(self, _release, client, self.key)
        self._begin()

    @property
    def labels(self) -> Labels:
        return cast(Labels, RemoteLabels(self))

    def left(self, codes: NDArray[Any], books: Sequence[NDArray[Any]]) -> DaskShard:
        """See `Shard.left`: this shard is the new one, whose parts are made anew over the rows that workers hold."""
        n_changes, self.log = self.log.n_changes, Log()
        self.log.n_changes, self._codes, self._books = n_changes, codes, list(books)
        for known in ("_moments", "_spreads"):
            vars(self).pop(known, None)
        self._make_all()
        return self

    # --- asking --------------------------------------------------------------------------------------------------

    def _merged(self, work: Pass[Result]) -> Result:
        (total,) = self._ask(Work(work)).sums.values()
        return cast(Result, total)

    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        return self._ask(Work(dict(work))).singles if work else {}

    def _ask(self, work: Work) -> Reply:
        if work.changes:
            if self.log.wants_snapshot:
                self.log.put_snapshot(self._merged(ReadFrontier(SNAPSHOT_BYTES // len(self.partitions))))
            self.log.append(work)  # first: a pass that was begun may have been done by some
        for attempt in range(MAX_ATTEMPTS):
            answer = self._send(work, self.log.n_changes, None if work.changes else work.parts)
            if answer.error is not None:
                raise answer.error
            if not answer.lost and not answer.missing:
                return answer
            time.sleep(min(2.0, 0.2 * (attempt + 1)))  # the scheduler needs a moment to notice
            self._repair(answer, work)
        raise GlobularError("workers were lost faster than their parts could be made again; give them more memory")

    def _send(self, work: Work, number: int, only: Iterable[int] | None, *, replay: int = 0) -> Reply:
        """One request to all who have a part in it; the answers put together."""
        route = self._route(only)
        requests = [Request(self.key, number, len(self.partitions), work, half, replay) for half in halves(route)]
        answer = Reply()
        for request, part in zip(requests, self.cluster.sync(self._exchange, requests), strict=True):
            answer.join(part, request)
        return answer

    def _route(self, only: Iterable[int] | None) -> tuple[Post, ...]:
        posts: dict[str, list[int]] = {}
        for number in range(len(self.partitions)) if only is None else sorted(only):
            posts.setdefault(self.owners[number], []).append(number)
        return tuple(Post(address, tuple(parts)) for address, parts in posts.items())

    async def _exchange(self, requests: list[Request]) -> list[Reply]:
        """Send requests at the same time; a worker that the scheduler has given up is lost, whatever it may do."""
        asked = [post.address for request in requests for post in request.route]

        async def call() -> list[Reply]:
            return await asyncio.gather(*map(self._call, requests))

        answers = await self.cluster.watched(call(), asked)
        return [Reply(lost=asked)] * len(requests) if answers is None else answers

    async def _call(self, request: Request) -> Reply:
        if self._direct:
            return await workers.pass_on(self.client.rpc, request)
        address = request.route[0].address
        reply = await self.cluster.run_async(workers.serve, (request,), [address])
        found = reply.get(address, Reply(lost=[address]))
        return Reply(error=found) if isinstance(found, BaseException) else found

    async def _reaches(self, address: str) -> bool:
        """Whether a worker can be spoken to without the scheduler, through whose hands all answers would go."""
        if self.client.direct_to_workers is False:
            return False
        try:
            await asyncio.wait_for(self.client.rpc(address).identity(), REACH_SECONDS)
        except (OSError, RuntimeError):  # the latter from a client that is closed
            return False
        return True

    # --- loading and repairing -----------------------------------------------------------------------------------

    def _repair(self, answer: Reply, work: Work) -> None:
        """Make lost parts again on workers that are there, and bring them up to the change before this one."""
        alive = self.cluster.wait_for_workers()
        lost = {number for number, owner in enumerate(self.owners) if owner not in alive} | set(answer.missing)
        if not lost:
            return
        self.n_repairs += 1
        logger.warning("%d of %d parts were lost with their worker: making them again", len(lost), len(self.owners))
        self._load(lost)
        self._make(lost, -self.n_repairs)
        again = [change.work for change in self.log.changes if change.work is not work]
        centers = self.log.first_centers() if self.log.is_cut else None
        if centers is not None:
            again.insert(0, Work(Assign(centers, want="labels")))
        again.append(Work(NO_ROWS))
        number = self.log.n_changes - work.changes
        for step in again:
            # only who has come through to the end counts as up to date
            now = number if step is again[-1] else -self.n_repairs
            caught_up = self._send(step, now, lost, replay=self.n_repairs)
            if caught_up.error is not None:
                raise caught_up.error
            if caught_up.lost or caught_up.missing:
                return  # the next attempt begins again

    def _begin(self) -> None:
        """Load all parts, look at their shapes together, and leave out those without rows; one stays in any case."""
        found = self._load(range(len(self.partitions)))
        kept = [number for number, info in sorted(found.items()) if info.n_rows] or [0]
        self.partitions = [self.partitions[number] for number in kept]
        self.owners = [self.owners[number] for number in kept]
        self._rows = [found[number] for number in kept]
        self._ends = np.cumsum([info.n_rows for info in self._rows], dtype=np.intp)
        columns = {info.n_columns for info in self._rows if info.n_rows}
        if len(columns) > 1:
            raise DataError(f"X: partitions have different numbers of columns: {sorted(columns)}")
        if self._weights is not None and len(self._weights) != self.n_rows:
            raise ValueError(
                f"sample_weight.shape == {self._weights.shape}, expected ({self.n_rows},): one weight per row of X"
            )
        self.n_columns = max(info.n_columns for info in self._rows)
        self.dtype: np.dtype[Any] = np.result_type(np.uint8, *{info.dtype for info in self._rows})
        self._make_all()

    def _make_all(self) -> None:
        infos = self._make(range(len(self.partitions)), self.log.n_changes)
        self._parts = [infos[number] for number in range(len(self.partitions))]

    def _load(self, numbers: Iterable[int]) -> dict[int, RowsInfo]:
        """Have the rows of these parts loaded by their workers, or by others where those are gone."""
        found: dict[int, RowsInfo] = {}
        wanted = missing = sorted(numbers)
        for _ in range(MAX_ATTEMPTS):
            self._reassign(missing)
            tasks = [(self.partitions[number], self.owners[number]) for number in missing]
            load_rows(self.cluster, self.key, tasks)
            # asked again of all: who had loaded its rows may be gone by now
            found = self._ask_owners(workers.rows_held, {number: self.partitions[number].number for number in wanted})
            missing = [number for number in wanted if number not in found]
            if not missing:
                return found
        raise GlobularError("workers were lost while the data were loaded; give them more memory or less data")

    def _reassign(self, numbers: Iterable[int]) -> None:
        """Give those of the parts whose worker is gone to the workers that have least to do."""
        threads = self.cluster.wait_for_workers()
        load = {address: self.owners.count(address) / n for address, n in threads.items()}
        for number in numbers:
            if self.owners[number] not in threads:
                address = min(load, key=lambda candidate: (load[candidate], candidate))
                self.owners[number] = address
                load[address] += 1 / threads[address]

    def _make(self, numbers: Iterable[int], version: int) -> dict[int, PartInfo]:
        """Have shards laid over loaded rows; what was lost in between is loaded again."""
        infos: dict[int, PartInfo] = {}
        missing = set(numbers)
        for _ in range(MAX_ATTEMPTS):
            infos |= self._ask_owners(
                workers.make_parts, {number: self._options(number, version) for number in missing}
            )
            missing -= infos.keys()
            if not missing:
                return infos
            self._load(missing)
        raise GlobularError("workers were lost while the data were loaded; give them more memory or less data")

    def _ask_owners(self, function: Callable[..., Any], arguments: Mapping[int, Any]) -> dict[int, Any]:
        """A function on workers, from {part: argument} to {part: result}; without those of workers that are lost."""

        async def ask() -> list[dict[str, Any]]:
            calls = []
            for post in self._route(arguments):
                own = {number: arguments[number] for number in post.parts}
                calls.append(self.cluster.run_async(function, (self.key, own), [post.address]))
            return await asyncio.gather(*calls)

        found: dict[int, Any] = {}
        for reply in self.cluster.sync(ask):
            for said in reply.values():
                if isinstance(said, BaseException):
                    raise said
                found |= said
        return found

    def _options(self, number: int, version: int) -> PartOptions:
        own = slice(self._first(number), int(self._ends[number]))
        weights = None if self._weights is None else self._weights[own]
        codes = None if self._codes is None else self._codes[own]
        return PartOptions(
            self.partitions[number].number, self._rows[number].n_rows, self._first(number), weights, self._unit_rows,
            self._labelled, self._threads_wanted, self._card, codes, self._books, version,
        )  # fmt: skip


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
        pieces: list[Any] = self._shard.run(AllLabels())
        return np.concatenate([np.asarray(piece) for piece in pieces])

    def __reduce__(self) -> Any:
        return np.asarray, (np.asarray(self),)


def share_out(sizes: Sequence[int | None], threads: dict[str, int]) -> list[str]:
    """A worker for every part: runs of neighbours, in proportion to the workers' threads."""
    weights = np.array([1.0 if None in sizes else float(size or 0) for size in sizes])
    weights = weights if weights.sum() > 0 else np.ones(len(sizes))
    addresses = sorted(threads)
    shares = np.cumsum([threads[address] for address in addresses]) / sum(threads.values())
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return [addresses[i] for i in np.searchsorted(shares, middles).clip(max=len(addresses) - 1)]


def _release(client: Any, key: str) -> None:
    """Have the workers forget a shard, without waiting for it and whatever state the client is in."""
    if client.status != "running":
        return

    async def release() -> None:
        # the cluster may be closing down at this moment, and then there is nothing left to forget
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await client.run(workers.drop_parts, key, on_error="ignore")

    client.loop.add_callback(release)
