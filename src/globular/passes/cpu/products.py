"""Centres prepared for products with rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, kernel, take_number
from globular.model.centers import by_blocks
from globular.model.statistics import F64, Floats
from globular.passes.host import NONE

THIN = 8
"""Columns up to which rows are multiplied by our own kernel: BLAS would mostly pack and unpack."""
AS_THEY_ARE = np.empty(0, dtype=np.intp)
"""An order of centres."""


@kernel
def prepare_centers(
    queue: Queue,  # IN/OUT blocks of members
    size: int,  # IN  members of a block
    centers: Any,  # IN  (C, D) float64
    members: Any,  # IN  (C,) the centres in the order that is wanted, or empty: as they are
    offset: Any,  # IN  (D,) or empty
    factor: float,  # IN
    norms: Any,  # OUT (C,) ‖m‖²
    score_norms: Any,  # OUT (C,) ‖m − offset‖² in that order
    factors: Any,  # OUT (C, D) factor · (m − offset) in that order
) -> None:
    """What products of rows and centres take. O(C · D)."""
    C, D = centers.shape
    begin = size * take_number(queue)
    while begin < C:
        for k in range(begin, min(begin + size, C)):
            c = members[k] if members.shape[0] else k
            norm, score_norm = 0.0, 0.0
            for j in range(D):
                norm += centers[c, j] * centers[c, j]
            if offset.shape[0]:
                for j in range(D):
                    shifted = centers[c, j] - offset[j]
                    score_norm += shifted * shifted
                    factors[k, j] = factor * shifted
            else:
                score_norm = norm
                for j in range(D):
                    factors[k, j] = factor * centers[c, j]
            norms[c], score_norms[k] = norm, score_norm
        begin = size * take_number(queue)


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
