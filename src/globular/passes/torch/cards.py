"""Rows split over several cards: every pass runs on all parts at once, and K-sized results are merged in their order.

Each part has a thread and a stream of its own. What the calling thread has launched before a pass, such as new centres,
is waited for on the card; what the pass launches is done when it returns. So either side may use results, and give
their memory back. C-sized arithmetic between passes is done on the first card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from globular.model.statistics import F64, Floats
from globular.passes.many import SideBySide, TreeSum
from globular.passes.torch.shard import CardShard, TorchShard
from globular.seam.passes import Index, Labels, Pass, Project, Result, RowValue, Take
from globular.threads import run_all


class CardsShard(SideBySide):
    """Parts on cards, in the order of their rows; a card may have several."""

    def __init__(self, parts: Sequence[CardShard]) -> None:
        self._parts: Sequence[Any] = parts
        self.n_columns, self.n_threads, self._home = parts[0].n_columns, 1, parts[0].device
        self._ends = np.cumsum([part.n_rows for part in parts])
        self._streams: list[Any] = [
            torch.cuda.Stream(part.device) if part.device.type == "cuda" else None for part in parts
        ]

    @property
    def dtype(self) -> np.dtype:
        """The type that kernels see the rows in."""
        return self._parts[0].dtype

    @property
    def labels(self) -> Labels:
        return np.concatenate([np.asarray(part.labels) for part in self._parts])

    def why_not(self, kind: Any) -> str:
        return "" if kind is Project else super().why_not(kind)  # each card has the coordinates of its rows

    def _merged(self, work: Pass[Result]) -> Result:
        found = self._some(dict.fromkeys(range(len(self._parts)), work))
        if isinstance(work, Project):
            return cast(Result, CardsShard([cast(CardShard, part) for part in found.values()]))
        tree = TreeSum[Result](len(self._parts), work.merge)
        for number, result in found.items():
            tree.insert(0, number, result)
        (total,) = tree.nodes.values()
        return total

    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        cards = {part.device for part in self._parts if part.device.type == "cuda"}
        before = [torch.cuda.current_stream(card).record_event() for card in cards]
        found: dict[int, Result] = {}

        def run(number: int) -> None:
            stream = self._streams[number]
            with torch.cuda.stream(stream):
                for event in before:
                    stream.wait_event(event)
                found[number] = self._parts[number].run(work[number])
                if stream is not None:
                    stream.synchronize()

        run_all(run, work, len(work), calls_blas=False)
        return {number: found[number] for number in work}

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        """On the first card, where algorithms go on with them."""
        numbers = np.asarray(indices)
        owners = np.searchsorted(self._ends, numbers, side="right")
        asked = [int(part) for part in np.unique(owners)] or [0]
        found = self._some({part: Take(numbers[owners == part] - self._first(part), what) for part in asked})
        home = self._parts[0].tensor
        dtype = torch.int32 if what == "labels" else torch.float64
        joined = torch.cat([home(piece, dtype) for piece in found.values()])
        values = torch.empty_like(joined)
        values[home(np.argsort(owners, kind="stable"), torch.int64)] = joined
        return self._parts[0].give(values)

    def local(self, rows: Floats, weights: F64 | None = None) -> TorchShard:  # type: ignore[override]
        """Beside the first part."""
        return self._parts[0].local(rows, weights)

    def left(self, codes: NDArray[Any], books: Sequence[NDArray[Any]]) -> CardsShard:
        cuts = zip(self._parts, [0, *self._ends], self._ends, strict=False)
        return CardsShard([part.left(codes[begin:end], books) for part, begin, end in cuts])

    def subset(self, indices: Index) -> TorchShard:  # type: ignore[override]
        """On the first card, in the type of the rows."""
        numbers = np.asarray(indices)
        cuts = np.searchsorted(numbers, np.append(0, self._ends))
        pieces: list[Any] = [
            part.subset(numbers[begin:end] - self._first(number))
            for number, (part, begin, end) in enumerate(zip(self._parts, cuts[:-1], cuts[1:], strict=True))
            if begin < end
        ]

        def joined(values: list[Any]) -> Any:
            return None if values[0] is None else torch.cat([value.to(self._home) for value in values])

        weights, scales = joined([piece.w for piece in pieces]), joined([piece.scales for piece in pieces])
        return TorchShard(joined([piece.x for piece in pieces]), weights, scales=scales)
