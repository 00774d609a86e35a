"""What may become of the clusters of a fitted model: a tree of them, cut at any level, and limits on their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.balance import Assignment, balanced
from globular.algorithms.ward import ward_linkage
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.checks import check_allocation, checked_floats, checked_limit
from globular.estimators.elsewhere import where_x_is
from globular.export import centers_from
from globular.model.statistics import F64, I64
from globular.plotting import plot_tree
from globular.seam.passes import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Balance", "ClusterTree", "balance", "cluster_tree"]


@dataclass(frozen=True, eq=False)
class ClusterTree:
    """Which clusters become one first if there shall be fewer: a dendrogram of the centres."""

    linkage: F64
    """The joins as SciPy has them, (n_clusters − 1, 4): two numbers, a height, how many clusters. Half the square of a
    height is what the join adds to the error of k-means."""

    @property
    def n_clusters(self) -> int:
        """Clusters of the model."""
        return len(self.linkage) + 1

    def cut(self, n_clusters: int | None = None, *, distance: float | None = None) -> I64:
        """The group of every cluster, from 0 on; ``tree.cut(10)[model.labels_]`` are those of the rows.

        Parameters
        ----------
        n_clusters : int, optional
            How many groups.
        distance : float, optional
            Or: the height up to which clusters are joined.
        """
        if (n_clusters is None) == (distance is None):
            raise ValueError("give either n_clusters or distance")
        if n_clusters is not None and not 1 <= n_clusters <= self.n_clusters:
            raise ValueError(f"n_clusters must lie between 1 and {self.n_clusters}, got {n_clusters}")
        n_joins = self.n_clusters - n_clusters if n_clusters is not None else 0
        if distance is not None:
            n_joins = int((self.linkage[:, 2] <= distance).sum())
        above = np.arange(self.n_clusters + len(self.linkage))
        for join in range(n_joins - 1, -1, -1):  # from the top, so that what is above is known
            above[self.linkage[join, :2].astype(np.intp)] = above[self.n_clusters + join]
        return np.unique(above[: self.n_clusters], return_inverse=True)[1]

    def plot(self, ax: Axes | None = None, *, n_leaves: int = 30) -> Axes:
        """Draw the top of the tree down to `n_leaves` groups (needs matplotlib)."""
        return plot_tree(self.linkage, ax, n_leaves=n_leaves)


def cluster_tree(model: Any, *, sizes: Any = None) -> ClusterTree:
    """The tree of a model's clusters by Ward's criterion: those are joined that raise the error of k-means least.

    For tens of thousands of clusters at most: the time grows with the square of their number.

    Parameters
    ----------
    model : fitted model, or anything that :func:`globular.export.centers_from` takes
    sizes : array of shape (n_clusters,), optional
        What every cluster weighs: by default its number of rows, the weight of a component, or one for bare centres.

    Examples
    --------
    >>> import globular
    >>> from globular.datasets import many_blobs
    >>> data = many_blobs(2000, 5, 4, center_std=8.0, random_state=0)
    >>> model = globular.KMeans(100, random_state=0).fit(data.X)  # far more than there are
    >>> tree = globular.cluster_tree(model)
    >>> labels = tree.cut(5)[model.labels_]
    >>> from sklearn.metrics import adjusted_rand_score
    >>> adjusted_rand_score(data.y, labels)
    1.0
    """
    centers = centers_from(model).astype(np.float64)
    if sizes is None:
        sizes = getattr(model, "weights_", None) if hasattr(model, "means_") else getattr(model, "cluster_sizes_", None)
    weights = np.ones(len(centers)) if sizes is None else checked_floats(sizes, "sizes", (len(centers),))
    if weights.min() < 0 or weights.sum() == 0:
        raise ValueError("sizes must be at least 0, and not all 0")
    return ClusterTree(ward_linkage(centers, weights))


@dataclass(frozen=True, eq=False)
class Balance:
    """Clusters whose sizes are within limits."""

    labels: Labels
    """The cluster of every row, a row of `centers`."""
    centers: NDArray[np.floating[Any]]
    sizes: F64
    """Rows of every cluster, or the sum of their weights."""
    inertia: float
    """Sum of (weighted) squared distances of the rows to their centres."""
    kept: I64
    """The number that every cluster has in the model."""


def balance(
    model: CentroidEstimator,
    X: Any,
    *,
    max_size: float | None = None,
    min_size: float | None = None,
    sample_weight: Any = None,
    max_iter: int = 10,
) -> Balance:
    """Labels of the rows of X in clusters that are neither too large nor too small, at a small rise of the error.

    Clusters below `min_size` are dissolved, the smallest first, and each of their rows goes to the closest centre that
    is left. Then rows of clusters beyond `max_size` move on to others, those that lose least by it. All centres are
    looked at for every row, and 16 of them remembered: 200 bytes a row.

    Parameters
    ----------
    model : fitted k-means model
    X : array, CSR matrix, data frame, source or path
    max_size : float, optional
        The most rows of a cluster; ``ceil(n_samples / n_clusters)`` makes all alike.
    min_size : float, optional
        The fewest rows of a cluster.
    sample_weight : array of shape (n_samples,), optional
        Sizes are then sums of weights; a row of weight 2 counts as two that stay together.
    max_iter : int, default=10
        How often, with `max_size`, the centres are moved to the means of their rows, as long as that lowers the error;
        0 leaves them where they are.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> model = globular.KMeans(10, random_state=0).fit(X)
    >>> even = globular.balance(model, X, max_size=100)
    >>> even.sizes.tolist() == [100] * 10, bool(even.inertia < 1.3 * model.inertia_)
    (True, True)
    """
    if not isinstance(model, CentroidEstimator):
        raise TypeError(f"model must be a k-means model, got a {type(model).__name__}")
    check_is_fitted(model)
    if max_size is None and min_size is None:
        raise ValueError("give max_size or min_size, or both")
    max_size, min_size = (
        None if size is None else checked_limit(name, size)
        for size, name in ((max_size, "max_size"), (min_size, "min_size"))
    )
    if max_size is not None and min_size is not None and min_size > max_size:
        raise ValueError(f"min_size={min_size:g} is more than max_size={max_size:g}")
    if max_iter < 0:
        raise ValueError(f"max_iter must be at least 0, got {max_iter}")
    data, centers = model._open(X, sample_weight, reset=False), model._centers()
    check_allocation(200 * data.n_rows, "16 centres of every row", "balance X in parts")
    shard = data.shard
    weights = np.asarray(shard.take(np.arange(data.n_rows), "weights"), dtype=np.float64)
    kept = np.arange(len(centers))
    result = None
    if min_size is not None:
        if (everything := weights.sum() * data.unit) * (1 + 1e-12) < min_size:
            raise ValueError(f"min_size={min_size:g} is more than all rows are, {everything:g}; take at most that")
        result = Assignment(shard, centers, weights)
        kept = result.dissolve(min_size / data.unit)
        names = np.full(len(centers), -1, dtype=np.int32)
        names[kept] = np.arange(len(kept))
        result.labels, result.centers, centers = names[result.labels], centers[kept], centers[kept]
    if max_size is not None:
        most, n_clusters = max_size / data.unit, len(centers)
        if weights.sum() > n_clusters * most * (1 + 1e-12):
            raise ValueError(
                f"max_size={max_size:g}: {n_clusters} clusters of that size do not hold all rows; "
                f"take at least {max_size * weights.sum() / (n_clusters * most):.6g}"
            )
        if weights.max() > most * (1 + 1e-12):
            raise ValueError(f"max_size={max_size:g} is less than the weight of a single row")
        limits = most, (min_size or 0.0) / data.unit
        result = balanced(shard, centers, weights, *limits, max_iter, unit=model.metric == "cosine")
    assert result is not None
    labels = result.labels
    if data.left_out is not None:
        labels = data.left_out.join(labels, result.centers, exact=True)
    return Balance(
        where_x_is(X, labels),
        result.centers.astype(data.dtype),
        result.sizes * data.unit,
        result.error * data.unit,
        kept,
    )
