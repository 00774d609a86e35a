"""Rows larger than the card: they come from the memory of the host, or from files, part by part for every pass.

Per-row state and C-sized values stay on the card. While the passes work on one part, a thread reads the next into
memory that the card can fetch from by itself, and a stream of its own copies it. Memory of the card: three parts, the
state (some tens of bytes a row) and what C×D needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from globular.data.blocks import Block, Source, working_dtype
from globular.data.sources import ArraySource, check_rows
from globular.model.statistics import F64, Floats
from globular.passes.torch.arrays import tensor_dtype
from globular.passes.torch.card import CardShard
from globular.passes.torch.shard import TorchShard, beside, exact_type
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

    def _send(self, block: Block) -> _Sent:
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

    def local(self, rows: Floats, weights: F64 | None = None) -> TorchShard:
        return beside(self, rows, weights)


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
