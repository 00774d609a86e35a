"""The probing passes in plain NumPy: rows search the centres of their closest cells and keep the best they know."""

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import VISITS_ABOVE, CenterCells
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from reference.assign import squared_distances
from reference.expect import log_joint
from reference.neighbors import kept_statistics


def visited_cells(rows: F64, cells: CenterCells, n_probes: int) -> tuple[list[NDArray[np.intp]], int]:
    """The cells that each row visits, closest first, and the number of distances to find them.

    With cells of cells: the closest cells among those in the few closest cells above.
    """
    to_cells = squared_distances(rows, cells.middles)
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        return list(np.argsort(to_cells, axis=1, kind="stable")[:, :n_visits]), to_cells.size
    above, visits = cells.above, []
    to_above = squared_distances(rows, above.middles)
    n_distances = to_above.size
    for i in range(len(rows)):
        routes = np.argsort(to_above[i], kind="stable")[:VISITS_ABOVE]
        near = np.concatenate([np.arange(above.starts[g], above.starts[g + 1]) for g in routes])
        closest = near[np.argsort(to_cells[i, near], kind="stable")][:n_visits]
        visits.append(np.concatenate([closest, np.repeat(closest[:1], n_visits - len(closest))]))
        n_distances += len(near)
    return visits, n_distances


def probing_pass(
    rows: F64, centers: F64, cells: CenterCells, n_probes: int, labels: NDArray[np.int32]
) -> tuple[NDArray[np.int32], F64]:
    """New labels and squared distances to them; `rows` as the passes see them."""
    visits, _ = visited_cells(rows, cells, n_probes)
    to_centers = squared_distances(rows, centers)
    new_labels, best = labels.copy(), to_centers[np.arange(len(rows)), labels]
    for i in range(len(rows)):
        for cell in visits[i]:
            members = cells.order[cells.starts[cell] : cells.starts[cell + 1]]
            closest = members[np.argmin(to_centers[i, members])]
            if to_centers[i, closest] < best[i]:
                new_labels[i], best[i] = closest, to_centers[i, closest]
    return new_labels, best


def nominated_members(
    rows: F64, joint: F64, by_columns: F64, cells: CenterCells | None, n_probes: int, n_nominees: int,
    members: NDArray[np.int32],
) -> tuple[NDArray[np.int32], int]:  # fmt: skip
    """New K(n), best first by log p(c, x), `joint`, and the number of distances.

    The components of the visited cells that are best by `by_columns` are candidates beside those of K(n).
    """
    visits, n_distances = (None, 0) if cells is None else visited_cells(rows, cells, n_probes)
    kept = np.full_like(members, -1)
    for i, known in enumerate(members):
        own, visited = [int(c) for c in known if c >= 0], list[int]()
        if cells is not None and visits is not None:
            visited = [int(c) for cell in visits[i] for c in cells.order[cells.starts[cell] : cells.starts[cell + 1]]]
        seen = np.unique(visited).astype(int)
        nominees = seen[np.argsort(-by_columns[i, seen], kind="stable")][:n_nominees].tolist()
        space = own + [c for c in nominees if c not in own]
        n_distances += len(visited) + len(space)
        best = [space[k] for k in np.argsort(-joint[i, space], kind="stable")][: len(known)]
        kept[i, : len(best)] = best
    return kept, n_distances


def probing_soft_pass(
    rows: F64, weights: F64, mixture: GaussianParameters, cells: CenterCells, n_probes: int, members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], SoftStatistics, float]:
    """New K(n), best first, the statistics that go with it, and what the free energy has gained by the search."""
    joint = log_joint(rows, mixture)
    visits, n_distances = visited_cells(rows, cells, n_probes)
    kept = np.full_like(members, -1)
    for i, known in enumerate(members):
        own = [int(c) for c in known if c >= 0]
        visited = [int(c) for cell in visits[i] for c in cells.order[cells.starts[cell] : cells.starts[cell + 1]]]
        n_distances += len(own) + len(visited)
        space = own + [c for c in visited if c not in own]
        best = [space[k] for k in np.argsort(-joint[i, space], kind="stable")][: len(known)]
        kept[i, : len(best)] = best
    _, before = kept_statistics(rows, weights, mixture, members, 0)
    _, after = kept_statistics(rows, weights, mixture, kept, n_distances)
    return kept, after, after.log_likelihood - before.log_likelihood
