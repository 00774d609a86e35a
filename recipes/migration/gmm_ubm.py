"""Speakers by a universal background model: a mixture over all frames, its means adapted to those of one speaker."""

from copy import deepcopy

import numpy as np

from globular import GaussianMixture  # was: from sklearn.mixture import GaussianMixture


def main(
    frames: np.ndarray, enrolled: np.ndarray, n_components: int = 32, relevance: float = 16.0
) -> tuple[float, float]:
    ubm = GaussianMixture(n_components=n_components, covariance_type="diag", max_iter=50, tol=1e-2, random_state=0)
    ubm.fit(frames)

    shares = ubm.predict_proba(enrolled)
    counts = shares.sum(axis=0)
    means = shares.T @ enrolled / np.maximum(counts, 1e-10)[:, None]
    alpha = (counts / (counts + relevance))[:, None]
    speaker = deepcopy(ubm)
    speaker.means_ = alpha * means + (1 - alpha) * ubm.means_

    ratio = speaker.score_samples(enrolled) - ubm.score_samples(enrolled)
    return float(-ubm.score(frames)), float(ratio.mean())
