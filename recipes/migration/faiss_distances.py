"""Centroids, the closest one of every row, and how far it is."""

import numpy as np

from globular.export import Kmeans  # was: from faiss import Kmeans


def main(x: np.ndarray, ncentroids: int = 64) -> tuple[float, np.ndarray]:
    kmeans = Kmeans(x.shape[1], ncentroids, niter=20, seed=1234, max_points_per_centroid=len(x))
    kmeans.train(x)
    D, I = kmeans.index.search(x, 1)  # noqa: E741
    assert np.allclose(D[:, 0], np.square(x - kmeans.centroids[I[:, 0]]).sum(axis=1), rtol=1e-3, atol=1e-3)
    return float(D.mean()), I[:, 0]
