"""Where a value belongs among ascending ones, against NumPy's own search."""

from typing import Any

import numpy as np
import pytest

from globular.passes.cpu.grouped import count_up_to


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 64])
def test_it_counts_as_numpy_does(n: int, dtype: Any) -> None:
    ascending = np.sort(np.random.default_rng(n).integers(0, 20, n)).astype(dtype)
    for value in range(-1, 22):
        assert count_up_to(ascending, dtype(value)) == np.searchsorted(ascending, value, side="right")
