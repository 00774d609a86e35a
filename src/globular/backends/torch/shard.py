"""Rows on a CUDA card. The passes over them, triton kernels and torch, are the modules beside this one.

Rows stay in the type in which they come where tensor cores take it (float16, bfloat16, uint8), and are float32 or
float64 otherwise. Per-row state lies beside them, and so does what passes take and give (`arrays`): only numbers cross
the bus, and what an algorithm does on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from globular.backends.host import NONE, Handler, HostShard
from globular.backends.torch.arrays import DeviceArray
from globular.backends.torch.plain import blocks, seen
from globular.errors import UnsupportedPassError
from globular.model.statistics import F64
from globular.seam.passes import Index, Labels, Pass, Result, RowValue
from globular.seam.state import PointState
from globular.threads import cached_property

KEPT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)
"""Types in which rows stay; others become float32 where nothing is lost, else float64."""
NOT_WRITTEN = "it has not been written for GPUs; use device='cpu'"
DENSE = "the rows are dense"
RUN = 4096
"""Rows whose running sums are taken together."""


class DeviceState(PointState):
    """Named tensors with one entry per row."""

    def __init__(self, n_rows: int, device: Any) -> None:
        super().__init__(n_rows)
        self._device, self._tensors = device, dict[str, Any]()

    def tensor(self, name: str, dtype: Any, fill: float, width: int | None = None) -> Any:
        """The tensor of that name; made and filled on first use or when its width changed."""
        shape = (self.n_rows,) if width is None else (self.n_rows, width)
        if name not in self._tensors or self._tensors[name].shape != shape:
            self._tensors[name] = torch.full(shape, fill, dtype=dtype, device=self._device)
        return self._tensors[name]


class TorchShard(HostShard):
    """A tensor of rows on a device, with weights and per-row state there too.

    Parameters
    ----------
    rows : 2-D tensor; never modified, and not copied unless its type is one that kernels do not take.
    weights : one float64 per row, or None.
    unit_rows : whether rows count as scaled to unit length (cosine). Rows of zeros stay zero.
    scales : the factors that do so, from who has them.
    """

    state: DeviceState

    def __init__(
        self,
        rows: Any,
        weights: Any = None,
        *,
        unit_rows: bool = False,
        scales: Any = None,
        n_threads: int = 1,
        state: DeviceState | None = None,
        first_row: int = 0,
    ) -> None:
        self.device = rows.device
        super().__init__(
            rows.shape, None, n_threads=n_threads, state=state or DeviceState(len(rows), self.device),
            first_row=first_row,
        )  # fmt: skip
        self.x = (rows if rows.dtype in KEPT_TYPES else rows.to(_wide_enough(rows.dtype))).contiguous()
        self.exact = torch.float64 if self.x.dtype == torch.float64 else torch.float32
        """The type of the differences that decide."""
        self.w = None if weights is None else torch.as_tensor(weights, dtype=torch.float64, device=self.device)
        self.scales = scales
        if unit_rows:
            self.scales = torch.empty(self.n_rows, dtype=self.exact, device=self.device)
            for block in blocks(self.n_rows, self.n_columns):
                lengths = torch.linalg.vector_norm(self.x[block].to(torch.float64), dim=1)
                if not bool(torch.isfinite(lengths).all()):
                    raise ValueError("X has rows whose length overflows; scale these rows to length 1")
                self.scales[block] = torch.where(lengths > 0, 1.0 / lengths, 0.0)

    def _handler(self, work: Pass[Any]) -> Handler | None:
        for variant in (work.variant, None):
            if (type(work), variant) in TorchShard._handlers:
                return TorchShard._handlers[type(work), variant]
        return None

    def _run_parts(self, work: Pass[Result]) -> Result:
        raise UnsupportedPassError(f"{type(work).__name__} is not available here: {NOT_WRITTEN}")

    @property
    def lacks(self) -> Mapping[str, str]:
        return {"sparse rows": DENSE, "rows on a CPU": NOT_WRITTEN}

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64 if self.exact == torch.float64 else np.float32)

    def parts(self) -> Iterator[HostShard]:
        raise UnsupportedPassError(f"rows on the card are not handed out in parts: {NOT_WRITTEN}")

    # --- tensors and what algorithms see of them ---

    def tensor(self, values: Any, dtype: Any = torch.float64) -> Any:
        """C-sized values as a tensor beside the rows."""
        if isinstance(values, DeviceArray):
            return values.tensor.to(dtype)
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()
        return torch.as_tensor(values, device=self.device).to(dtype)

    def give(self, tensor: Any) -> NDArray[Any]:
        """A C-sized tensor as algorithms see it."""
        return cast(NDArray[Any], DeviceArray(tensor))

    @property
    def label_tensor(self) -> Any:
        """Per-row state: the closest centre."""
        return self.state.tensor("labels", torch.int32, -1)

    @property
    def d2_tensor(self) -> Any:
        """Per-row state: squared distance to the closest seed, or to the row's own centre."""
        return self.state.tensor("d2", self.exact, float("inf"))

    @property
    def seed_tensor(self) -> Any:
        """Per-row state: the number of the closest seed."""
        return self.state.tensor("seeds", torch.int32, -1)

    @property
    def labels(self) -> Labels:
        return self.give(self.label_tensor)

    @cached_property
    def total_weight(self) -> float:
        return float(self.n_rows) if self.w is None else float(self.w.sum())

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

    def errors(self) -> Any:
        """w·d² of every row, float64."""
        d2 = self.d2_tensor.to(torch.float64)
        return d2 if self.w is None else d2 * self.w

    def take_tensor(self, indices: Any) -> Any:
        """Some rows as the passes see them, float64."""
        return seen(self.x, self.scales, torch.float64, indices)

    def take_rows(self, indices: Index) -> F64:
        return self.give(self.take_tensor(self.tensor(indices, torch.int64)))

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        if what == "rows":
            return self.take_rows(indices)
        chosen = self.tensor(indices, torch.int64)
        if what == "labels":
            return self.give(self.label_tensor[chosen])
        weights = torch.ones(len(chosen), dtype=torch.float64, device=self.device) if self.w is None else self.w[chosen]
        return self.give(weights if what == "weights" else weights * self.d2_tensor[chosen].to(torch.float64))

    def locate(self, masses: F64, by: Any = "weights") -> Index:
        wanted = self.tensor(masses)
        if by == "weights" and self.w is None:
            return self.give(wanted.clamp(0, self.n_rows - 1).to(torch.int64))
        ends = running_sums(self.errors() if by == "errors" else self.w)
        # a mass that rounding has pushed past the total belongs to the last row that can be drawn at all
        last = torch.searchsorted(ends, ends[-1:])
        return self.give(torch.minimum(torch.searchsorted(ends, wanted, right=True), last))

    def subset(self, indices: Index) -> TorchShard:
        chosen = self.tensor(indices, torch.int64)
        weights, scales = (None if each is None else each[chosen] for each in (self.w, self.scales))
        return TorchShard(self.x[chosen], weights, scales=scales, n_threads=self.n_threads)

    def local(self, rows: F64, weights: F64 | None = None) -> TorchShard:
        return TorchShard(
            self.tensor(rows, self.exact), None if weights is None else self.tensor(weights), n_threads=self.n_threads
        )


def running_sums(values: Any) -> Any:
    """Sums of the values up to each of them, (n,), always in the same order: torch's own scan of one long row is not.

    They never fall, whatever the rounding.
    """
    n = len(values)
    padded = torch.nn.functional.pad(values, (0, -n % RUN)).view(-1, RUN)
    inside = torch.cumsum(padded, dim=1)
    before = torch.from_numpy(np.concatenate([NONE, [0.0], np.cumsum(inside[:-1, -1].cpu().numpy())])).to(values.device)
    return torch.cummax((inside + before[:, None]).view(-1)[:n], dim=0).values


def _wide_enough(dtype: Any) -> Any:
    return torch.float32 if dtype in (torch.int8, torch.int16, torch.bool) else torch.float64
