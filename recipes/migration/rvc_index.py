"""What voice conversion does with large sets of features before it makes an index: far fewer rows, by k-means."""

import numpy as np

from globular import NestedMiniBatchKMeans as MiniBatchKMeans  # was: from sklearn.cluster import MiniBatchKMeans


def main(big_npy: np.ndarray, n_clusters: int = 1000) -> tuple[float, np.ndarray]:
    rows = big_npy
    big_npy = (
        MiniBatchKMeans(
            n_clusters=n_clusters,
            verbose=False,
            batch_size=256 * 4,
            compute_labels=False,
            init="random",
            random_state=0,
        )
        .fit(big_npy)
        .cluster_centers_
    )
    squares = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ big_npy.T + np.square(big_npy).sum(axis=1)
    return float(squares.min(axis=1).mean()), big_npy
