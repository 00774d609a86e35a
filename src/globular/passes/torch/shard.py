"""Shards on a card: weights, per-row state, and the passes over these alone; and rows that lie there.

Whether rows lie there or come in parts, the first is the same. C-sized values stay on the card too (`arrays`): only
numbers cross the bus, and what an algorithm does on the host. Rows stay in the type in which they come where tensor
cores take it (float16, bfloat16, uint8), and are float32 or float64 otherwise. Other passes over them, triton kernels
and torch, are the modules beside this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from globular.errors import MemoryBudgetError, UnsupportedPassError
from globular.lazy import cached_property
from globular.model.statistics import F64, Floats
from globular.passes.cpu.engine.random import random_labels
from globular.passes.host import BY_METHODS, Handler, HostShard
from globular.passes.torch import plain
from globular.passes.torch.arrays import DeviceArray
from globular.passes.torch.plain import blocks, group, running_sums, seen
from globular.passes.torch.recordings import Recordings
from globular.seam import passes
from globular.seam.among import Need
from globular.seam.passes import Index, Labels, Pass, Result, RowValue
from globular.seam.shard import PointState

DENSE = "the rows are dense"
NOT_WRITTEN = "it has not been written for GPUs; use device='cpu'"
KEYS_AT_ONCE = 1 << 28
"""Rows that are sorted by key at once, where values are summed by key; larger = more memory."""


def engine(device: Any, exact: Any = torch.float32) -> Any:
    """The functions of `launch` where kernels run, else those of `plain`: they take the same, and do the same."""
    if exact == torch.float64 or not (device.type == "cuda" or kernels_are_interpreted()):
        return plain
    from globular.passes.torch import launch

    return launch


def kernels_are_interpreted() -> bool:
    """Whether triton runs kernels on the CPU, for tests (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


class DeviceState(PointState):
    """Named tensors with one entry per row."""

    def __init__(self, n_rows: int, device: Any) -> None:
        super().__init__(n_rows)
        self._device = device

    def _new(self, shape: tuple[int, ...], dtype: Any, fill: float) -> Any:
        return torch.full(shape, fill, dtype=dtype, device=self._device)


class CardShard(HostShard):
    """Weights and per-row state on a device; whoever has the rows says of which type their differences are."""

    def __init__(
        self,
        shape: tuple[int, int],
        weights: Any,
        device: Any,
        exact: Any,
        *,
        state: PointState | None = None,
        first_row: int = 0,
        lent_recordings: Recordings | None = None,
    ) -> None:
        super().__init__(shape, None, state=state or DeviceState(int(shape[0]), device), first_row=first_row)
        self.device = device
        self.exact = exact
        """The type of the differences that decide."""
        self.w = None if weights is None else torch.as_tensor(weights, dtype=torch.float64, device=device)
        self.lent_recordings = lent_recordings or Recordings(by_kernels=exact == torch.float32)
        """Recordings of passes over rows that are given each time anew: `local` shards come and go."""

    def _handler(self, work: Pass[Any]) -> Handler | None:
        if isinstance(work, BY_METHODS):
            return super()._handler(work)
        for cls in (type(self), CardShard):  # what else the host can do wants rows and state in its own memory
            for variant in (work.variant, None):
                if (type(work), variant) in cls._handlers:
                    return cls._handlers[type(work), variant]
        return None

    def run(self, work: Pass[Result]) -> Result:
        try:
            with torch.cuda.device(self.device.index if self.device.type == "cuda" else -1):  # where kernels run
                return super().run(work)
        except torch.OutOfMemoryError:
            pass
        # what was under way has been given up: from here on the memory is free again
        torch.cuda.empty_cache()
        raise MemoryBudgetError(
            f"the card has too little memory left for {type(work).__name__}; free what others hold there, take fewer "
            "clusters, or use device='cpu'"
        )

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64 if self.exact == torch.float64 else np.float32)

    @property
    def lacks(self) -> Mapping[Need, str]:
        return {Need.SPARSE: DENSE, Need.CPU: NOT_WRITTEN}

    # --- tensors and what algorithms see of them ---

    def tensor(self, values: Any, dtype: Any = torch.float64) -> Any:
        """C-sized values as a tensor beside the rows."""
        if isinstance(values, DeviceArray):
            return values.tensor.to(self.device, dtype)
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()
        return torch.as_tensor(values, device=self.device).to(dtype)

    def give(self, tensor: Any) -> NDArray[Any]:
        """A C-sized tensor as algorithms see it."""
        return cast(NDArray[Any], DeviceArray(tensor))

    @property
    def label_tensor(self) -> Any:
        """Per-row state: the closest centre."""
        return self.state.get("labels", torch.int32, -1)

    @property
    def d2_tensor(self) -> Any:
        """Per-row state: squared distance to the closest seed, or to the row's own centre."""
        return self.state.get("d2", self.exact, float("inf"))

    @property
    def seed_tensor(self) -> Any:
        """Per-row state: the number of the closest seed."""
        return self.state.get("seeds", torch.int32, -1)

    @property
    def labels(self) -> Labels:
        return self.give(self.label_tensor)

    @cached_property
    def total_weight(self) -> float:
        return float(self.n_rows) if self.w is None else float(self.w.sum())

    @property
    def weights_of_rows(self) -> Any:
        """One number a row, float64, whether there are weights or not."""
        return torch.ones(self.n_rows, dtype=torch.float64, device=self.device) if self.w is None else self.w

    def weighted(self, values: Any) -> Any:
        """w·v of one value a row, float64."""
        wide = values.to(torch.float64)
        return wide if self.w is None else wide * self.w

    def errors(self) -> Any:
        """w·d² of every row, float64."""
        return self.weighted(self.d2_tensor)

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        if what == "rows":
            return self.take_rows(indices)
        chosen = self.tensor(indices, torch.int64)
        if what == "labels":
            return self.give(self.label_tensor[chosen])
        weights = self.weights_of_rows[chosen]
        return self.give(weights if what == "weights" else weights * self.d2_tensor[chosen].to(torch.float64))

    def local(self, rows: Floats, weights: F64 | None = None) -> TorchShard:
        given = None if weights is None else self.tensor(weights)
        return TorchShard(self.tensor(rows, self.exact), given, lent_recordings=self.lent_recordings)

    def locate(self, masses: F64, by: Any = "weights") -> Index:
        wanted = self.tensor(masses)
        if by == "weights" and self.w is None:
            return self.give(wanted.clamp(0, self.n_rows - 1).to(torch.int64))
        ends = running_sums(self.errors() if by == "errors" else self.w)
        # a mass that rounding has pushed past the total belongs to the last row that can be drawn at all
        last = torch.searchsorted(ends, ends[-1:])
        return self.give(torch.minimum(torch.searchsorted(ends, wanted, right=True), last))

    def totals(self, of: str, by: str | None, n: int) -> F64:
        if by is None:
            return np.array([self.total_weight if of == "weights" else float(self.errors().sum())])
        keys = self.label_tensor if by == "labels" else self.seed_tensor
        return self.give(totals_by(self.errors() if of == "errors" else self.weights_of_rows, keys, n))


def totals_by(values: Any, keys: Any, n: int) -> Any:
    """Sums of float64 values by key, always in the same order. O(N)."""
    add = engine(values.device).sum_clusters
    some = zip(torch.split(values, KEYS_AT_ONCE), torch.split(keys, KEYS_AT_ONCE), strict=True)
    return reduce(torch.add, (add(part[:, None], None, None, None, group(own, n))[:, 0] for part, own in some))


@CardShard.implements(passes.ScatterLabels)
def scatter_labels(shard: CardShard, work: passes.ScatterLabels) -> None:
    labels = np.empty(shard.n_rows, dtype=np.int32)
    random_labels(np.uint64(work.seed), shard.first_row, work.n_clusters, labels)
    shard.label_tensor.copy_(torch.from_numpy(labels))


@CardShard.implements(passes.LabelBySeeds)
def label_by_seeds(shard: CardShard, work: passes.LabelBySeeds) -> None:
    shard.label_tensor.copy_(shard.seed_tensor)


@CardShard.implements(passes.BlendErrors)
def blend_errors(shard: CardShard, work: passes.BlendErrors) -> None:
    of_seeds = shard.tensor(work.of_seeds)[shard.seed_tensor.long()]
    shard.d2_tensor.copy_(of_seeds + work.share * shard.d2_tensor.to(torch.float64))


@CardShard.implements(passes.Relabel)
def relabel(shard: CardShard, work: passes.Relabel) -> None:
    names = shard.tensor(work.names, torch.int32)
    shard.label_tensor.copy_(names[shard.label_tensor.long()])


KEPT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)
"""Types in which rows stay; others become float32 where nothing is lost, else float64."""


class TorchShard(CardShard):
    """A tensor of rows on a device, with weights and per-row state there too.

    Parameters
    ----------
    rows : 2-D tensor; never modified, and not copied unless its type is one that kernels do not take.
    weights : one float64 per row, or None.
    unit_rows : whether rows count as scaled to unit length (cosine). Rows of zeros stay zero.
    scales : the factors that do so, from who has them.
    lent_recordings : those of the shard beside which these rows are a few of the algorithm's, for a while.
    """

    def __init__(
        self,
        rows: Any,
        weights: Any = None,
        *,
        unit_rows: bool = False,
        scales: Any = None,
        state: PointState | None = None,
        first_row: int = 0,
        lent_recordings: Recordings | None = None,
    ) -> None:
        wide = torch.float32 if rows.dtype in (torch.int8, torch.int16, torch.bool) else torch.float64
        x = rows.to(rows.dtype if rows.dtype in KEPT_TYPES else wide).contiguous()
        super().__init__(
            rows.shape, weights, rows.device, exact_type(x.dtype), state=state, first_row=first_row,
            lent_recordings=lent_recordings,
        )  # fmt: skip
        self.x, self.scales = x, scales
        self.mostly_sure = True
        """Whether products leave few rows in doubt of their closest centre, as they do unless centres coincide."""
        self.recordings = Recordings(by_kernels=self.exact == torch.float32, n_rows=self.n_rows)
        """Recordings of passes over these rows and their state."""
        if unit_rows:
            self.scales = torch.empty(self.n_rows, dtype=self.exact, device=self.device)
            for block in blocks(self.n_rows, self.n_columns):
                lengths = torch.linalg.vector_norm(self.x[block].to(torch.float64), dim=1)
                if not bool(torch.isfinite(lengths).all()):
                    raise ValueError("X has rows whose length overflows; scale these rows to length 1")
                self.scales[block] = torch.where(lengths > 0, 1.0 / lengths, 0.0)

    def parts(self) -> Iterator[TorchShard]:
        yield self

    def _run_parts(self, work: Pass[Result]) -> Result:
        raise UnsupportedPassError(f"{type(work).__name__} is not available here: {NOT_WRITTEN}")

    @cached_property
    def lengths(self) -> Any:
        """‖x‖ of every row as passes see it."""
        lengths = torch.empty(self.n_rows, dtype=self.exact, device=self.device)
        for block in blocks(self.n_rows, self.n_columns):
            lengths[block] = torch.linalg.vector_norm(seen(self.x, self.scales, self.exact, block), dim=1)
        return lengths

    @cached_property
    def factors(self) -> Any:
        """Weight times scale of every row, float64; None where both are one."""
        if self.scales is None:
            return self.w
        scales = self.scales.to(torch.float64)
        return scales if self.w is None else scales * self.w

    @cached_property
    def unit_weights(self) -> Any:
        """Weights where factors are asked for: ones where there are scales alone."""
        if self.w is None and self.scales is not None:
            return torch.ones(self.n_rows, dtype=torch.float64, device=self.device)
        return self.w

    def left(self, codes: Any, books: Sequence[Any]) -> TorchShard:
        """See `Shard.left`: a copy on the card, unless nothing is subtracted."""
        if not len(books):
            return TorchShard(self.x, self.w, scales=self.scales, first_row=self.first_row)
        words = [self.tensor(book, self.exact) for book in books]
        numbers = self.tensor(np.asarray(codes, dtype=np.int64), torch.int64)
        x = torch.empty((self.n_rows, self.n_columns), dtype=self.exact, device=self.device)
        for block in blocks(self.n_rows, self.n_columns):
            x[block] = seen(self.x, self.scales, self.exact, block)
            for level, book in enumerate(words):
                x[block] -= book[numbers[block, level]]
        return TorchShard(x, self.w, first_row=self.first_row)

    def take_tensor(self, indices: Any) -> Any:
        """Some rows as the passes see them, float64."""
        return seen(self.x, self.scales, torch.float64, indices)

    def take_rows(self, indices: Index) -> F64:
        return self.give(self.take_tensor(self.tensor(indices, torch.int64)))

    def subset(self, indices: Index) -> TorchShard:
        chosen = self.tensor(indices, torch.int64)
        weights, scales = (None if each is None else each[chosen] for each in (self.w, self.scales))
        return TorchShard(self.x[chosen], weights, scales=scales)


def exact_type(dtype: Any) -> Any:
    """The type of the differences that decide, of rows that are held in a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32
