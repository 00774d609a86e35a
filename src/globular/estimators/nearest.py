"""What centres are asked for beside labels: distances, the m closest ones of a row, the row closest to each."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.probing import find_labels
from globular.data.open import as_source
from globular.estimators.certificates import Certificate, of_centers
from globular.estimators.devices import where_x_is
from globular.estimators.inputs import Input, open_input
from globular.estimators.memory import check_allocation
from globular.model.statistics import F64, I64
from globular.seam.answers import NEAREST, Centers, Nearest, Own
from globular.seam.passes import Assign, Labels
from globular.seam.shard import answer

BLOCK_BYTES = 1 << 27
"""About what a block of distances takes that are written somewhere else."""


class NearestCenters:
    """Base of estimators with `cluster_centers_` and a `metric`."""

    metric: str
    n_threads: int | None
    n_features_in_: int
    cluster_centers_: NDArray[np.floating[Any]]

    def nearest_centers(self, X: Any, n_centers: int = 1) -> tuple[Labels, F64]:
        """The closest centres of every row, the closest first, and how far they are.

        All centres are looked at, and memory is needed for the answer alone.

        Parameters
        ----------
        X : array, CSR matrix, data frame, source or path
        n_centers : int, default=1
            How many for every row.

        Returns
        -------
        labels : int32 array of shape (n_samples, n_centers)
        distances : float64 array of shape (n_samples, n_centers)
            Cosine distances if the metric is the cosine.

        Examples
        --------
        >>> from globular import KMeans
        >>> model = KMeans(3, init=[[0.0], [4.0], [9.0]]).fit([[0.0], [4.0], [9.0]])
        >>> labels, distances = model.nearest_centers([[1.0], [8.0]], 2)
        >>> labels.tolist(), distances.tolist()
        ([[0, 1], [2, 1]], [[1.0, 3.0], [1.0, 4.0]])
        """
        check_is_fitted(self)
        if not 1 <= n_centers <= len(self.cluster_centers_):
            raise ValueError(f"n_centers must lie between 1 and {len(self.cluster_centers_)}, got {n_centers}")
        data = self._open(X, None, reset=False)
        n_bytes = 2 * NEAREST.itemsize * data.n_rows * n_centers
        check_allocation(n_bytes, f"{n_centers} centres of every row", "pass X in parts")
        found = answer(data.shard, Nearest(self._centers(), n_centers), "nearest")
        return where_x_is(X, found["center"].copy()), where_x_is(X, self._distance(found["square"]))

    def medoids(self, X: Any) -> I64:
        """The number of the row of X that is closest to each centre, among the rows of that cluster.

        Returns
        -------
        int64 array of shape (n_clusters,)
            −1 for a cluster that has no row in X.

        Examples
        --------
        >>> from globular import KMeans
        >>> X = [[0.0], [1.1], [2.0], [9.0]]
        >>> model = KMeans(2, init=[[1.0], [9.0]]).fit(X)
        >>> model.medoids(X).tolist()
        [1, 3]
        """
        labels, distances = self._labels_and_distances(X)
        order = np.lexsort((distances, labels))
        found, first = np.unique(labels[order], return_index=True)
        medoids = np.full(len(self.cluster_centers_), -1, dtype=np.int64)
        medoids[found] = order[first]
        return medoids

    def certificate(self, X: Any, n_samples: int = 1000) -> Certificate:
        """What a search among few centres misses of X, such as that of ``predict(X, exact=False)`` or of "probing".

        Parameters
        ----------
        X : array, CSR matrix, data frame, source or path
        n_samples : int, default=1000
            Rows drawn at random, each of which is held against all centres.

        Returns
        -------
        certificate : Certificate
            `missed`, the share of rows whose closest centre is not found; `loss`, the share by which the mean squared
            distance is larger for it; and their standard errors.
        """
        check_is_fitted(self)
        return of_centers(self._open(X, None, reset=False).shard, self._centers(), n_samples)

    def _labels_and_distances(self, X: Any, exact: bool = True) -> tuple[Labels, F64]:
        """The closest centre of every row, and the distance to it."""
        data, centers = self._open(X, None, reset=False), self._centers()
        if exact:
            data.shard.run(Assign(centers, want="labels"))
        else:
            find_labels(data.shard, centers, np.random.default_rng(0))
        return np.asarray(data.shard.labels), self._distance(answer(data.shard, Own(centers), "squares"))

    def _distance(self, squares: F64) -> F64:
        """Distances by ‖x − μ‖², which is twice the cosine distance of rows of unit length."""
        return squares / 2.0 if self.metric == "cosine" else np.sqrt(squares)

    @abstractmethod
    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        """The rows of X as passes see them."""

    @abstractmethod
    def _centers(self) -> F64:
        """The centres, checked."""

    def _transform_into(self, X: Any, out: Any) -> Any:
        """Distances of every row to all centres, written to an array block by block."""
        check_is_fitted(self)
        source, C = as_source(X), len(self.cluster_centers_)
        shape = tuple(getattr(out, "shape", ()))
        if shape != (source.n_rows, C):
            raise ValueError(
                f"out must be an array of the shape {(source.n_rows, C)}, got {shape or type(out).__name__}"
            )
        for block in source.blocks(max(1, BLOCK_BYTES // (8 * C))):
            data = open_input(self, as_source(block.rows), reset=False, n_threads=self.n_threads)
            out[block.start : block.stop] = answer(data.shard, Centers(self.cluster_centers_, self.metric), "distances")
        return out
