"""The seam: a shard is a set of rows wherever they live, and `run` carries out a pass over them.

Algorithms see this class and the passes and nothing else, so the same loop runs on one array (`passes.cpu`), on many
shards (`split`), on data larger than memory (`stream`) and on other machines (`dask`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.errors import UnsupportedPassError
from globular.lazy import cached_property
from globular.model.gaussian import Spread, about_the_mean
from globular.model.statistics import F64, Floats
from globular.seam.among import Need
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Index, Labels, Moments, Pass, Result, RowValue

_MAKING = Lock()


class PointState:
    """Named per-point arrays, made when a pass first asks for them."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._arrays: dict[str, Any] = {}

    def get(self, name: str, dtype: Any, fill: float, width: int | None = None) -> Any:
        """The array of that name; made and filled on first use or when its width changed."""
        shape = (self.n_rows,) if width is None else (self.n_rows, width)
        with _MAKING:  # threads that find none must not make one each
            array = self._arrays.get(name)
            if array is None or array.shape != shape:
                array = self._arrays[name] = self._new(shape, dtype, fill)
        return array

    def _new(self, shape: tuple[int, ...], dtype: Any, fill: float) -> Any:
        array = np.zeros(shape, dtype)
        if fill != 0:  # new memory is zero, and costs nothing until it is touched
            array[...] = fill
        return array

    def view(self, start: int, stop: int) -> PointState:
        """The state of rows start..stop; writing to it writes to the whole."""
        return _StateView(self, start, stop)


class _StateView(PointState):
    def __init__(self, whole: PointState, start: int, stop: int) -> None:
        super().__init__(stop - start)
        self._whole, self._start, self._stop = whole, start, stop

    def get(self, name: str, dtype: Any, fill: float, width: int | None = None) -> Any:
        return self._whole.get(name, dtype, fill, width)[self._start : self._stop]


class Shard(ABC):
    """Rows with their weights and per-row state, and whoever carries out passes over them."""

    n_rows: int
    n_columns: int
    n_threads: int

    @property
    @abstractmethod
    def total_weight(self) -> float:
        """Σ w; the number of rows when there are no weights."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """The labels of all rows; −1 before the first pass."""

    @property
    @abstractmethod
    def lacks(self) -> Mapping[Need, str]:
        """From what passes may need and the rows here are not, to the reason."""

    @property
    def passes_are_cheap(self) -> bool:
        """Whether a pass over the rows costs little beside what is done between passes, as on a card."""
        return Need.CPU in self.lacks and Need.STAY not in self.lacks

    @abstractmethod
    def run(self, work: Pass[Result]) -> Result:
        """Carry out a pass: change the per-row state as it declares, and return its result."""

    def _check(self, work: Pass[Any]) -> None:
        """Refuse a pass whose needs are not met: what `run` begins with."""
        if reason := self.why_not(type(work)):
            raise UnsupportedPassError(f"{type(work).__name__} is not available here: {reason}")

    def why_not(self, kind: Any) -> str:
        """Why passes of a kind, or among a source of candidates, cannot be run here; empty if they can."""
        lacks = self.lacks
        return next((lacks[need] for need in kind.needs if need in lacks), "")

    @abstractmethod
    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        """Some rows as the passes see them, (len(indices), D), or their weights w, errors w·d² or labels."""

    @abstractmethod
    def locate(self, masses: F64, by: Any = "weights") -> Index:
        """Rows at which the running sum of w ("weights"), or of w·d² ("errors"), first exceeds each mass."""

    @abstractmethod
    def subset(self, indices: Index) -> Shard:
        """These rows (ascending) as a shard of their own, with their weights but without labels or other state."""

    @abstractmethod
    def local(self, rows: Floats, weights: F64 | None = None) -> Shard:
        """A C-sized shard of these rows (as `take` returns them) in memory beside the algorithm, on the same threads.

        It sees the rows as they are given: they are not scaled again, and may stay in float32.
        """

    def left(self, codes: NDArray[Any], books: Sequence[NDArray[Any]]) -> Shard:
        """A shard of what code words leave of the rows, of unit length before that if the metric is the cosine.

        `codes` (N, L) has a column for each of the codebooks; without columns the rows themselves are left. Per-row
        state begins anew. A shard over other machines may become the new one itself, until it is asked again.
        """
        raise UnsupportedPassError(f"{type(self).__name__} cannot subtract code words; fit on X.compute() or a file")

    @cached_property
    def _moments(self) -> tuple[F64, F64]:
        found = self.run(Moments())
        return found.mean, found.variance

    def column_moments(self) -> tuple[F64, F64]:
        """Weighted mean and variance of every column."""
        return self._moments

    @cached_property
    def _spreads(self) -> dict[str, Spread]:
        return {}

    def spread(self, covariance_type: str) -> Spread:
        """Second moments of all rows about their mean, of the kind that mixtures of this type need."""
        if covariance_type not in self._spreads:
            one = about_the_mean(*self.column_moments(), covariance_type)
            self._spreads[covariance_type] = Spread.of(one, self.run(Expect(one)))
        return self._spreads[covariance_type]


def answer(shard: Shard, model: Any, want: str) -> NDArray[Any]:
    """What a fitted model says of every row, as one array."""
    pieces = shard.run(Answer(model, want))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
