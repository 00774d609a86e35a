"""From what a user hands over to rows on a card, and back."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from globular.backends.torch.arrays import DeviceArray
from globular.backends.torch.device import find_device
from globular.backends.torch.shard import TorchShard
from globular.data.blocks import Source
from globular.data.some_rows import check_rows
from globular.errors import DataError, MemoryBudgetError
from globular.model.statistics import F64

logger = logging.getLogger("globular")

ROWS_PER_COPY = 1 << 16
COPIES_OF_CENTERS = 160
"""Bytes for every number of the centres: parameters, sums, velocities and products of several precisions."""
SPARE_BYTES = 1 << 30


def tensor_of(X: Any) -> Any:
    """A tensor on a card, of torch or of whoever speaks DLPack, as one of torch; nothing is copied."""
    return X.detach() if isinstance(X, torch.Tensor) else torch.from_dlpack(X)


def rows_on_card(X: Any, name: str) -> Any:
    """Rows as a tensor on the device of this name: from a tensor there, an array, or a source, block by block."""
    device = find_device(name)
    if isinstance(X, Source):
        return _read(X, device)
    if isinstance(X, np.ndarray):
        return torch.as_tensor(X if X.flags.writeable else X.copy()).to(device)
    rows = tensor_of(X).to(device)
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"X must have two dimensions and at least one row and column, got shape {tuple(rows.shape)}")
    if rows.dtype.is_complex:
        raise ValueError("X: complex data are not supported")
    if rows.dtype.is_floating_point:
        for begin in range(0, len(rows), 1 << 20):
            finite = torch.isfinite(rows[begin : begin + (1 << 20)]).all(dim=1)
            if not bool(finite.all()):
                row = begin + int(torch.nonzero(~finite)[0, 0])
                raise ValueError(f"X contains NaN or infinity, first in row {row} (the first row is 0)")
    return rows


def _read(source: Source, device: Any) -> Any:
    if source.is_sparse:
        raise DataError(f"{source.name}: sparse rows do not go to a GPU; use device='cpu'")
    rows: Any = None
    for block in source.blocks(ROWS_PER_COPY):
        check_rows(block.rows, source, np.arange(block.start, block.stop))
        some = torch.as_tensor(np.ascontiguousarray(block.rows))
        if rows is None:
            rows = torch.empty((source.n_rows, source.n_columns), dtype=some.dtype, device=device)
        rows[block.start : block.stop] = some.to(device)
    return rows


def shard_on_card(rows: Any, weights: F64 | None, *, unit_rows: bool, n_threads: int) -> TorchShard:
    """A shard over rows that lie on a card."""
    return TorchShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads)


def check_card_memory(rows: Any, n_clusters: int, bytes_per_row: int) -> None:
    """Say beforehand how much memory of the card a fit takes beside X, and refuse what it does not have.

    `bytes_per_row` are those of state, orders and nominees that passes hold for every row, at most.
    """
    n, D = rows.shape
    n_bytes = bytes_per_row * n + COPIES_OF_CENTERS * n_clusters * D + min(8 * n * D, 1 << 30) + SPARE_BYTES
    logger.info("the fit, beside X, on %s: up to %.1f MiB", rows.device, n_bytes / 2**20)
    if rows.device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(rows.device)[0]
    free += torch.cuda.memory_reserved(rows.device) - torch.cuda.memory_allocated(rows.device)
    if n_bytes > free:
        raise MemoryBudgetError(
            f"the fit, beside X, would take {n_bytes / 2**30:,.1f} GiB of the card, {free / 2**30:,.1f} are free; take "
            "fewer clusters, or use device='cpu'"
        )


def beside(X: Any, values: Any) -> Any:
    """Values as a tensor beside X, of the kind that X is."""
    rows = tensor_of(X)
    on_card = isinstance(values, DeviceArray)
    tensor = (values.tensor if on_card else torch.as_tensor(np.asarray(values))).to(rows.device)
    if isinstance(X, torch.Tensor):
        return tensor
    cupy = __import__(type(X).__module__.split(".")[0])
    return cupy.from_dlpack(tensor) if hasattr(cupy, "from_dlpack") else tensor
