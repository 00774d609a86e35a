"""Which shard for which rows. Nobody outside of `passes` names a kind of shard: a new one is added here.

Rows on Dask workers are laid out by `passes.dask`, whose workers come here for each of their parts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from scipy import sparse

from globular.data.blocks import Matrix, Source
from globular.errors import import_extra
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.passes.host import HostShard
from globular.passes.many import StreamShard

__all__ = ["beside", "check_card_memory", "rows_on_card", "shard_on_card", "shard_over"]


def shard_over(
    rows: Matrix | Source,
    weights: F64 | None = None,
    *,
    unit_rows: bool = False,
    n_threads: int = 1,
    first_row: int = 0,
) -> HostShard:
    """A shard over rows that this process can read: a matrix stays where it lies, a source is read for every pass.

    `first_row` is the number of the first row in the whole data, of which these rows may be a part.
    """
    if isinstance(rows, np.ndarray | sparse.csr_matrix | sparse.csr_array):
        return CpuShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)
    return StreamShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)


def _torch() -> Any:
    """The backend for cards, imported when one is asked for."""
    import_extra("torch", "torch", "gpu", "a fit on a GPU")
    return import_module("globular.passes.torch.opening")


def rows_on_card(X: Any, device: str, n_clusters: int, bytes_per_row: int) -> Any:
    """Rows of an array, a source or a tensor as a tensor on a card; an error says so where there is none.

    An array or a source that is too large for the card is returned as it is.
    """
    return _torch().rows_on_card(X, device, n_clusters, bytes_per_row)


def shard_on_card(rows: Any, weights: F64 | None, device: str = "cuda", *, unit_rows: bool = False) -> HostShard:
    """A shard over rows that `rows_on_card` has returned."""
    shard: HostShard = _torch().shard_on_card(rows, weights, device, unit_rows=unit_rows)
    return shard


def check_card_memory(shard: HostShard, n_clusters: int, bytes_per_row: int) -> None:
    """Say beforehand what a fit takes of the card's memory, and refuse what it does not have."""
    _torch().check_card_memory(shard, n_clusters, bytes_per_row)


def beside(X: Any, values: Any) -> Any:
    """Values as a tensor beside X, which lies on a card."""
    return _torch().beside(X, values)
