"""Rows on a CUDA card. The passes over them, triton kernels and torch, are the modules beside this one.

Rows stay in the type in which they come where tensor cores take it (float16, bfloat16, uint8), and are float32 or
float64 otherwise. Per-row state lies beside them, and so does what passes take and give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from globular.errors import UnsupportedPassError
from globular.lazy import cached_property
from globular.model.statistics import F64, Floats
from globular.passes.torch.card import NOT_WRITTEN, CardShard
from globular.passes.torch.plain import blocks, seen
from globular.passes.torch.recording import Recordings
from globular.seam.passes import Index, Pass, Result
from globular.seam.shard import PointState

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
        x = (rows if rows.dtype in KEPT_TYPES else rows.to(_wide_enough(rows.dtype))).contiguous()
        super().__init__(
            rows.shape, weights, rows.device, exact_type(x.dtype), state=state, first_row=first_row,
            lent_recordings=lent_recordings,
        )  # fmt: skip
        self.x, self.scales = x, scales
        self.mostly_sure = True
        """Whether products leave few rows in doubt of their closest centre, as they do unless centres coincide."""
        self.recordings = Recordings(by_kernels=self.exact == torch.float32, n_rows=self.n_rows)
        """Of passes over these rows and their state."""
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

    def take_tensor(self, indices: Any) -> Any:
        """Some rows as the passes see them, float64."""
        return seen(self.x, self.scales, torch.float64, indices)

    def take_rows(self, indices: Index) -> F64:
        return self.give(self.take_tensor(self.tensor(indices, torch.int64)))

    def subset(self, indices: Index) -> TorchShard:
        chosen = self.tensor(indices, torch.int64)
        weights, scales = (None if each is None else each[chosen] for each in (self.w, self.scales))
        return TorchShard(self.x[chosen], weights, scales=scales)

    def local(self, rows: Floats, weights: F64 | None = None) -> TorchShard:
        return beside(self, rows, weights)


def beside(shard: CardShard, rows: Floats, weights: F64 | None) -> TorchShard:
    """A few rows of the algorithm's on the card of a shard."""
    given = None if weights is None else shard.tensor(weights)
    return TorchShard(shard.tensor(rows, shard.exact), given, lent_recordings=shard.lent_recordings)


def exact_type(dtype: Any) -> Any:
    """The type of the differences that decide, of rows that are held in a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _wide_enough(dtype: Any) -> Any:
    return torch.float32 if dtype in (torch.int8, torch.int16, torch.bool) else torch.float64
