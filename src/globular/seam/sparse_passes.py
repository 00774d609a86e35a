"""Passes over sparse rows in memory whose centres and seeds are sparse too: see `model.sparse_centers`."""

from __future__ import annotations

from dataclasses import dataclass

from globular.model.sparse_centers import SparseCenters, SparseSeeds, SparseStatistics
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Need
from globular.seam.passes import HERE, Effect, Pass

SPARSE_HERE = HERE | Need.SPARSE | Need.FEW_ENTRIES | Need.CPU


@dataclass(frozen=True, eq=False)
class AssignSparse(Pass[SparseStatistics]):
    """`Assign` to all of some sparse centres; the sums are sparse, and rows get their squared distances."""

    needs = SPARSE_HERE
    effect = Effect({"labels", "d2"}, afresh=True)
    centers: SparseCenters


@dataclass(frozen=True, eq=False)
class LabelSparse(Pass[HardStatistics]):
    """`Assign` to all of some sparse centres, which wants "labels"."""

    needs = SPARSE_HERE
    effect = Effect({"labels"}, afresh=True)
    centers: SparseCenters


@dataclass(frozen=True, eq=False)
class SeedSparse(Pass[SparseSeeds]):
    """Draw seeds by greedy k-means++, each the best of several draws, after the `n_before` that were drawn before.

    `draws` holds numbers in [0, 1), (seeds, trials). Fewer seeds where there are fewer distinct rows.
    """

    needs = SPARSE_HERE
    draws: F64
    n_before: int = 0
    is_last: bool = False
    """Whether no seeds will be drawn after these."""

    @property
    def effect(self) -> Effect:
        return Effect({"d2", "seeds"}, afresh=self.n_before == 0)
