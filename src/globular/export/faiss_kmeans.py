"""`Kmeans` with faiss' names, for programs that have `faiss.Kmeans`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.estimators.kmeans import KMeans

F32 = NDArray[np.float32]


class Kmeans:
    """:class:`globular.KMeans` by the names of ``faiss.Kmeans``, on every row; faiss itself is not needed.

    Parameters
    ----------
    d, k : int
        Columns, and clusters.
    niter : int, default=25
        Most iterations.
    nredo : int, default=1
        Runs from other starts, of which the best is kept.
    verbose : bool, default=False
    spherical : bool, default=False
        Cluster directions. Distances are then inner products of rows and centroids, the largest first.
    seed : int, default=1234
    max_points_per_centroid : int, optional
        Known from faiss, and without effect: nothing is subsampled.

    Attributes
    ----------
    model : KMeans
        The fitted model; `centroids`, `obj` and `index` are made of it.

    Examples
    --------
    >>> import numpy as np
    >>> from globular.export import Kmeans  # was: from faiss import Kmeans
    >>> X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    >>> kmeans = Kmeans(8, 20, niter=20)
    >>> error = kmeans.train(X)
    >>> D, I = kmeans.index.search(X, 1)
    >>> bool(abs(D.sum() / error - 1) < 1e-4)
    True
    """

    def __init__(
        self,
        d: int,
        k: int,
        *,
        niter: int = 25,
        nredo: int = 1,
        verbose: bool = False,
        spherical: bool = False,
        seed: int = 1234,
        max_points_per_centroid: int | None = None,
    ) -> None:
        self.d, self.k = d, k
        self.model = KMeans(
            k, max_iter=niter, n_init=nredo, verbose=int(verbose), metric="cosine" if spherical else "euclidean",
            random_state=seed,
        )  # fmt: skip

    def train(self, x: Any, weights: Any = None, init_centroids: Any = None) -> float:
        """Find the centroids; returns the error, the sum of squared distances."""
        if np.shape(x)[1:] != (self.d,):
            raise ValueError(f"x has shape {np.shape(x)}, expected (n, {self.d})")
        if init_centroids is not None:
            self.model.set_params(init=init_centroids, n_init="auto")
        self.model.fit(x, sample_weight=weights)
        return self.model.inertia_

    @property
    def centroids(self) -> F32:
        """The centres, (k, d)."""
        return self.model.cluster_centers_.astype(np.float32)

    @property
    def obj(self) -> NDArray[np.float64]:
        """The error after every iteration."""
        return np.asarray(self.model.history_.column("objective"), dtype=np.float64)

    @property
    def index(self) -> Kmeans:
        """What has `search`."""
        return self

    def search(self, x: Any, k: int) -> tuple[F32, NDArray[np.int64]]:
        """The `k` closest centroids of every row: squared distances (inner products if spherical) and numbers."""
        labels, distances = self.model.nearest_centers(x, k)
        if self.model.metric == "cosine":
            lengths = np.linalg.norm(np.asarray(x, dtype=np.float64), axis=1, keepdims=True)
            return ((1.0 - distances) * lengths).astype(np.float32), labels.astype(np.int64)
        return np.square(distances).astype(np.float32), labels.astype(np.int64)

    def assign(self, x: Any) -> tuple[F32, NDArray[np.int64]]:
        """The closest centroid of every row: squared distances (inner products if spherical) and numbers."""
        found, labels = self.search(x, 1)
        return found[:, 0], labels[:, 0]
