"""Rows that lie elsewhere: on the card that a fit runs on then, or in Dask collections, whose answers stay lazy.

Nothing imports torch unless a card is asked for or X lies on one.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from globular.data.open import are_not_numbers, is_collection
from globular.errors import DataError, DeviceError
from globular.estimators.parameters import DEVICE
from globular.passes.dask import current_client
from globular.passes.dask.workers import is_frame, rows_from_chunk
from globular.passes.registry import cards

logger = logging.getLogger("globular")

_CUDA = 2
"""DLPack's number of devices of that kind."""
Method = TypeVar("Method", bound=Callable[..., Any])
_SMALL_MODEL = 1 << 20
"""Bytes up to which a model may be a part of a task graph."""


def lies_on_card(X: Any) -> bool:
    """Whether X is a tensor on a CUDA card, of torch, CuPy or whoever speaks DLPack."""
    if isinstance(X, np.ndarray) or not hasattr(X, "__dlpack_device__"):
        return False
    return int(X.__dlpack_device__()[0]) == _CUDA


def device_for(estimator: Any, X: Any) -> str | Sequence[str]:
    """ "cpu", or the names of the cards that a fit or a prediction runs on."""
    on_card = lies_on_card(X)
    if not hasattr(estimator, "device"):
        if on_card:
            raise DeviceError(
                f"{type(estimator).__name__} does not run on GPUs: pass X as an array of NumPy, or take "
                f"{estimator._on_cards}"
            )
        return "cpu"
    wanted = estimator.device
    if not DEVICE.is_satisfied_by(wanted):  # one that was set after the fit
        raise ValueError(f"device must be {DEVICE}, got {wanted!r}")
    if wanted == "cpu" and on_card:
        raise DeviceError("X lies on a GPU and device='cpu'; pass X as an array of NumPy, or leave device='auto'")
    if wanted != "auto" or not on_card:
        return "cpu" if wanted == "auto" else cast(str | Sequence[str], wanted)
    name = f"cuda:{X.__dlpack_device__()[1]}"
    logger.info("device='auto' chose %s, where X lies", name)
    return name


def where_x_is(X: Any, values: Any) -> Any:
    """Values for every row: as an array, or as a tensor on the card of X."""
    return cards().beside(X, values) if lies_on_card(X) else np.asarray(values)


def on_host(X: Any) -> Any:
    """A tensor on a card as an array; anything else as it is."""
    return cards().tensor_of(X).cpu().numpy() if lies_on_card(X) else X


def sample_of(X: Any) -> Any:
    """One row that has the columns and types of a collection, for validation."""
    if is_frame(X):
        if message := are_not_numbers(X):
            raise DataError(message)
        return X._meta_nonempty.iloc[:1]
    row = np.zeros((1, X.shape[1]) if X.ndim == 2 else (1,) * X.ndim, dtype=X.dtype)
    return sparse.csr_array(row) if sparse.issparse(X._meta) else row


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
    if kwargs.get("return_distance") or kwargs.get("out") is not None:
        raise TypeError("X is a Dask collection, whose answers are one lazy array: leave out return_distance= and out=")
    model = _slim(estimator)
    here = copy.copy(model)
    if hasattr(here, "device"):
        here.device = "cpu"  # cards are those of the workers
    sample = getattr(here, name)(sample_of(X), *args, **kwargs)
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
    for name in ("labels_", "component_labels_", "codes_", "history_", "lower_bounds_"):
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
