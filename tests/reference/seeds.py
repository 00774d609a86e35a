"""Seeding passes in plain NumPy: the oracle of the tests."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CellTree
from globular.model.statistics import F64, HardStatistics
from reference.assign import squared_distances


@dataclass(frozen=True, slots=True)
class SeedDistances:
    """Distances of all rows to all seeds given so far."""

    d2: F64
    """min_s ‖x − m_s‖², (N,)."""
    seeds: NDArray[np.intp]
    """The lowest s that attains it."""
    potential: float
    """Σ w d²."""


def seed_distances(rows: F64, weights: F64, seeds: F64) -> SeedDistances:
    """What the state of `AddSeeds` must be after these seeds, in any batches."""
    distances = squared_distances(rows, seeds)
    d2 = distances.min(axis=1)
    return SeedDistances(d2, distances.argmin(axis=1), float(weights @ d2))


def blended(rows: F64, weights: F64, seeds: F64, of_seeds: F64, share: float) -> F64:
    """What the d² of `BlendErrors` must be after these seeds."""
    found = seed_distances(rows, weights, seeds)
    return of_seeds[found.seeds] + share * found.d2


def trial_potentials(rows: F64, weights: F64, d2: F64, centers: F64) -> F64:
    """Σ w min(d², ‖x − m‖²) for each trial."""
    return weights @ np.minimum(d2[:, None], squared_distances(rows, centers))


def locate(shares: F64, masses: F64) -> NDArray[np.intp]:
    """Rows at which the running sum of the shares first exceeds each mass."""
    return np.searchsorted(np.cumsum(shares), masses, side="right")


def routed(rows: F64, weights: F64, tree: CellTree) -> tuple[NDArray[np.intp], HardStatistics]:
    """Labels and statistics of a routed pass from the top of the tree, row by row."""
    labels = np.zeros(len(rows), dtype=np.intp)
    d2 = np.empty(len(rows))
    n_distances = 0
    for i, row in enumerate(rows):
        cell = 0
        for level in tree.levels:
            children = np.arange(level.starts[cell], level.starts[cell + 1])
            distances = ((level.centers[children] - row) ** 2).sum(axis=1)
            n_distances += len(children)
            cell, d2[i] = int(children[distances.argmin()]), distances.min()
        labels[i] = cell
    sums = np.zeros_like(tree.centers)
    np.add.at(sums, labels, weights[:, None] * rows)
    counts, errors = np.zeros(len(sums)), np.zeros(len(sums))
    np.add.at(counts, labels, weights)
    np.add.at(errors, labels, weights * d2)
    return labels, HardStatistics(sums, counts, float(errors.sum()), len(rows), n_distances, errors=errors)
