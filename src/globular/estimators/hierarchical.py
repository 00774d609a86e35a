"""`HierarchicalKMeans`: clusters of clusters, and rows drawn evenly from all branches of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.pipeline import ALGORITHMS
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.checks import check_common, check_indices, checked_floats, generator, rows_to_draw
from globular.estimators.inputs import Input
from globular.estimators.kmeans import KMeans
from globular.estimators.parameters import FROM_ONE, FROM_ZERO, Constraints, one_of
from globular.estimators.running import Clock
from globular.model.cells import places_within, starts_of
from globular.model.history import Record
from globular.model.statistics import F64, I64
from globular.seam.answers import Own
from globular.seam.passes import Labels, Total
from globular.seam.shard import answer

Floats = NDArray[np.floating[Any]]
TREE = np.dtype([("level", np.int32), ("number", np.int64), ("parent", np.int64), ("size", np.int64)])
"""A node: its level, 0 the lowest; its number there; the place of its parent in the table, −1 at the top; its rows."""


@dataclass(eq=False, repr=False)
class HierarchicalKMeans(CentroidEstimator):
    """A tree of clusters, bottom up: k-means on the rows, then on the centres, and on the centres of these.

    With `resample` it is the hierarchical k-means of Vo et al. (2024), which spreads clusters evenly over what the data
    show, rather than over where most rows are; :meth:`sample` then draws a balanced part of the rows.

    Parameters
    ----------
    n_clusters : sequence of int or int, default=(8, 2)
        Clusters of each level, the lowest first, fewer from level to level. A single number is a single level.
    resample : int, default=0
        How often each level is fitted anew, to the `sample_size` members of each cluster that are closest to its
        centre alone; all members are assigned after that.
    sample_size : int or None, default=None
        Members of a cluster that count then; None is half the mean size of the clusters.
    weighted : bool, default=False
        Whether a centre weighs as much as its rows where the next level is fitted. By default all count alike, so that
        what is frequent gets no more clusters than what is rare.
    algorithm : {"auto", "exact", "probing", "lloyd"}, default="auto"
        For this and the next three see :class:`KMeans`.
    quality : {"fast", "balanced", "best"}, default="balanced"
    max_iter : int, default=300
    tol : float, default=1e-4
    {metric, exact_labels, random_state, verbose, callbacks, n_threads, device}

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, history_, n_iter_, stopped_ :
        Those of the lowest level, as :class:`KMeans` has them, and all else that it has.
    upper_centers_ : list of arrays of shape (n_clusters[level], n_features)
        The centres of the levels above the lowest.
    parents_ : list of int32 arrays
        For every cluster of a level the number of the one it belongs to on the level above; none for the top.
    level_labels_ : int32 array of shape (n_samples, n_levels)
        The cluster of every row on each level; the first column is `labels_`.
    tree_ : structured array of shape (number of nodes,)
        A line for each cluster, the lowest level first: its "level", its "number" on it, the place of its "parent" in
        the table (−1 at the top), and its "size" in rows.

    Examples
    --------
    >>> from globular import HierarchicalKMeans
    >>> from globular.datasets import many_blobs
    >>> X = many_blobs(5000, 40, 3, center_std=9.0, random_state=0).X
    >>> model = HierarchicalKMeans([100, 10, 3], random_state=0).fit(X)
    >>> model.level_labels_.shape, model.parents_[0].shape, model.tree_.shape
    ((5000, 3), (100,), (113,))
    >>> model.sample(60, random_state=0).shape
    (60,)
    """

    n_clusters: Any = (8, 2)
    _: KW_ONLY
    resample: int = 0
    sample_size: int | None = None
    weighted: bool = False
    algorithm: str = "auto"
    quality: Literal["fast", "balanced", "best"] = "balanced"
    max_iter: int = 300
    tol: float = 1e-4
    metric: Literal["euclidean", "cosine"] = "euclidean"
    exact_labels: bool = False
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _constraints: ClassVar[Constraints] = {
        "n_clusters": [FROM_ONE, "array-like"],
        "resample": [FROM_ZERO],
        "algorithm": [one_of("auto", *ALGORITHMS)],
    }

    def _validate_params(self) -> None:
        super()._validate_params()
        levels = np.atleast_1d(np.asarray(self.n_clusters))
        whole = levels.ndim == 1 and len(levels) > 0 and levels.dtype.kind in "iu"
        if not whole or levels[-1] < 1 or (np.diff(levels) >= 0).any():
            raise ValueError(
                f"n_clusters={self.n_clusters!r} must hold whole numbers of at least 1, the lowest level first, fewer "
                "from level to level, such as (1000, 50)"
            )

    @property
    def _levels(self) -> list[int]:
        """Clusters of each level."""
        levels: list[int] = np.atleast_1d(np.asarray(self.n_clusters)).tolist()
        return levels

    def _n_rows_wanted(self) -> int:
        return self._levels[0]

    def _begin_with(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        random_state = generator(self.random_state)
        self.upper_centers_: list[Floats] = []
        self.parents_: list[Labels] = []
        model = self._level(0, random_state)
        model.n_features_in_ = data.n_columns
        for record in model._begin_with(data, clock, watched):
            self._show(model)
            yield record
        model = self._resampled(0, model, data, random_state)
        self._show(model)
        centers, sizes = model.cluster_centers_, self._weights_of(data)
        for level in range(1, len(self._levels)):
            model = self._level(level, random_state)
            data = model._open(centers, sizes if self.weighted else None, reset=True)
            for _ in model._begin_with(data, Clock(), False):
                pass
            model = self._resampled(level, model, data, random_state)
            centers = model.cluster_centers_
            sizes = np.bincount(model.labels_, sizes, minlength=len(centers)).astype(np.float64)
            self.upper_centers_.append(centers)
            self.parents_.append(model.labels_)

    def _level(self, level: int, random_state: np.random.Generator) -> KMeans:
        above = level > 0  # there are few rows, and callbacks have heard of the end
        return KMeans(
            self._levels[level], algorithm=self.algorithm, quality=self.quality, max_iter=self.max_iter,
            tol=self.tol, metric=self.metric, exact_labels=self.exact_labels or above,
            random_state=int(random_state.integers(2**31)), verbose=0 if above else self.verbose,
            callbacks=None if above else self.callbacks, n_threads=self.n_threads, device=self.device,
        )  # fmt: skip

    def _show(self, model: KMeans) -> None:
        """Take over what the lowest level has found so far."""
        self.__dict__.pop("labels_", None)
        self.__dict__.update({name: value for name, value in vars(model).items() if name.endswith("_")})

    def _resampled(self, level: int, model: KMeans, data: Input, random_state: np.random.Generator) -> KMeans:
        """The same level, fitted anew to the closest members of its clusters, several times."""
        k, shard = self._levels[level], data.shard
        for _ in range(self.resample):
            labels, squares = np.asarray(shard.labels), answer(shard, Own(model._centers()), "squares")
            order = np.lexsort((squares, labels))
            place = places_within(np.bincount(labels, minlength=k))
            rows = np.sort(order[place < (self.sample_size or max(1, len(order) // (2 * k)))])
            if len(rows) < k:  # equal rows, of which some clusters have none
                break
            matrix = None if data.matrix is None else data.matrix[rows]
            part = replace(data, shard=shard.subset(rows), n_rows=len(rows), matrix=matrix, left_out=None)
            again = self._level(level, random_state).set_params(callbacks=None, verbose=0)
            again.n_features_in_ = data.n_columns
            for _ in again._begin_with(part, Clock(), False):
                pass
            again._label(data, again._last_probes(data), np.inf, labelled=False)
            model = again
        return model

    def _weights_of(self, data: Input) -> F64:
        """What the clusters of the lowest level weigh."""
        return np.asarray(data.shard.run(Total("weights", "labels", self._levels[0]))) * data.unit

    @property
    def level_labels_(self) -> Labels:
        """See above."""
        columns = [np.asarray(self.labels_)]
        for parents in self.parents_:
            columns.append(parents[columns[-1]])
        return np.stack(columns, axis=1)

    @property
    def tree_(self) -> NDArray[Any]:
        """See above."""
        counts, sizes = [len(self.cluster_centers_), *map(len, self.upper_centers_)], [self.cluster_sizes_]
        starts = starts_of(counts)
        nodes = np.empty(starts[-1], dtype=TREE)
        for level, parents in enumerate(self.parents_):
            sizes.append(np.bincount(parents, sizes[-1], minlength=counts[level + 1]))
        nodes["level"], nodes["size"] = np.repeat(np.arange(len(counts)), counts), np.concatenate(sizes)
        nodes["number"] = np.arange(len(nodes)) - np.repeat(starts[:-1], counts)
        above = [parents + starts[level + 1] for level, parents in enumerate(self.parents_)]
        nodes["parent"] = np.concatenate([*above, np.full(counts[-1], -1)])
        return nodes

    def sample(self, n_samples: int = 1, random_state: Any = None) -> I64:
        """Rows of the fit drawn evenly over the tree, as their numbers in ascending order.

        All clusters of the top get the same share, those within one of them too, and so down to the rows; what a branch
        is too small for goes to the others beside it. No row comes twice.
        """
        check_is_fitted(self)
        wanted, rng, nodes = rows_to_draw(n_samples), generator(random_state), self.tree_
        if wanted > len(self.labels_):
            raise ValueError(f"n_samples={wanted} is more than the {len(self.labels_)} rows of the fit; take fewer")
        quotas = np.zeros(len(nodes), dtype=np.int64)
        order = np.argsort(nodes["parent"], kind="stable")
        families = starts_of(np.bincount(nodes["parent"] + 1, minlength=len(nodes) + 1))
        for parent in [-1, *range(len(nodes) - 1, len(self.cluster_centers_) - 1, -1)]:
            family = order[families[parent + 1] : families[parent + 2]]
            if (quota := wanted if parent < 0 else quotas[parent]) > 0:
                quotas[family] = even_shares(int(quota), nodes["size"][family], rng)
        labels = np.asarray(self.labels_)
        mixed = rng.permutation(len(labels))
        mixed = mixed[np.argsort(labels[mixed], kind="stable")]
        place = places_within(nodes["size"][: len(self.cluster_centers_)])
        return np.sort(mixed[place < quotas[labels[mixed]]])

    def _check_state(self) -> None:
        check_common(self, "inertia_")
        centers = [self.cluster_centers_, *self.upper_centers_]
        if len(self.parents_) != len(self.upper_centers_) or len(centers) != len(self._levels):
            raise ValueError(f"the levels of the tree are not those of n_clusters={self.n_clusters!r}; fit again")
        for n, table in zip(self._levels, centers, strict=True):
            checked_floats(table, "cluster_centers_", (n, self.n_features_in_))
        for level, parents in enumerate(self.parents_):
            check_indices(parents, "parents_", (len(centers[level]),), len(centers[level + 1]))
        if isinstance(labels := getattr(self, "labels_", None), np.ndarray):
            check_indices(labels, "labels_", (None,), len(centers[0]))


def even_shares(n: int, sizes: I64, rng: np.random.Generator) -> I64:
    """Shares that add up to n ≤ Σ sizes, all alike but for those of a smaller size; what is left over goes by lot."""
    low, high = 0, int(sizes.max())
    while low < high:  # the largest share that all may have
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(sizes, middle).sum() <= n else (low, middle - 1)
    shares: I64 = np.minimum(sizes, low)
    room = np.flatnonzero(sizes > low)
    shares[rng.permutation(room)[: n - shares.sum()]] += 1
    return shares
