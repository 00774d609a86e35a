"""Centres prepared for products with rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.kernels.centers import prepare_centers
from globular.model.centers import by_blocks
from globular.model.statistics import F64, Floats
from globular.passes.host import NONE

THIN = 8
"""Columns up to which rows are multiplied by our own kernel: BLAS would mostly pack and unpack."""
AS_THEY_ARE = np.empty(0, dtype=np.intp)
"""An order of centres."""


def prepared(
    centers: F64, factor: float, dtype: np.dtype, n_threads: int, members: NDArray[np.intp] = AS_THEY_ARE,
    offset: F64 = NONE,
) -> tuple[F64, Floats, Floats]:  # fmt: skip
    """‖m‖² of the centres; ‖m − offset‖² and factor · (m − offset) in the order of `members`, in another precision."""
    norms, score_norms, factors = np.empty(len(centers)), np.empty(len(centers), dtype), np.empty(centers.shape, dtype)
    by_blocks(
        lambda queue, size: prepare_centers(queue, size, centers, members, offset, factor, norms, score_norms, factors),
        centers.shape, n_threads,
    )  # fmt: skip
    return norms, score_norms, factors
