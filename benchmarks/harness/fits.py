"""The calls of every library, each from nothing to centres, seeding included.

Traps that make comparisons unfair, and what is done about them here:

- faiss and superkmeans drop rows above 256 per cluster unless told otherwise (`max_points_per_centroid`);
- the OpenBLAS inside the faiss wheel takes new processors for very old ones: `tune_openblas` names a better
  core type to the process before anything is imported (only what this processor can run);
- faiss 1.15 leaves BLAS unused below 128,000 rows, about nine times slower in the plane (51,200 rows, 1,024
  clusters) and no different from 32 features on: the threshold is lowered to 20 rows;
- superkmeans picks a hierarchy, a subsample and an early stop by itself: `superkmeans-defaults` shows that,
  the other two settings switch it off;
- mlpack with a start returns a view into the memory of that start, which is garbage once the array is gone:
  the start is kept and the result copied. Empty clusters are allowed, which its manual calls faster; its
  seed 0 means the clock, so seeds are moved by one;
- lance accepts a start, but none made a visible difference (100 to 500 clusters), and it cannot be seeded:
  its start is not offered. It fits the first 512 rows per cluster, whatever their order (GloVe's are sorted by
  frequency: 16 centres left more error than the mean of all rows), so it is given as many random ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Float32 rows, dense and C-contiguous or CSR, and their weights."""

    X: Any
    weights: NDArray[np.float32] | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether X is CSR."""
        return not isinstance(self.X, np.ndarray)

    def write(self, folder: Path) -> None:
        """Leave the rows where another process can `read` them."""
        if self.is_sparse:
            import_module("scipy.sparse").save_npz(folder / "rows.npz", self.X, compressed=False)
        else:
            np.save(folder / "rows.npy", self.X)
        if self.weights is not None:
            np.save(folder / "weights.npy", self.weights)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote."""
        dense, weights = folder / "rows.npy", folder / "weights.npy"
        X = np.load(dense) if dense.is_file() else import_module("scipy.sparse").load_npz(folder / "rows.npz")
        return cls(X, np.load(weights) if weights.is_file() else None)


@dataclass(frozen=True)
class Task:
    """What every library is asked for: centres of X, from a given start or its own seeds.

    X is dense float32, or CSR for adapters that `accepts_sparse`; weights come only to those that `accepts_weights`.
    """

    X: Any
    n_clusters: int
    n_iter: int
    threads: int
    seed: int
    start: Matrix | None = None
    weights: NDArray[np.floating[Any]] | None = None

    def start_or(self, seeding: str) -> Matrix | str:
        """The given start, or else the name of a seeding."""
        return seeding if self.start is None else self.start

    def small(self, n_rows: int) -> Task:
        """The same on the first rows: a fit of it takes imports, compilation and thread pools out of the next one."""
        weights = None if self.weights is None else self.weights[:n_rows]
        n_clusters = min(self.n_clusters, max(1, min(n_rows, self.X.shape[0]) // 4))
        return replace(
            self, X=self.X[:n_rows], n_clusters=n_clusters, n_iter=min(self.n_iter, 3), start=None, weights=weights
        )


def globular(task: Task, *, algorithm: str, seeding: str) -> NDArray[Any]:
    # Threads come from GLOBULAR_NUM_THREADS, set before the import.
    init = task.start_or(seeding)
    model = import_module("globular").KMeans(
        task.n_clusters, algorithm=algorithm, init=init, max_iter=task.n_iter, tol=0.0, random_state=task.seed
    )
    return model.fit(task.X).cluster_centers_


def globular_quality(task: Task, *, quality: str) -> NDArray[Any]:
    # Defaults but for the knob: it decides by itself how long to go on, so n_iter means nothing here.
    model = import_module("globular").KMeans(task.n_clusters, quality=quality, random_state=task.seed)
    return model.fit(task.X, sample_weight=task.weights).cluster_centers_


def globular_nested(task: Task) -> NDArray[Any]:
    model = import_module("globular").NestedMiniBatchKMeans(task.n_clusters, random_state=task.seed)
    return model.fit(task.X, sample_weight=task.weights).cluster_centers_


def sklearn_like(task: Task, *, module: str, algorithm: str) -> NDArray[Any]:
    options: dict[str, Any] = {"n_jobs": task.threads} if module.startswith("sklearnex") else {}
    options |= {"init": task.start_or("random"), "n_init": 1, "max_iter": task.n_iter, "tol": 0.0}
    model = import_module(module).KMeans(task.n_clusters, algorithm=algorithm, random_state=task.seed, **options)
    return model.fit(task.X).cluster_centers_


def sklearn_defaults(task: Task, *, module: str) -> NDArray[Any]:
    # One run as most people make it: k-means++ seeds, then Lloyd until the shifts are small; n_iter means nothing here.
    options: dict[str, Any] = {"n_jobs": task.threads} if module.startswith("sklearnex") else {}
    model = import_module(module).KMeans(task.n_clusters, n_init=1, random_state=task.seed, **options)
    return model.fit(task.X, sample_weight=task.weights).cluster_centers_


def sklearn_minibatch(task: Task) -> NDArray[Any]:
    options = {"init": task.start_or("random"), "n_init": 1, "max_iter": task.n_iter, "max_no_improvement": None}
    cls = import_module("sklearn.cluster").MiniBatchKMeans
    return cls(task.n_clusters, batch_size=10_000, random_state=task.seed, **options).fit(task.X).cluster_centers_


def faiss(task: Task, *, cls: str = "Kmeans", seeding: str | None = None) -> NDArray[Any]:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(task.threads)
    faiss.cvar.distance_compute_blas_threshold = 20
    options: dict[str, Any] = {"max_points_per_centroid": 10**9, "min_points_per_centroid": 1}
    if seeding is not None:
        options["init_method"] = getattr(faiss, seeding)
    model = getattr(faiss, cls)(task.X.shape[1], task.n_clusters, niter=task.n_iter, seed=task.seed, **options)
    given = {"weights": task.weights, "init_centroids": task.start}
    model.train(task.X, **{name: value for name, value in given.items() if value is not None})
    return model.centroids


def superkmeans(task: Task, *, mode: str) -> NDArray[Any]:
    options: dict[str, Any] = {}
    if mode != "defaults":
        options = {"sampling_fraction": 1.0, "max_points_per_cluster": 10**9, "early_termination": False}
    if mode == "flat":
        options |= {"hierarchical": False, "iters": task.n_iter}
    if mode == "hierarchical":
        # The shares 10 + 10 + 5 of 25 iterations, the best published setting, for any budget.
        coarse, last = max(1, (2 * task.n_iter) // 5), max(1, task.n_iter // 5)
        options |= {"hierarchical": True, "iters_mesoclustering": coarse}
        options |= {"iters_fineclustering": coarse, "iters_refinement": last}
    cls = import_module("superkmeans").SuperKMeans
    return cls(task.n_clusters, task.X.shape[1], n_threads=task.threads, seed=task.seed, **options).train(task.X)


def lance(task: Task) -> NDArray[Any]:
    model = import_module("lance.util").KMeans(task.n_clusters, metric_type="l2", max_iters=task.n_iter)
    n_rows = task.X.shape[0]
    some = np.random.default_rng(task.seed).choice(n_rows, min(n_rows, 512 * task.n_clusters), replace=False)
    model.fit(task.X[some])
    return model.centroids.to_numpy_ndarray()


def clostera_dense(task: Task) -> NDArray[Any]:
    cls = import_module("clostera").DenseKMeans
    return cls(k=task.n_clusters, iterations=task.n_iter, seed=task.seed, init="random").fit(task.X).cluster_centers_


def clostera_auto(task: Task) -> NDArray[Any]:
    cls = import_module("clostera").Clusterer
    model = cls(k=task.n_clusters, metric="sqeuclidean", algorithm="auto", iterations=task.n_iter, seed=task.seed)
    model.fit(task.X)
    return model.dense_centers_


def mlpack(task: Task) -> NDArray[Any]:
    start = None if task.start is None else task.start.astype(np.float64)
    result = import_module("mlpack").kmeans(
        input_=task.X.astype(np.float64),
        clusters=task.n_clusters,
        algorithm="dualtree",
        max_iterations=task.n_iter,
        allow_empty_clusters=True,
        seed=task.seed + 1,
        **({} if start is None else {"initial_centroids": start}),
    )
    # A copy while `start` is alive: the result may be a view into it.
    return np.array(result["centroid"])
