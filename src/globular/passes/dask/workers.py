"""Where the rows of a part come from, and what runs on the workers: they hold parts, and answer requests.

Rows are a partition of a Dask collection, or a range of rows in files. A worker that dies takes its parts with it; what
is described here is enough to make them again elsewhere.

Parts live beside Dask's own data, in the memory of the worker process. A request comes as a call to `serve`, on the
worker's event loop; the work is done on a thread of its own, so that the worker stays responsive. The last answer that
changed the state is kept: when another worker dies before all answers have come together, the request is sent again,
and who has done its part already only repeats what it said.
"""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.data.blocks import Matrix, check_finite, check_table
from globular.data.formats import open_path
from globular.data.open import Files, as_source
from globular.data.residuals import Codebooks, Residuals
from globular.data.sources import RowRange, checked_csr, choose_rows
from globular.errors import DataError
from globular.model.statistics import F64
from globular.passes.dask.messages import Reply, Request
from globular.passes.many import TreeSum
from globular.passes.registry import Card, shard_over
from globular.seam.among import Need
from globular.seam.shard import Shard


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows `start` to `stop` of a file, which every worker must be able to read."""

    path: str
    start: int
    stop: int
    columns: tuple[str, ...] | None = None
    in_memory: bool = True
    """Whether to read them once and keep them, or anew for every pass."""

    def open(self) -> Matrix | RowRange:
        """The rows, or a source of them."""
        source = open_path(self.path, self.columns)
        if self.stop > source.n_rows:
            raise DataError(f"{source.name}: has {source.n_rows} rows here, {self.stop} where the fit was started")
        part = RowRange(source, self.start, self.stop)
        return part.whole() if self.in_memory else part


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one part."""

    number: int
    rows: Any
    """A Delayed, or `FileRows`."""
    weights: Any
    """A Delayed, or None."""
    n_rows: int | None
    """None where only loading tells."""
    name: str
    n_bytes: int | None = None
    """Size of the rows, where it is known before they are read."""
    collections: tuple[Any, ...] = ()
    """What the rows and weights are parts of: Dask forgets data that were persisted once nobody refers to them."""


def is_frame(X: Any) -> bool:
    """Whether a collection is a data frame."""
    return hasattr(X, "columns")


def collection_partitions(X: Any, weights: Any = None) -> list[Partition]:
    """One partition for every chunk of rows; `weights` is a collection cut in the same way, or None."""
    sizes: list[int | None]
    if is_frame(X):
        chunks, sizes = X.to_delayed(), [None] * X.npartitions
    else:
        check_table(X.shape, X.dtype, "X")
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})  # a part needs whole rows
        chunks = _chunks(X)
        sizes = [None if np.isnan(size) else int(size) for size in X.chunks[0]]
    own = _weight_chunks(X, weights, len(chunks))
    return [
        Partition(number, rows, weight, size, f"partition {number} of X", collections=(X, weights))
        for number, (rows, weight, size) in enumerate(zip(chunks, own, sizes, strict=True))
    ]


def _chunks(array: Any) -> list[Any]:
    """The chunks of a Dask array as Delayeds.

    Up to version 2025.3 Dask optimises those of persisted data into keys that no task resolves.
    """
    from distributed import futures_of

    chunks: list[Any] = array.to_delayed(optimize_graph=not futures_of(array)).ravel().tolist()
    return chunks


def _weight_chunks(X: Any, weights: Any, n_chunks: int) -> list[Any]:
    if weights is None:
        return [None] * n_chunks
    if not is_frame(X) and not np.isnan(sum(X.chunks[0])) and hasattr(weights, "rechunk"):
        if weights.shape != (X.shape[0],):
            raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(X.shape[0],)}: one per row of X")
        weights = weights.rechunk((X.chunks[0],))
    chunks = _chunks(weights) if hasattr(weights, "rechunk") else list(weights.to_delayed())
    if len(chunks) != n_chunks:
        raise ValueError(
            f"sample_weight has {len(chunks)} partitions and X has {n_chunks}; cut both in the same way, "
            "or pass the weights as a NumPy array"
        )
    return chunks


def file_partitions(files: Files, n_workers: int) -> list[Partition]:
    """A partition for every file; fewer files than two for each worker are cut into ranges of rows."""
    names = list(files.names())
    n_cuts = -(-2 * n_workers // len(names)) if len(names) < 2 * n_workers else 1
    parts: list[Partition] = []
    for path in names:
        source = open_path(path, files.columns)
        cuts = np.linspace(0, source.n_rows, min(n_cuts, source.n_rows) + 1).round().astype(int).tolist()
        for start, stop in pairwise(cuts):
            size = (stop - start) * source.n_columns * source.dtype.itemsize
            rows = FileRows(path, start, stop, files.columns)
            name = f"{source.name}, rows {start} to {stop}"
            parts.append(Partition(len(parts), rows, None, stop - start, name, size))
    return parts


# --- on the worker -------------------------------------------------------------------------------------------------


def rows_from_chunk(chunk: Any, name: str) -> Matrix:
    """The matrix in a chunk: an array, a sparse matrix or a data frame."""
    if sparse.issparse(chunk):
        return cast(Matrix, checked_csr(chunk, name))
    if hasattr(chunk, "columns"):
        if len(chunk) == 0:
            return np.empty((0, len(chunk.columns)), dtype=np.float32)
        return as_source(chunk).whole()
    rows = np.asarray(chunk)
    check_table(rows.shape, rows.dtype, name)
    # what came over the network lies at any address; kernels would convert it block by block in every pass
    return rows if rows.flags.aligned else rows.copy()


def weights_from_chunk(chunk: Any, n_rows: int, name: str) -> F64:
    """Weights that came with the rows of a part, checked."""
    weights = np.ascontiguousarray(chunk, dtype=np.float64)
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight: {name} has {n_rows} rows and weights of shape {weights.shape}")
    if not (weights >= 0).all() or not np.isfinite(weights).all():
        raise ValueError(f"sample_weight: {name} has weights that are negative, NaN or infinite")
    return weights


@dataclass(frozen=True, slots=True)
class PartOptions:
    """How a part is made from its rows."""

    partition: int
    """Number of the partition that the rows are from."""
    n_rows: int
    """Rows that the partition had when it was loaded first."""
    first_row: int
    weights: F64 | None
    """None where the rows have none, or came with their own."""
    unit_rows: bool
    labelled: bool
    """Whether rows of weight 0 are there to be labelled; else they are no rows, and others stand in their place."""
    n_threads: int | None
    """None takes the worker's threads."""
    card: Card | None
    """The cards of the worker on which the rows are to lie, if it is not to compute itself."""
    codes: NDArray[Any] | None
    """Columns of code words that are subtracted from the rows; None where the rows are as they are."""
    books: Codebooks
    """The codebooks that they are words of."""
    version: int
    """What its state counts as: 0 for new data, −r for a part that was made in the r-th repair and has to catch up."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What the client needs to know about a part."""

    total_weight: float
    lacks: dict[Need, str]


@dataclass(slots=True)
class _Host:
    """The parts of one shard on one worker."""

    client_id: str
    raw: dict[int, tuple[Matrix | RowRange, F64 | None]] = field(default_factory=dict)
    """Rows and weights by partition, of which parts are made, maybe more than once."""
    parts: dict[int, Shard] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    """How many changes the state of each part has seen; negative while it catches up."""
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "globular-pass"))
    answered: int = 0
    """Number of the last change that was answered."""
    said: Reply = field(default_factory=Reply)
    """The answer to the last change."""

    def answer(self, request: Request) -> Reply:
        """Do the work on the parts that are asked of this worker."""
        asked = request.route[0].parts
        before = request.number - 1 if request.work.changes else request.number
        known = (-request.replay,) if request.replay else (before, request.number)
        missing = [i for i in asked if self.versions.get(i) not in known]
        if missing:
            return Reply(missing=missing)
        answer = Reply()
        if request.work.changes and self.answered == request.number and not request.replay:
            answer = self.said
        todo = [i for i in asked if request.replay or not request.work.changes or self.versions[i] == before]
        found = self._run(request, todo)
        answer.join(found, request)
        if request.replay:
            return Reply()
        if request.work.changes:
            self.answered, self.said = request.number, answer
        return Reply(dict(answer.sums), dict(answer.singles))

    def _run(self, request: Request, todo: list[int]) -> Reply:
        work, answer = request.work, Reply()
        tree = TreeSum[Any](request.n_parts, work.one.merge) if work.parts is None else None
        for number in todo:
            own = work.of_part(number)
            if own is not None:
                result = self.parts[number].run(own)
                if tree is None:
                    answer.singles[number] = result
                else:
                    tree.insert(0, number, result)
            self.versions[number] = request.number  # also where the change concerned other parts alone
        answer.sums = {} if tree is None else tree.nodes
        return answer


_HOSTS: dict[tuple[str, str], _Host] = {}
"""By worker and shard; several workers may share a process."""


# --- loading -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowsInfo:
    """The shape of a part as it was loaded."""

    n_rows: int
    n_columns: int
    dtype: np.dtype[Any]


def keep_rows(chunk: Any, weights: Any, key: str, client_id: str, partition: int, name: str) -> None:
    """A Dask task: take the rows of a partition (and weights that came with them) into this worker's keeping."""
    from distributed import get_worker

    rows = chunk.open() if isinstance(chunk, FileRows) else rows_from_chunk(chunk, name)
    if not isinstance(rows, RowRange):  # those are checked while they are read
        check_finite(rows, name)
    given = None if weights is None else weights_from_chunk(weights, _describe(rows).n_rows, name)
    host = _HOSTS.setdefault((get_worker().address, key), _Host(client_id))
    host.raw[partition] = (rows, given)


def _describe(rows: Matrix | RowRange) -> RowsInfo:
    if isinstance(rows, RowRange):
        return RowsInfo(rows.n_rows, rows.n_columns, rows.dtype)
    return RowsInfo(int(rows.shape[0]), int(rows.shape[1]), rows.dtype)


async def rows_held(key: str, wanted: dict[int, int], dask_worker: Any = None) -> dict[int, RowsInfo]:
    """The shapes of those parts whose partition was loaded here."""
    host = _HOSTS.get((dask_worker.address, key))
    raw = {} if host is None else host.raw
    return {number: _describe(raw[partition][0]) for number, partition in wanted.items() if partition in raw}


async def make_parts(
    key: str, options: dict[int, PartOptions], dask_worker: Any = None
) -> dict[int, PartInfo] | Exception:
    """Lay shards over those of the rows that were loaded before; they start with a fresh state."""
    host = _HOSTS.get((dask_worker.address, key))
    if host is None:
        return {}

    def make() -> dict[int, PartInfo]:
        held = {number: given for number, given in options.items() if given.partition in host.raw}
        return {number: _make_part(host, number, given, dask_worker) for number, given in held.items()}

    try:
        return await asyncio.get_running_loop().run_in_executor(host.executor, make)
    except Exception as error:  # returned, not raised: one of a file is not one of a connection
        return error


def _make_part(host: _Host, number: int, options: PartOptions, worker: Any) -> PartInfo:
    rows, own_weights = host.raw[options.partition]
    if _describe(rows).n_rows != options.n_rows:
        raise DataError("X: a partition that was made again has another number of rows; its source has changed")
    weights = own_weights if options.weights is None else options.weights
    if weights is not None and not options.labelled:
        rows = _rows_that_count(rows, weights)
        host.raw[options.partition] = rows, own_weights
    n_threads, unit_rows = options.n_threads or worker.state.nthreads, options.unit_rows
    seen: Any = rows
    if options.codes is not None:
        seen = Residuals(as_source(rows), options.codes, options.books, unit_rows=unit_rows, n_threads=n_threads)
        unit_rows = False
    shard = shard_over(
        seen, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=options.first_row, card=options.card
    )
    host.parts[number], host.versions[number] = shard, options.version
    return PartInfo(shard.total_weight, dict(shard.lacks))


def _rows_that_count(rows: Any, weights: F64) -> Any:
    """The rows, with the next one of positive weight in place of each of weight 0: so that all keep their numbers."""
    counted = np.flatnonzero(weights > 0)
    if len(counted) in (0, len(weights)):
        return rows
    numbers = counted[np.minimum(np.searchsorted(counted, np.arange(len(weights))), len(counted) - 1)]
    return choose_rows(rows, numbers)


async def drop_parts(key: str, dask_worker: Any = None) -> None:
    """Forget a shard."""
    host = _HOSTS.pop((dask_worker.address, key), None)
    if host is not None:
        host.executor.shutdown(wait=False)


async def drop_orphans(client_ids: list[str], dask_worker: Any = None) -> None:
    """Forget the shards of clients that are gone."""
    mine = [key for (address, key) in _HOSTS if address == dask_worker.address]
    for key in mine:
        if _HOSTS[dask_worker.address, key].client_id not in client_ids:
            await drop_parts(key, dask_worker)


# --- answering -----------------------------------------------------------------------------------------------


async def serve(request: Request, dask_worker: Any = None) -> Reply:
    """Do the own part of a request while the other workers of the route do theirs, and put the answers together."""
    onward = [asyncio.ensure_future(pass_on(dask_worker.rpc, part)) for part in request.onward()]
    answer = await _answer(request, dask_worker)
    for other in onward:
        answer.join(await other, request)
    return answer


async def _answer(request: Request, worker: Any) -> Reply:
    host = _HOSTS.get((worker.address, request.key))
    if host is None:
        return Reply(missing=list(request.route[0].parts))
    try:
        return await asyncio.get_running_loop().run_in_executor(host.executor, host.answer, request)
    except Exception as error:  # travels to the client and is raised there
        return Reply(error=error)


async def pass_on(rpc: Any, request: Request) -> Reply:
    """Have the first worker of a request's route serve it; `rpc` are the connections of a worker or a client."""
    address = request.route[0].address
    try:
        reply = await rpc(address).run(function=pickle.dumps(serve), args=pickle.dumps((request,), 5))
    except (OSError, RuntimeError):  # the latter from connections that are closed on this side
        return Reply(lost=[address])
    if reply["status"] != "OK":
        return Reply(error=RuntimeError(f"{address}: {reply.get('text', reply)}"))
    return cast(Reply, reply["result"])
