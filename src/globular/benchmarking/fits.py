"""The calls of every library, each from nothing to centres, seeding included.

Traps that make such comparisons unfair, and what is done about them here:

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
  its start is not offered.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]


def globular(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
    *,
    algorithm: str,
    seeding: str | None,
) -> NDArray[Any]:
    # Threads come from GLOBULAR_NUM_THREADS, set before the import.
    cls = importlib.import_module("globular").KMeans
    options: dict[str, Any] = {"algorithm": algorithm, "max_iter": n_iter, "tol": 0.0, "random_state": seed}
    start = seeding if init_centers is None else init_centers
    if start is not None:
        options["init"] = start
    return np.asarray(cls(n_clusters, **options).fit(X).cluster_centers_)


def globular_quality(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
    *,
    quality: str,
) -> NDArray[Any]:
    # Defaults but for the knob: it decides by itself how long to go on, so n_iter means nothing here.
    cls = importlib.import_module("globular").KMeans
    return np.asarray(cls(n_clusters, quality=quality, random_state=seed).fit(X).cluster_centers_)


def sklearn_like(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
    *,
    module: str,
    algorithm: str,
    seeding: str = "random",
) -> NDArray[Any]:
    options: dict[str, Any] = {"n_jobs": threads} if module.startswith("sklearnex") else {}
    model = importlib.import_module(module).KMeans(
        n_clusters,
        init=seeding if init_centers is None else init_centers,
        n_init=1,
        max_iter=n_iter,
        tol=0.0,
        random_state=seed,
        algorithm=algorithm,
        **options,
    )
    return np.asarray(model.fit(X).cluster_centers_)


def sklearn_minibatch(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
) -> NDArray[Any]:
    model = importlib.import_module("sklearn.cluster").MiniBatchKMeans(
        n_clusters,
        init="random" if init_centers is None else init_centers,
        n_init=1,
        max_iter=n_iter,
        batch_size=10_000,
        max_no_improvement=None,
        random_state=seed,
    )
    return np.asarray(model.fit(X).cluster_centers_)


def faiss(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
    *,
    cls: str = "Kmeans",
    seeding: str | None = None,
) -> NDArray[Any]:
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(threads)
    faiss.cvar.distance_compute_blas_threshold = 20
    options: dict[str, Any] = {} if seeding is None else {"init_method": getattr(faiss, seeding)}
    model = getattr(faiss, cls)(
        X.shape[1],
        n_clusters,
        niter=n_iter,
        seed=seed,
        max_points_per_centroid=10**9,
        min_points_per_centroid=1,
        **options,
    )
    if init_centers is None:
        model.train(X)
    else:
        model.train(X, init_centroids=init_centers)
    return np.asarray(model.centroids)


def superkmeans(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
    *,
    mode: str,
) -> NDArray[Any]:
    options: dict[str, Any] = {}
    if mode != "defaults":
        options = {"sampling_fraction": 1.0, "max_points_per_cluster": 10**9, "early_termination": False}
    if mode == "flat":
        options |= {"hierarchical": False, "iters": n_iter}
    if mode == "hierarchical":
        # The shares 10 + 10 + 5 of 25 iterations, the best published setting, for any budget.
        coarse, last = max(1, (2 * n_iter) // 5), max(1, n_iter // 5)
        options |= {"hierarchical": True, "iters_mesoclustering": coarse}
        options |= {"iters_fineclustering": coarse, "iters_refinement": last}
    cls = importlib.import_module("superkmeans").SuperKMeans
    model = cls(n_clusters, X.shape[1], n_threads=threads, seed=seed, **options)
    return np.asarray(model.train(X))


def lance(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
) -> NDArray[Any]:
    model = importlib.import_module("lance.util").KMeans(n_clusters, metric_type="l2", max_iters=n_iter)
    model.fit(X)
    return np.asarray(model.centroids.to_numpy_ndarray())


def clostera_dense(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
) -> NDArray[Any]:
    cls = importlib.import_module("clostera").DenseKMeans
    model = cls(k=n_clusters, iterations=n_iter, seed=seed, init="random").fit(X)
    return np.asarray(model.cluster_centers_)


def clostera_auto(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
) -> NDArray[Any]:
    cls = importlib.import_module("clostera").Clusterer
    model = cls(k=n_clusters, metric="sqeuclidean", algorithm="auto", iterations=n_iter, seed=seed)
    model.fit(X)
    return np.asarray(model.dense_centers_)


def mlpack(
    X: Matrix,
    n_clusters: int,
    n_iter: int,
    threads: int,
    seed: int,
    init_centers: Matrix | None = None,
) -> NDArray[Any]:
    options: dict[str, Any] = {}
    start = None if init_centers is None else init_centers.astype(np.float64)
    if start is not None:
        options["initial_centroids"] = start
    result = importlib.import_module("mlpack").kmeans(
        input_=X.astype(np.float64),
        clusters=n_clusters,
        algorithm="dualtree",
        max_iterations=n_iter,
        allow_empty_clusters=True,
        seed=seed + 1,
        **options,
    )
    # A copy while `start` is alive: the result may be a view into it.
    return np.array(result["centroid"])
