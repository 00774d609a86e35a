"""The probing pass in plain NumPy: rows search the centres of their closest cells and keep the closest they know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CenterCells
from globular.model.statistics import F64
from globular.reference.hard import squared_distances


def probing_pass(
    rows: F64, centers: F64, cells: CenterCells, n_probes: int, labels: NDArray[np.int32]
) -> tuple[NDArray[np.int32], F64]:
    """New labels and squared distances to them; `rows` as the passes see them."""
    to_cells = squared_distances(rows, cells.middles)
    to_centers = squared_distances(rows, centers)
    new_labels, best = labels.copy(), to_centers[np.arange(len(rows)), labels]
    for i in range(len(rows)):
        for cell in np.argsort(to_cells[i], kind="stable")[:n_probes]:
            members = cells.order[cells.starts[cell] : cells.starts[cell + 1]]
            closest = members[np.argmin(to_centers[i, members])]
            if to_centers[i, closest] < best[i]:
                new_labels[i], best[i] = closest, to_centers[i, closest]
    return new_labels, best
