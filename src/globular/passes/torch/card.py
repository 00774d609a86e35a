"""What shards on a card have in common, whether their rows lie there or come in parts: weights, per-row state, and the
passes over these alone.

C-sized values stay on the card too (`arrays`): only numbers cross the bus, and what an algorithm does on the host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from globular.errors import MemoryBudgetError
from globular.lazy import cached_property
from globular.model.statistics import F64
from globular.passes.cpu.engine.random import random_labels
from globular.passes.host import BY_METHODS, Handler, HostShard
from globular.passes.torch import plain
from globular.passes.torch.arrays import DeviceArray
from globular.passes.torch.grouping import group
from globular.passes.torch.recording import Recordings
from globular.seam import passes
from globular.seam.among import Need
from globular.seam.passes import Index, Labels, Pass, Result, RowValue
from globular.seam.shard import PointState

DENSE = "the rows are dense"
NOT_WRITTEN = "it has not been written for GPUs; use device='cpu'"
RUN = 4096
"""Rows whose running sums are taken together."""


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
        """Of passes over rows that are given each time anew: those of `local` shards come and go."""

    def _handler(self, work: Pass[Any]) -> Handler | None:
        if isinstance(work, BY_METHODS):
            return super()._handler(work)
        for cls in (type(self), CardShard):  # what else the host can do wants rows and state in its own memory
            for variant in (work.variant, None):
                if (type(work), variant) in cls._handlers:
                    return cls._handlers[type(work), variant]
        return None

    def _carry_out(self, work: Pass[Result]) -> Result:
        try:
            return super()._carry_out(work)
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
        return {"sparse rows": DENSE, "rows on a CPU": NOT_WRITTEN}

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


def running_sums(values: Any) -> Any:
    """Sums of the values up to each of them, (n,), always in the same order: torch's own scan of one long row is not.

    They never fall, whatever the rounding.
    """
    n = len(values)
    inside = torch.cumsum(torch.nn.functional.pad(values, (0, -n % RUN)).view(-1, RUN), dim=1)
    totals = inside[:, -1].expand(2, -1).contiguous()  # two rows: of one, the scan would be torch's long one
    before = torch.nn.functional.pad(torch.cumsum(totals, dim=1)[0, :-1], (1, 0))
    # the largest so far by runs, too: torch takes one long row by a single block of threads
    sums = torch.cummax(inside + before[:, None], dim=1).values
    lead = torch.nn.functional.pad(torch.cummax(sums[:, -1], dim=0).values[:-1], (1, 0))
    return torch.maximum(sums, lead[:, None]).view(-1)[:n]


def totals_by(values: Any, keys: Any, n: int) -> Any:
    """Sums of float64 values by key, always in the same order. O(N)."""
    return engine(values.device).sum_clusters(values[:, None], None, None, None, group(keys, n))[:, 0]


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
