"""From what a user hands over to rows on a card, and back; of rows larger than the card, part by part for every pass.

Such rows come from the memory of the host, or from files. Per-row state and C-sized values stay on the card. While the
passes work on one part, a thread reads the next into memory that the card can fetch from by itself, and a stream of its
own copies it. Memory of the card: three parts, the state (some tens of bytes a row) and what C×D needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from globular.data.blocks import RowBlock, Source, working_dtype
from globular.data.residuals import Residuals
from globular.data.sources import ArraySource, check_rows
from globular.errors import DataError, DeviceError, MemoryBudgetError
from globular.model.statistics import F64
from globular.passes.torch.arrays import DeviceArray, tensor_dtype
from globular.passes.torch.shard import CardShard, TorchShard, exact_type
from globular.seam.among import Need
from globular.seam.passes import Index
from globular.threads import default_threads, even_ranges, read_ahead, run_all

READ_ANEW = "rows that are copied to the card anew remember nothing"
PART_BYTES = 256 * 2**20
"""Bytes of a part: enough for a pass to take longer than its launch."""
NUMBERS_PER_COPY = 1 << 21
"""Numbers that a thread copies at once."""
PARTS_AT_ONCE = 3
"""One that is worked on, one that waits, and one on its way."""


class StreamedShard(CardShard):
    """A source, or an array, whose rows are copied to a device anew for every pass."""

    def __init__(self, source: Any, weights: Any, device: Any, *, unit_rows: bool = False) -> None:
        self._source: Source = source if isinstance(source, Source) else ArraySource(source)
        self._unit_rows, self._checked = unit_rows, self._source is not source  # arrays have been looked through
        shape = self._source.n_rows, self._source.n_columns
        super().__init__(shape, weights, device, exact_type(tensor_dtype(working_dtype(source.dtype))))
        self._rows_per_part = max(1, PART_BYTES // (self.n_columns * source.dtype.itemsize))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def parts(self) -> Iterator[TorchShard]:
        for sent in read_ahead(map(self._send, self._source.blocks(self._rows_per_part))):
            weights = None if self.w is None else self.w[sent.rows]
            state = self.state.view(sent.rows.start, sent.rows.stop)
            first = self.first_row + sent.rows.start
            yield TorchShard(sent.arrived(), weights, unit_rows=self._unit_rows, state=state, first_row=first)
        self._checked = True

    def left(self, codes: Any, books: Any) -> StreamedShard:
        """See `Shard.left`: words are subtracted before rows are copied to the card."""
        threads = default_threads()
        left = Residuals(self._source, codes, books, unit_rows=self._unit_rows, n_threads=threads)
        return StreamedShard(left, self.w, self.device)

    def _send(self, block: RowBlock) -> _Sent:
        """Begin to copy a block; called by the thread that reads ahead."""
        if not self._checked:
            check_rows(block.rows, self._source, np.arange(block.start, block.stop))
        numbers = slice(block.start, block.stop)
        if self._stream is None:
            return _Sent(numbers, _as_tensor(block.rows, pin=False))
        held = _as_tensor(block.rows, pin=True)
        with torch.cuda.stream(self._stream):
            return _Sent(numbers, held.to(self.device, non_blocking=True), held, self._stream.record_event())

    @property
    def lacks(self) -> Mapping[Need, str]:
        return {**super().lacks, Need.STAY: READ_ANEW}

    def subset(self, indices: Index) -> TorchShard:
        chosen = np.asarray(indices)
        rows = self._source.take(chosen)
        weights = None if self.w is None else self.w[self.tensor(chosen, torch.int64)]
        return TorchShard(_as_tensor(rows, pin=False).to(self.device), weights, unit_rows=self._unit_rows)

    def take_rows(self, indices: Index) -> F64:
        return self.give(self.subset(indices).take_tensor(slice(None)))


@dataclass
class _Sent:
    """Rows on their way to the card."""

    rows: slice
    tensor: Any
    held: Any = None
    """Where they are copied from."""
    event: Any = None
    """When they have been."""

    def arrived(self) -> Any:
        """The rows; what is launched from now on waits for them, and their memory for that."""
        if self.event is not None:
            now = torch.cuda.current_stream(self.tensor.device)
            now.wait_event(self.event)
            self.tensor.record_stream(now)
        return self.tensor


def _as_tensor(rows: Any, *, pin: bool) -> Any:
    """Rows as a tensor of the host's memory of their own, from which a card may copy by itself if it is pinned."""
    values = np.asarray(rows)
    tensor = torch.empty(values.shape, dtype=tensor_dtype(values.dtype), pin_memory=pin)
    out = tensor.numpy()

    def copy(span: tuple[int, int]) -> None:
        out[slice(*span)] = values[slice(*span)]

    # one thread copies more slowly than the card does
    run_all(copy, even_ranges(len(out), 1 + NUMBERS_PER_COPY // max(1, out.shape[1])), default_threads())
    return tensor


logger = logging.getLogger("globular")

ROWS_PER_COPY = 1 << 16
COPIES_OF_CENTERS = 160
"""Bytes for every number of the centres: parameters, sums, velocities and products of several precisions."""
SPARE_BYTES = 1 << 30


def find_device(name: str) -> Any:
    """The torch device of this name: "cuda", "cuda:1", or "torch-cpu", which is for tests."""
    if name == "torch-cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(f"device={name!r}: torch sees no CUDA card here; use device='cpu'")
    number = int(name[5:]) if ":" in name else torch.cuda.current_device()
    if number >= torch.cuda.device_count():
        raise DeviceError(f"device={name!r}: there are {torch.cuda.device_count()} cards, numbered from 0")
    return torch.device("cuda", number)


def tensor_of(X: Any) -> Any:
    """A tensor on a card, of torch or of whoever speaks DLPack, as one of torch; nothing is copied."""
    return X.detach() if isinstance(X, torch.Tensor) else torch.from_dlpack(X)


def rows_on_card(X: Any, name: str, n_clusters: int, bytes_per_row: int) -> Any:
    """Rows as a tensor on the device of this name: from a tensor there, an array, or a source, block by block.

    An array or a source that the card cannot hold beside what a fit takes is returned as it is: it will be streamed.
    """
    device = find_device(name)
    if not isinstance(X, Source | np.ndarray):
        return _checked_tensor(tensor_of(X).to(device))
    if isinstance(X, Source) and X.is_sparse:
        raise DataError(f"{X.name}: sparse rows do not go to a GPU; use device='cpu'")
    n, D = (X.n_rows, X.n_columns) if isinstance(X, Source) else X.shape
    n_bytes = n * D * tensor_dtype(X.dtype).itemsize
    if n_bytes + _bytes_beside(n, D, n_clusters, bytes_per_row) > free_bytes(device):
        logger.info("X, %.1f MiB, is larger than %s has room for: streamed", n_bytes / 2**20, device)
        return X
    if isinstance(X, np.ndarray):
        return torch.as_tensor(X if X.flags.writeable else X.copy()).to(device)
    return _read(X, device)


def _checked_tensor(rows: Any) -> Any:
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
    rows: Any = None
    for block in source.blocks(ROWS_PER_COPY):
        check_rows(block.rows, source, np.arange(block.start, block.stop))
        some = torch.as_tensor(np.ascontiguousarray(block.rows))
        if rows is None:
            rows = torch.empty((source.n_rows, source.n_columns), dtype=some.dtype, device=device)
        rows[block.start : block.stop] = some.to(device)
    return rows


def shard_on_card(rows: Any, weights: F64 | None, device: str, *, unit_rows: bool) -> CardShard:
    """A shard over rows that lie on a card, or are to be streamed to it."""
    if isinstance(rows, torch.Tensor):
        return TorchShard(rows, weights, unit_rows=unit_rows)
    return StreamedShard(rows, weights, find_device(device), unit_rows=unit_rows)


def free_bytes(device: Any) -> float:
    """Memory of a card that nobody holds, or that torch holds for us."""
    if device.type != "cuda":
        return float("inf")
    free = torch.cuda.mem_get_info(device)[0]
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _bytes_beside(n_rows: int, n_columns: int, n_clusters: int, bytes_per_row: int) -> int:
    """What a fit takes of a card beside X; `bytes_per_row` for the state, orders and nominees of every row, at most."""
    copies = min(8 * n_rows * n_columns, 1 << 30)
    return bytes_per_row * n_rows + COPIES_OF_CENTERS * n_clusters * n_columns + copies + SPARE_BYTES


def check_card_memory(shard: CardShard, n_clusters: int, bytes_per_row: int) -> None:
    """Say beforehand how much memory of the card a fit takes beside X, and refuse what it does not have."""
    n_bytes = _bytes_beside(shard.n_rows, shard.n_columns, n_clusters, bytes_per_row)
    if isinstance(shard, StreamedShard):
        n_bytes += PARTS_AT_ONCE * PART_BYTES
    logger.info("the fit, beside X, on %s: up to %.1f MiB", shard.device, n_bytes / 2**20)
    free = free_bytes(shard.device)
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
