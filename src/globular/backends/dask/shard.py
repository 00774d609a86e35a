"""Rows on Dask workers: map and add over processes and machines.

A `DaskShard` is a shard like any other: its parts are partitions of the data, each a `CpuShard` or a `StreamShard` in
the memory of a worker, with the per-point state beside the rows. Parameters go out, additive statistics come back;
rows and state stay where they are. Algorithms do not notice.

Sums are added in a fixed tree over the parts (`backends.tree`), the same as in a `SplitShard`, so results do not
depend on the number of workers and equal those of a split into the same parts bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, cast

import numpy as np
from numpy.typing import DTypeLike

from globular.backends.dask.crew import Crew, Traffic
from globular.backends.dask.partitions import Partition
from globular.backends.dask.workers import labels_at, labels_of
from globular.backends.mapped import Arguments, Result
from globular.backends.protocol import Labels, LocalShard, Shard
from globular.backends.registry import shard_over
from globular.backends.split import IN_PARTS, SideBySide
from globular.model.statistics import F64
from globular.threads import resolve_threads


class DaskShard(SideBySide):
    """Partitions on the workers of a cluster.

    Parameters
    ----------
    client : a connected `distributed.Client`.
    partitions : where the rows of every part come from.
    weights : one float64 per row of all parts, or None (also where partitions have their own).
    unit_rows : whether rows count as scaled to unit length (cosine).
    labelled : whether rows of weight 0 are wanted, for their labels.
    n_threads : threads of each worker; None takes what the worker has.
    """

    def __init__(
        self,
        client: Any,
        partitions: Sequence[Partition],
        weights: F64 | None = None,
        *,
        unit_rows: bool = False,
        labelled: bool = True,
        n_threads: int | None = None,
    ) -> None:
        self.crew = Crew(
            client, partitions, weights=weights, unit_rows=unit_rows, labelled=labelled, n_threads=n_threads
        )
        self._ends = self.crew.ends
        self.n_columns = max(info.n_columns for info in self.crew.rows)
        self.n_threads = resolve_threads(n_threads)
        self.is_streamed = any(part.is_streamed for part in partitions)
        """Whether workers read rows from files anew for every pass."""
        self.dtype: np.dtype[Any] = np.result_type(np.uint8, *{info.dtype for info in self.crew.rows})

    @property
    def traffic(self) -> Traffic:
        """Bytes moved so far, by pass."""
        return self.crew.traffic

    @property
    def passes(self) -> Mapping[str, str]:
        merged: dict[str, str] = {}
        for info in self.crew.infos:
            merged |= {name: reason for name, reason in info.passes.items() if reason or name not in merged}
        return {**merged, "within": IN_PARTS}

    @property
    def weights_of_parts(self) -> F64:
        return np.array([info.total_weight for info in self.crew.infos])

    @property
    def labels(self) -> Labels:
        return cast(Labels, RemoteLabels(self))

    def labels_at(self, indices: Any) -> Labels:
        """The labels of these rows."""
        return self._collect(labels_at, indices, np.empty(len(indices), dtype=np.int32))

    def all_labels(self) -> Labels:
        """The labels of all rows, brought here."""
        return np.concatenate(self._each(labels_of))

    def _each(
        self,
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> list[Result]:
        return self.crew.each(function, args, kwargs)

    def _join(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        return self.crew.total(merge, function, args, kwargs)

    def _some(self, function: Callable[..., Result], arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Result]:
        return self.crew.some(function, dict(arguments))

    def _join_own(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
    ) -> Result:
        return self.crew.total_of(merge, function, arguments)

    def local(self, rows: F64, weights: F64 | None = None) -> LocalShard:
        return shard_over(np.empty((0, self.n_columns)), n_threads=self.n_threads).local(rows, weights)


class RemoteLabels:
    """The labels of all rows, which stay on the workers until they are looked at.

    Some rows by number (`labels[indices]`) bring those alone; `np.asarray(labels)` and `labels.copy()` bring all.
    """

    dtype = np.dtype(np.int32)
    ndim = 1

    def __init__(self, shard: DaskShard) -> None:
        self._shard = shard
        self.shape = (shard.n_rows,)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Labels:
        return self._shard.all_labels().astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        indices = np.asarray(key) if isinstance(key, np.ndarray | list) else None
        if indices is not None and indices.ndim == 1 and indices.dtype.kind in "iu":
            return self._shard.labels_at(np.where(indices < 0, indices + len(self), indices))
        return np.asarray(self)[key]

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Labels:
        """All labels as they are now."""
        return self._shard.all_labels()

    def __reduce__(self) -> Any:
        return np.asarray, (np.asarray(self),)
