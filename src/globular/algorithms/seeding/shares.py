"""How many centres a cell of rows gets, and how far from its middle they lie: what Zador's law says about both.

The lowest error of k centres falls like k^(−2/d) in d dimensions. So k children lower the error E_g of a cell to about
E_g k^(−2/d), and

- *shares*: the sum over all cells is lowest for k_g ∝ E_g^(d / (d + 2)). In an evenly filled space that is the same as
  splitting by size; on uneven data sparse and wide cells get more;
- *reach*: centres are means of rows, so the squares of their distances from the middle of the cell are what they
  explain, the share 1 − k^(−2/d) of those of the rows. In few dimensions that is nearly all of it, and rows are good
  seeds. In hundreds it is a few percent, and rows are bad ones: every row is closer to the middle of the cell than to
  any other row, so the seeds that happen to lie near the middle win thousands of rows, and all others hardly more than
  themselves. Iterations do not mend that. Seeds are therefore rows drawn in to √(1 − k^(−2/d)) of their distance.
  (Random codes for Gaussian data reach the lowest error with words of that variance, and not with that of the data.)

Where seeds share the rows evenly, as where a cell is several separate groups, rows serve as well or better; so one has
to look whether some are *hubs*.

[Zador 1982; Cover and Thomas 2006, chapter 10]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from globular.model.statistics import F64
from globular.seam.passes import Index

JUDGES = 4096
"""Rows that tell whether seeds are drawn in; larger = a closer estimate."""
HUBS = 10.0
"""From this hubness of seeds on; two to five are usual. Larger = fewer seeds are drawn in."""
Judge = Callable[[F64], tuple[float, Index]]
"""Assigns some rows to centres: their error, and the sizes of the clusters."""


def share_exponent(dimension: float) -> float:
    """The power of a cell's error that its number of children is proportional to."""
    return dimension / (dimension + 2.0)


def reach(quotas: Index, dimension: float) -> F64:
    """Share of the rows' distance from the middle of their cell at which its centres lie."""
    explained: F64 = 1.0 - np.maximum(quotas, 1.0) ** (-2.0 / dimension)
    return np.sqrt(explained)


def hubness(sizes: Index) -> float:
    """How many times as often two rows share a seed as if all seeds had as many, from some rows of each."""
    n = int(sizes.sum())
    pairs = float(np.square(sizes, dtype=np.float64).sum()) - n
    return len(sizes) * pairs / max(1.0, n * (n - 1.0))


def drawn_in(seeds: F64, middles: F64, quotas: Index, dimension: float, judge: Judge, *, unit: bool) -> F64:
    """Seeds; where some are hubs, the same drawn in towards the middles of their cells if that leaves a lower error."""
    error, sizes = judge(seeds)
    if hubness(sizes) < HUBS:
        return seeds
    around = np.repeat(middles, quotas, axis=0)
    closer = around + np.repeat(reach(quotas, dimension), quotas)[:, None] * (seeds - around)
    if unit:
        closer = of_unit_length(closer, seeds)
    return closer if judge(closer)[0] < error else seeds


def of_unit_length(vectors: F64, others: F64) -> F64:
    """The vectors, scaled; one of length zero has no direction, and is that of the others."""
    lengths = np.linalg.norm(vectors, axis=1)[:, None]
    return np.where(lengths > 0, vectors / np.where(lengths > 0, lengths, 1.0), others)


def apportion(shares: F64, total: int, capacities: F64) -> Index:
    """Whole numbers in proportion to the shares by largest remainder, each between 1 (or 0) and its capacity."""
    least = np.minimum(1.0, capacities)
    scaled = shares / shares.max() if shares.max() > 0 else np.ones_like(shares)
    low, high = -600.0, 600.0  # logarithm of the common factor
    for _ in range(80):
        middle = 0.5 * (low + high)
        if np.clip(np.exp(middle) * scaled, least, capacities).sum() > total:
            high = middle
        else:
            low = middle
    ideal = np.clip(np.exp(low) * scaled, least, capacities)
    quotas = np.floor(ideal)
    missing = total - int(quotas.sum())
    room = np.flatnonzero(quotas < capacities)
    by_remainder = room[np.argsort(-(ideal - quotas)[room], kind="stable")]
    quotas[by_remainder[:missing]] += 1
    return quotas.astype(np.intp)
