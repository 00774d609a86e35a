"""Which shard for which rows. Nobody outside of `passes` names a kind of shard: a new one is added here.

Rows on Dask workers are laid out by `passes.dask`, whose workers come here for each of their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np
from scipy import sparse

from globular.data.blocks import Matrix, Source
from globular.errors import import_extra
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.passes.host import HostShard
from globular.passes.many import StreamShard


@dataclass(frozen=True, slots=True)
class Card:
    """Where the rows of a fit go, and what the fit takes of a card's memory beside them."""

    device: str | Sequence[str]
    n_clusters: int
    bytes_per_row: int
    is_fit: bool = True


def shard_over(
    rows: Matrix | Source,
    weights: F64 | None = None,
    *,
    unit_rows: bool = False,
    n_threads: int = 1,
    first_row: int = 0,
    card: Card | None = None,
) -> HostShard:
    """A shard over rows that this process can read: a matrix stays where it lies, a source is read for every pass.

    With a `card` they are copied there. `first_row` is the number of the first row in the whole data, of which these
    rows may be a part.
    """
    if card is not None:
        shard = cards().shard_on_cards(
            rows, weights, card.device, card.n_clusters, card.bytes_per_row, unit_rows=unit_rows, is_fit=card.is_fit,
            first_row=first_row,
        )  # fmt: skip
        return cast(HostShard, shard)
    if isinstance(rows, np.ndarray | sparse.csr_matrix | sparse.csr_array):
        return CpuShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)
    return StreamShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)


def cards() -> Any:
    """The backend for cards, `passes.torch.opening`, imported when one is asked for; an error says what to install."""
    import_extra("torch", "torch", "gpu", "a fit on a GPU")
    return import_module("globular.passes.torch.opening")
