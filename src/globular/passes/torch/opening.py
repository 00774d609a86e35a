"""From what a user hands over to rows on cards, and back; of rows larger than a card, part by part for every pass.

Such rows come from the memory of the host, or from files. Per-row state and C-sized values stay on the card, and as
many of the parts as it has room for. While the passes work on one part, threads read the next into memory that the card
can fetch from by itself, and a stream of its own copies it; a file that is decoded in long segments is read by a single
thread, ahead of that. Parts follow each other in the order of their rows, so results do not depend on the room.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from globular.data.blocks import Source, working_dtype
from globular.data.residuals import Residuals
from globular.data.sources import ArraySource, RowRange, check_rows
from globular.data.streamed import starts_of_segments
from globular.errors import DataError, DeviceError, MemoryBudgetError
from globular.model.statistics import F64
from globular.passes.torch.arrays import DeviceArray, tensor_dtype
from globular.passes.torch.cards import CardsShard
from globular.passes.torch.shard import CardShard, TorchShard, exact_type
from globular.seam.among import Need
from globular.seam.passes import Index
from globular.threads import default_threads, even_ranges, read_ahead, run_all

READ_ANEW = "rows that are copied to the card anew remember nothing"
PART_BYTES = 256 * 2**20
"""Bytes of a part: enough for a pass to take longer than its launch."""
NUMBERS_PER_COPY = 1 << 21
"""Numbers that a thread reads or copies at once."""
PARTS_AT_ONCE = 3
"""One that is worked on, one that waits, and one on its way."""


class StreamedShard(CardShard):
    """A source, or an array, in parts, of which as many stay on a device as fit into `room` bytes of it."""

    def __init__(self, source: Any, weights: Any, device: Any, *, unit_rows: bool = False, room: float = 0.0) -> None:
        self._source: Source = source if isinstance(source, Source) else ArraySource(source)
        self._unit_rows, self._checked = unit_rows, self._source is not source  # arrays have been looked through
        shape = self._source.n_rows, self._source.n_columns
        super().__init__(shape, weights, device, exact_type(tensor_dtype(working_dtype(source.dtype))))
        self._rows_per_part = rows_per_part(self._source)
        self._spans = even_ranges(self.n_rows, self._rows_per_part)
        starts = starts_of_segments(self._source)
        self._cuts = None if getattr(self._source, "seeks", False) else starts
        self._seeks = self._cuts is None or 2 * np.diff(starts, append=self.n_rows).max() <= self._rows_per_part
        """Whether threads read a part side by side; if segments are long, one reads them from the first to the last."""
        n, part_bytes = len(self._spans), self._rows_per_part * bytes_of_row(self._source)
        n_kept = int(min(n, max(0.0, room) // part_bytes))
        evenly = [part for part in range(n) if (part + 1) * n_kept // n > part * n_kept // n]
        self._kept: dict[int, Any] = dict.fromkeys(evenly if self._seeks else range(n - n_kept, n))
        """The parts that stay, once they are there: between others, that are copied meanwhile."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def parts(self) -> Iterator[TorchShard]:
        anew = [span for part, span in enumerate(self._spans) if self._kept.get(part) is None]
        sent = read_ahead(map(self._send, self._read(anew)))
        for part, (begin, end) in enumerate(self._spans):
            rows = self._kept.get(part)
            if rows is None:
                rows = next(sent).arrived()
                if part in self._kept:
                    self._kept[part] = rows
            weights, state = None if self.w is None else self.w[begin:end], self.state.view(begin, end)
            first = self.first_row + begin
            yield TorchShard(rows, weights, unit_rows=self._unit_rows, state=state, first_row=first)
        self._checked = True

    def left(self, codes: Any, books: Any) -> StreamedShard:
        """See `Shard.left`: words are subtracted before rows are copied to the card."""
        threads = default_threads()
        left = Residuals(self._source, codes, books, unit_rows=self._unit_rows, n_threads=threads)
        return StreamedShard(left, self.w, self.device)

    def _read(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Any]]:
        """The number of the first row of every part, and its rows in memory that the card fetches from by itself."""
        pin = self._stream is not None
        if self._seeks:
            yield from ((begin, _loaded(self._source, begin, end, pin=pin, cuts=self._cuts)) for begin, end in spans)
        elif spans:  # neighbours, from the first part on
            for block in read_ahead(self._source.blocks(self._rows_per_part, spans[0][0], spans[-1][1])):
                yield block.start, _as_tensor(block.rows, pin=pin)

    def _send(self, part: tuple[int, Any]) -> _Sent:
        """Begin to copy a part; called by the thread that reads ahead."""
        begin, held = part
        if not self._checked:
            check_rows(held.numpy(), self._source, np.arange(begin, begin + len(held)))
        if self._stream is None:
            return _Sent(held)
        with torch.cuda.stream(self._stream):
            return _Sent(held.to(self.device, non_blocking=True), held, self._stream.record_event())

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
    return _loaded(ArraySource(np.asarray(rows)), 0, len(rows), pin=pin)


def _loaded(source: Source, begin: int, end: int, *, pin: bool, cuts: Index | None = None) -> Any:
    """Rows as a tensor of the host's memory of their own, from which a card may copy by itself if it is pinned.

    Threads begin to read anywhere, or at the `cuts`.
    """
    tensor = torch.empty((end - begin, source.n_columns), dtype=tensor_dtype(source.dtype), pin_memory=pin)
    out = tensor.numpy()

    def read(span: tuple[int, int]) -> None:
        for block in source.blocks(span[1] - span[0], begin + span[0], begin + span[1]):
            out[block.start - begin : block.stop - begin] = block.rows

    spans = even_ranges(len(out), 1 + NUMBERS_PER_COPY // max(1, out.shape[1]))
    if cuts is not None:
        spans = list(pairwise([0, *(cuts[(cuts > begin) & (cuts < end)] - begin).tolist(), len(out)]))
    run_all(read, spans, default_threads())  # one thread reads more slowly than the card does
    return tensor


logger = logging.getLogger("globular")

COPIES_OF_CENTERS = 160
"""Bytes for every number of the centres: parameters, sums, velocities and products of several precisions."""
STATE_BYTES = 64
"""Bytes for every row where rows are streamed: state, and running sums of it. Other temporaries are those of a part."""
STATE_SHARE = 16
"""Bytes that a row of a fit takes for each byte of its state; larger = less state is foretold."""
SPARE_BYTES = 1 << 30


def find_devices(name: str | Sequence[str]) -> list[Any]:
    """The torch devices of these names: "cuda", "cuda:1", "cuda:all", or "torch-cpu", which is for tests."""
    if not isinstance(name, str):
        return [device for each in name for device in find_devices(each)]
    if name == "torch-cpu":
        return [torch.device("cpu")]
    if not torch.cuda.is_available():
        raise DeviceError(f"device={name!r}: torch sees no CUDA card here; use device='cpu'")
    n_cards = torch.cuda.device_count()
    if name == "cuda:all":
        return [torch.device("cuda", number) for number in range(n_cards)]
    number = int(name[5:]) if ":" in name else torch.cuda.current_device()
    if number >= n_cards:
        raise DeviceError(f"device={name!r}: there are {n_cards} cards, numbered from 0")
    return [torch.device("cuda", number)]


def tensor_of(X: Any) -> Any:
    """A tensor on a card, of torch or of whoever speaks DLPack, as one of torch; nothing is copied."""
    return X.detach() if isinstance(X, torch.Tensor) else torch.from_dlpack(X)


def rows_for_cards(X: Any) -> Any:
    """A tensor on a card, checked; an array or a source as it is."""
    if not isinstance(X, Source | np.ndarray):
        return _checked_tensor(tensor_of(X))
    if isinstance(X, Source) and X.is_sparse:
        raise DataError(f"{X.name}: sparse rows do not go to a GPU; use device='cpu'")
    return X


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


def _copied(rows: Any, device: Any) -> Any:
    """An array or a source as one tensor on a device."""
    n, D = _shape_of(rows)
    whole = torch.empty((n, D), dtype=tensor_dtype(rows.dtype), device=device)
    for part in StreamedShard(rows, None, device).parts():
        whole[part.first_row : part.first_row + part.n_rows] = part.x
    return whole


def _shape_of(rows: Any) -> tuple[int, int]:
    return (rows.n_rows, rows.n_columns) if isinstance(rows, Source) else rows.shape


def shard_on_cards(
    rows: Any,
    weights: F64 | None = None,
    device: str | Sequence[str] = "cuda",
    n_clusters: int = 1,
    bytes_per_row: int = STATE_BYTES,
    *,
    unit_rows: bool = False,
    is_fit: bool = False,
    first_row: int = 0,
) -> TorchShard | StreamedShard | CardsShard:
    """A shard over rows that lie on a card, are copied to one or several, or have no room there and are streamed.

    A fit takes `bytes_per_row` of a card's memory, beside the row itself. It says beforehand how much it takes, and is
    refused what a card does not have.
    """
    n = _shape_of(rows)[0]
    devices = find_devices(device)[:n]
    rooms = [free_bytes(card) / devices.count(card) for card in devices]
    cuts = np.linspace(0, n, len(devices) + 1).round().astype(int).tolist()
    parts: list[Any] = []
    for card, room, begin, end in zip(devices, rooms, cuts[:-1], cuts[1:], strict=True):
        some = RowRange(rows, begin, end) if isinstance(rows, Source) else rows[begin:end]
        own = None if weights is None else weights[begin:end]
        parts.append(Plan(card, room, n_clusters, bytes_per_row, is_fit).shard(some, own, unit_rows=unit_rows))
        parts[-1].first_row = first_row + begin
    return parts[0] if len(parts) == 1 else CardsShard(parts)


@dataclass(frozen=True)
class Plan:
    """How much of a card's memory is there for some rows, and what a fit takes of it."""

    device: Any
    room: float
    n_clusters: int
    bytes_per_row: int
    is_fit: bool

    def shard(self, rows: Any, weights: F64 | None, *, unit_rows: bool) -> TorchShard | StreamedShard:
        """A shard over the rows: all of them on the card, or in parts."""
        n, D = _shape_of(rows)
        n_bytes, beside = n * bytes_of_row(rows), self._beside(n, D)
        is_there = isinstance(rows, torch.Tensor) and rows.device == self.device
        if isinstance(rows, torch.Tensor) or n_bytes + beside <= self.room:
            self._check(beside, 0 if is_there else n_bytes)
            there = rows.to(self.device) if isinstance(rows, torch.Tensor) else _copied(rows, self.device)
            return TorchShard(there, weights, unit_rows=unit_rows)
        n_part = min(n, rows_per_part(rows))
        part_bytes = n_part * bytes_of_row(rows)
        beside = (STATE_BYTES + self.bytes_per_row // STATE_SHARE) * n + self._beside(n_part, D)
        beside += PARTS_AT_ONCE * part_bytes
        stays = min(n_bytes, max(0, int((self.room - beside) // part_bytes)) * part_bytes)
        logger.info(
            "X, %.1f MiB, is larger than %s has room for: streamed, of which %.1f MiB stay there", n_bytes / 2**20,
            self.device, stays / 2**20,
        )  # fmt: skip
        self._check(beside, 0)
        return StreamedShard(rows, weights, self.device, unit_rows=unit_rows, room=self.room - beside)

    def _beside(self, n_rows: int, n_columns: int) -> int:
        """What a fit takes beside X: the state, orders and nominees of every row, and C-sized values, at most."""
        copies = min(8 * n_rows * n_columns, 1 << 30)
        return self.bytes_per_row * n_rows + COPIES_OF_CENTERS * self.n_clusters * n_columns + copies + SPARE_BYTES

    def _check(self, beside: int, n_bytes: int) -> None:
        """Say how much memory of the card a fit takes beside X, and refuse what it does not have beside `n_bytes`."""
        if not self.is_fit:
            return
        logger.info("the fit, beside X, on %s: up to %.1f MiB", self.device, beside / 2**20)
        if beside > (free := self.room - n_bytes):
            raise MemoryBudgetError(
                f"the fit, beside X, would take {beside / 2**30:,.1f} GiB of the card, {free / 2**30:,.1f} are free; "
                "take fewer clusters, or use device='cpu'"
            )


def bytes_of_row(rows: Any) -> int:
    """Bytes of a row of an array, a tensor or a source as a tensor."""
    dtype = rows.dtype if isinstance(rows, torch.Tensor) else tensor_dtype(rows.dtype)
    return int(_shape_of(rows)[1] * dtype.itemsize)


def rows_per_part(rows: Any) -> int:
    """Rows of a part where they are streamed."""
    return max(1, PART_BYTES // bytes_of_row(rows))


def free_bytes(device: Any) -> float:
    """Memory of a card that nobody holds, or that torch holds for us."""
    if device.type != "cuda":
        return float("inf")
    free = torch.cuda.mem_get_info(device)[0]
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def beside(X: Any, values: Any) -> Any:
    """Values as a tensor beside X, of the kind that X is."""
    rows = tensor_of(X)
    on_card = isinstance(values, DeviceArray)
    tensor = (values.tensor if on_card else torch.as_tensor(np.asarray(values))).to(rows.device)
    if isinstance(X, torch.Tensor):
        return tensor
    cupy = __import__(type(X).__module__.split(".")[0])
    return cupy.from_dlpack(tensor) if hasattr(cupy, "from_dlpack") else tensor
