"""Speech units in the manner of HuBERT's scripts: k-means over frames, the model by joblib, a unit for every frame."""

from pathlib import Path

import joblib
import numpy as np

from globular import NestedMiniBatchKMeans as MiniBatchKMeans  # was: from sklearn.cluster import MiniBatchKMeans


def main(features: np.ndarray, path: Path, n_clusters: int = 100) -> tuple[float, np.ndarray]:
    km_model = MiniBatchKMeans(
        n_clusters=n_clusters,
        init="k-means++",
        max_iter=100,
        batch_size=10_000,
        verbose=0,
        compute_labels=False,
        tol=0.0,
        max_no_improvement=100,
        init_size=None,
        n_init=5,
        reassignment_ratio=0.0,
        random_state=0,
    )
    km_model.fit(features)
    joblib.dump(km_model, path)
    inertia = -km_model.score(features) / len(features)

    km_model = joblib.load(path)
    units = km_model.predict(features)
    return inertia, units
