"""Rows in clusters of limited size at the least cost: every cluster is as many places as it may have rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from globular.model.statistics import F64


def least_cost(costs: F64, least: int, most: int) -> tuple[float, NDArray[Any]]:
    """The least sum of costs (N, C) within the limits, and the labels; infinite costs are no clusters.

    Rows that there are not take the places that are left over, but none of the first `least` of a cluster.
    """
    n, C = costs.shape
    ample = 1e6 * (1.0 + float(np.abs(costs[np.isfinite(costs)]).max()))
    wanted = np.arange(most) < least
    places = np.repeat(np.where(np.isfinite(costs), costs, ample), most, axis=1)
    nobody = np.tile(np.where(wanted, ample, 0.0), (max(0, C * most - n), C))
    rows, columns = linear_sum_assignment(np.vstack([places, nobody]))
    labels = columns[np.argsort(rows)][:n] // most
    return float(costs[np.arange(n), labels].sum()), labels
