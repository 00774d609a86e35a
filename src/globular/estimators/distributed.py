"""Input on Dask workers: a shard for a fit over Dask collections and files, and answers that stay lazy."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from globular.backends.dask import DaskShard
from globular.backends.dask.cluster import Cluster
from globular.backends.dask.partitions import (
    FilesOnWorkers,
    Partition,
    collection_partitions,
    file_partitions,
    is_collection,
    is_frame,
    rows_from_chunk,
    streamed,
)
from globular.data.memory import physical_memory
from globular.errors import DataError, MissingExtraError
from globular.model.statistics import F64

logger = logging.getLogger("globular")

Method = TypeVar("Method", bound=Callable[..., Any])
WORKER_SHARE = 0.25
"""Files up to this share of the workers' memory are kept there; larger ones are read anew for every pass."""
_SMALL_MODEL = 1 << 20
"""Bytes up to which a model may be a part of a task graph."""


def current_client() -> Any | None:
    """The Dask client in whose context we are, if any."""
    distributed = sys.modules.get("distributed")  # not loaded: nobody can have made a client
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def files_on_workers(X: Any) -> FilesOnWorkers | None:
    """Several files or a folder, if there is a client whose workers can read them."""
    if isinstance(X, FilesOnWorkers):
        return X
    several = is_list_of_paths(X)
    if not (several or (isinstance(X, str | Path) and Path(X).expanduser().is_dir())) or current_client() is None:
        return None
    return FilesOnWorkers(tuple(map(str, X))) if several else FilesOnWorkers.of(X)


def is_list_of_paths(X: Any) -> bool:
    """Whether X is a list of names of files."""
    return isinstance(X, list | tuple) and bool(X) and all(isinstance(item, str | Path) for item in X)


def sample_of(X: Any, *, accept_sparse: bool) -> Any:
    """One row that has the columns and types of a collection, for validation."""
    if is_frame(X):
        words = [str(name) for name, dtype in X.dtypes.items() if getattr(dtype, "kind", "O") not in "biuf"]
        if words:
            raise DataError(
                f"X: columns that are not numbers: {', '.join(words)}; drop or encode them first, e.g. "
                'X.select_dtypes("number")'
            )
        return X._meta_nonempty.iloc[:1]
    if sparse.issparse(X._meta) and not accept_sparse:
        raise TypeError("X is a Dask array of sparse chunks, and this estimator needs dense rows")
    return np.zeros((1, X.shape[1]), dtype=X.dtype) if X.ndim == 2 else np.zeros((1,) * X.ndim, dtype=X.dtype)


def open_shard(
    X: Any, weights: F64 | None, weight_collection: Any, *, unit_rows: bool, labelled: bool, n_threads: int | None
) -> DaskShard:
    """Put a shard over a collection, or over files, on the workers of the current client."""
    client = _require_client()
    if isinstance(X, FilesOnWorkers):
        cluster = Cluster(client)
        partitions = _with_memory(cluster, file_partitions(X, len(cluster.wait_for_workers())))
    else:
        partitions = collection_partitions(X, weight_collection)
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
    return [streamed(part) for part in partitions]


def _memory_limit(dask_worker: Any = None) -> int:
    return int(dask_worker.memory_manager.memory_limit or physical_memory())


# --- answers for every row -----------------------------------------------------------------------------------------


def lazily(method: Method) -> Method:
    """Let a method with one answer per row of X return a lazy Dask array for a Dask collection."""

    @wraps(method)
    def answer(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if is_collection(X):
            return _lazy_rows(self, method.__name__, X, args, kwargs)
        return method(self, X, *args, **kwargs)

    return cast(Method, answer)


def _lazy_rows(estimator: Any, name: str, X: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The answers of a method, computed chunk by chunk when they are asked for."""
    import dask
    import dask.array as da

    check_is_fitted(estimator)
    model = _slim(estimator)
    sample = getattr(model, name)(sample_of(X, accept_sparse=True), *args, **kwargs)
    sent = _sendable(model)
    if is_frame(X):
        answer = dask.delayed(_answer_chunk, pure=True)
        chunks = [
            da.from_delayed(answer(chunk, sent, name, args, kwargs), (np.nan, *sample.shape[1:]), dtype=sample.dtype)
            for chunk in X.to_delayed()
        ]
        return da.concatenate(chunks, axis=0, allow_unknown_chunksizes=True)
    X = X.rechunk({1: -1})
    width = {"drop_axis": 1} if sample.ndim == 1 else {"chunks": (X.chunks[0], (sample.shape[1],))}
    return da.map_blocks(_answer_chunk, X, sent, name, args, kwargs, dtype=sample.dtype, meta=sample[:0], **width)


def _answer_chunk(chunk: Any, model: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if chunk.shape[0] == 0:  # estimators refuse to answer for no rows
        one = np.zeros((1, chunk.shape[1]))
        return getattr(model, name)(one, *args, **kwargs)[:0]
    return getattr(model, name)(chunk if hasattr(chunk, "columns") else rows_from_chunk(chunk, "X"), *args, **kwargs)


def _slim(estimator: Any) -> Any:
    """A copy that answers the same without what is as long as the training data; one thread, as a task has."""
    model = copy.copy(estimator)
    for name in ("labels_", "history_", "lower_bounds_"):
        vars(model).pop(name, None)
    return model.set_params(callbacks=None, n_threads=estimator.n_threads or 1)


def _sendable(model: Any) -> Any:
    """The model for a task graph: a part of it if it is small, else sent to the cluster beforehand.

    It is sent as the result of a task, which the scheduler repeats if the worker that has it dies.
    """
    import dask

    size = sum(value.nbytes for value in vars(model).values() if isinstance(value, np.ndarray))
    client = current_client()
    if size <= _SMALL_MODEL or client is None:
        return dask.delayed(model, pure=False, traverse=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")  # what it warns of is meant: it is sent once
        return client.submit(_itself, model, pure=False)


def _itself(model: Any) -> Any:
    return model
