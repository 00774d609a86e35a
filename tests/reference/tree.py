"""Statistics of sets of rows by brute force: the oracle of the partition tree."""

from dataclasses import dataclass

import numpy as np

from globular.model.statistics import F64


@dataclass(frozen=True, slots=True)
class SetStatistics:
    """Weight, mean and scatter about the mean of a set of rows."""

    weight: float
    mean: F64
    scatter: F64
    """Σ w (x − x̄)(x − x̄)ᵀ, (D, D)."""


def set_statistics(rows: F64, weights: F64) -> SetStatistics:
    """Of these rows in one go; rows that do not count at all have their plain mean."""
    total = float(weights.sum())
    # about the first row: a sum of far rows would lose what a two-sweep mean keeps
    mean = rows[0] + np.average(rows - rows[0], axis=0, weights=weights if total > 0 else None)
    differences = rows - mean
    return SetStatistics(total, mean, np.einsum("n,nd,ne->de", weights, differences, differences))
