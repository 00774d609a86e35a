"""Write one small model of every estimator, as this version saves them: python tests/models/make.py 0.1.0

A version's models are made once, before its release, and never again: `tests/tools/test_older_models.py` loads all of
them with whatever is here now, and asks for the answers that they gave.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

import globular

FOLDER = Path(__file__).resolve().parent


def rows() -> np.ndarray:
    """Six groups of counts in three columns: numbers that every estimator takes."""
    random = np.random.default_rng(0)
    places = 5.0 + 40.0 * random.random((6, 3))
    return np.round(np.repeat(places, 30, axis=0) + random.normal(size=(180, 3))).astype(np.float32)


def rows_for(name: str) -> np.ndarray:
    """The rows of a model: the same for all, but as zeros and ones where it takes nothing else."""
    return rows() > 25 if name == "bernoulli" else rows()


MODELS = {
    "kmeans": globular.KMeans(6, random_state=0), "kmeans-cosine": globular.KMeans(6, metric="cosine", random_state=0),
    "kmeans-probing": globular.KMeans(6, algorithm="probing", random_state=0),
    "variational-kmeans": globular.VariationalKMeans(6, random_state=0),
    "product": globular.ProductKMeans(3, 6, rotation="opq", random_state=0),
    "hierarchical": globular.HierarchicalKMeans([6, 2], random_state=0),
    "nested": globular.NestedMiniBatchKMeans(6, random_state=0),
    "residual": globular.ResidualKMeans([6, 3], random_state=0),
    "mixture-full": globular.GaussianMixture(6, random_state=0),
    "mixture-diag": globular.GaussianMixture(6, covariance_type="diag", random_state=0),
    "mixture-tied": globular.GaussianMixture(6, covariance_type="tied", random_state=0),
    "variational-mixture": globular.VariationalGaussianMixture(6, random_state=0),
    "chunky": globular.ChunkyGaussianMixture(6, random_state=0),
    "low-rank": globular.LowRankGaussianMixture(6, 2, random_state=0),
    "von-mises-fisher": globular.VonMisesFisherMixture(6, random_state=0),
    "poisson": globular.PoissonMixture(6, random_state=0), "bernoulli": globular.BernoulliMixture(3, random_state=0),
    "infinite": globular.InfiniteGaussianMixture(random_state=0),
    "bayesian": globular.BayesianGaussianMixture(n_components=6, random_state=0),
    "infinite-counts": globular.InfiniteMultinomialMixture(random_state=0),
}  # fmt: skip


def main(version: str) -> None:
    """Fit, save, and keep what the saved model says to the rows."""
    for name, model in MODELS.items():
        X = rows_for(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that few iterations suffice, or do not
            model.fit(X)
        folder = FOLDER / version / name
        globular.save(model, folder, include_labels=False)
        np.save(folder / "labels.npy", model.predict(X).astype(np.int16), allow_pickle=False)


if __name__ == "__main__":
    main(sys.argv[1])
