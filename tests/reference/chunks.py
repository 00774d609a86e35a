"""The E-step of Chunky EM, equation by equation, from the rows of every cell: the oracle of `cell_pass`.

Nothing here uses cached statistics: averages over a cell are taken over its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from globular.model.chunks import ShareRule
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from reference.expect import log_joint, scatter_of


@dataclass(frozen=True, slots=True)
class Cell:
    """The rows of a cell and their weights."""

    rows: F64
    weights: F64


def expected_joint(cell: Cell, mixture: GaussianParameters) -> F64:
    """⟨log p(s, x)⟩ over the cell, (C,): the exponent of Eq. 10."""
    return np.asarray(np.average(log_joint(cell.rows, mixture), axis=0, weights=cell.weights))


def responsibilities(cell: Cell, mixture: GaussianParameters, rule: ShareRule) -> F64:
    """q_A(s): Eq. 10, or the posterior of the cell's mean."""
    joint = expected_joint(cell, mixture)
    if rule == "centroid":
        mean = cell.rows[0] + np.average(cell.rows - cell.rows[0], axis=0, weights=cell.weights)
        joint = log_joint(mean[None, :], mixture)[0]
    return np.asarray(np.exp(joint - np.logaddexp.reduce(joint)))


def bound(cell: Cell, mixture: GaussianParameters, rule: ShareRule = "optimal") -> float:
    """F_A, Eq. 9."""
    q = responsibilities(cell, mixture, rule)
    joint = expected_joint(cell, mixture)
    held = q > 0
    return float(cell.weights.sum() * (q[held] @ (joint[held] - np.log(q[held]))))


def cell_pass(cells: Sequence[Cell], mixture: GaussianParameters, rule: ShareRule = "optimal") -> SoftStatistics:
    """Statistics of the E-step: Eqs. 12–14 before the division, about the means of the mixture."""
    C, D = mixture.means.shape
    counts, sums, scatter = np.zeros(C), np.zeros((C, D)), np.zeros((C, D, D))
    total, weight = 0.0, 0.0
    for cell in cells:
        q = responsibilities(cell, mixture, rule)
        differences = cell.rows[:, None, :] - mixture.means  # (n, C, D)
        shares = cell.weights[:, None] * q
        counts += shares.sum(axis=0)
        sums += np.einsum("nc,ncd->cd", shares, differences)
        scatter += np.einsum("nc,ncd,nce->cde", shares, differences, differences)
        total += bound(cell, mixture, rule)
        weight += float(cell.weights.sum())
    return SoftStatistics(counts, sums, scatter_of(scatter, mixture.family.scatter), total, weight, len(cells) * C)
