"""Per-point state: named arrays with one entry per row, and views of a range of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray


class PointState:
    """Named per-point arrays, made when a pass first asks for them."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._arrays: dict[str, NDArray[np.generic]] = {}

    def get(self, name: str, dtype: DTypeLike, fill: float, width: int | None = None) -> NDArray[np.generic]:
        """The array of that name; made and filled on first use or when its width changed."""
        shape = (self.n_rows,) if width is None else (self.n_rows, width)
        array = self._arrays.get(name)
        if array is None or array.shape != shape:
            array = np.zeros(shape, dtype)
            if fill != 0:  # new memory is zero, and costs nothing until it is touched
                array[...] = fill
            self._arrays[name] = array
        return array

    def view(self, start: int, stop: int) -> PointState:
        """The state of rows start..stop; writing to it writes to the whole."""
        return _StateView(self, start, stop)


class _StateView(PointState):
    def __init__(self, whole: PointState, start: int, stop: int) -> None:
        super().__init__(stop - start)
        self._whole, self._start, self._stop = whole, start, stop

    def get(self, name: str, dtype: DTypeLike, fill: float, width: int | None = None) -> NDArray[np.generic]:
        return self._whole.get(name, dtype, fill, width)[self._start : self._stop]

    def view(self, start: int, stop: int) -> PointState:
        return self._whole.view(self._start + start, self._start + stop)
