"""What do missing values cost? python benchmarks/missing.py [--seeds 2]

A fifth of the entries is taken out at random. First of five small sets: the root mean squared error of `impute` in
standard deviations of the columns, with one Gaussian and with the mixture of smallest BIC, beside scikit-learn's
IterativeImputer. Then of rows from known mixtures: the mean log-likelihood of new, complete rows under a fit to what is
left, beside that under a fit to all entries.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from globular import GaussianMixture

Rows = NDArray[np.float64]
TRUTHS = (
    ("full", 3, 4, 4000, 2.0), ("full", 5, 8, 6000, 1.5), ("full", 10, 5, 8000, 2.0), ("diag", 8, 10, 6000, 1.5),
    ("tied", 4, 6, 4000, 1.5), ("spherical", 6, 5, 4000, 2.0),
)  # fmt: skip
"""Covariance type, components, columns, rows, and how far means lie apart."""
TRIED = (*(("full", C) for C in (1, 2, 3, 5)), *(("diag", C) for C in (4, 8, 16)), ("tied", 2), ("tied", 4))
"""Mixtures of which the one of smallest BIC imputes."""


def truth(covariance_type: str, C: int, D: int, apart: float, seed: int) -> GaussianMixture:
    """A mixture drawn at random."""
    random = np.random.default_rng(seed)
    roots = random.normal(size=(C, D, D))
    full = roots @ roots.transpose(0, 2, 1) / D + 0.2 * np.eye(D)
    variances = random.uniform(0.3, 2.0, (C, D))
    covariances = {"full": full, "tied": full[0], "diag": variances, "spherical": variances[:, 0]}[covariance_type]
    weights, means = random.dirichlet(np.full(C, 5.0)), apart * random.normal(size=(C, D))
    return GaussianMixture.from_parameters(weights, means, covariances, covariance_type)


def with_holes(X: Rows, seed: int) -> Rows:
    """A copy without a fifth of its entries."""
    return np.where(np.random.default_rng(seed).uniform(size=X.shape) < 0.2, np.nan, X)


def compare_likelihoods(n_seeds: int) -> None:
    for covariance_type, C, D, N, apart in TRUTHS:
        for seed in range(n_seeds):
            true = truth(covariance_type, C, D, apart, seed)
            X, new = (true.set_params(random_state=r).sample(n)[0] for r, n in ((1, N), (2, 10_000)))
            model = GaussianMixture(C, covariance_type=covariance_type, random_state=seed)
            complete = model.fit(X).score(new)
            missing = model.fit(with_holes(X, seed), missing=True).score(new)
            print(
                f"{covariance_type:9} {C:2} components {N} x {D:2}: truth {true.score(new):.4f} "
                f"complete {complete:.4f} missing {missing:.4f} difference {missing - complete:+.4f}",
                flush=True,
            )


def compare_imputation(n_seeds: int) -> None:
    sets = {name: getattr(datasets, f"load_{name}")().data for name in ("iris", "wine", "breast_cancer", "diabetes")}
    sets["five Gaussians"] = truth("full", 5, 8, 1.5, 40).set_params(random_state=1).sample(2000)[0]
    for name, X in sets.items():
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        errors = []
        for seed in range(n_seeds):
            holes = with_holes(X, seed)
            unknown = np.isnan(holes)
            found = []
            for covariance_type, C in TRIED:
                model = GaussianMixture(C, covariance_type=covariance_type, reg_covar=1e-3, random_state=0)
                model.fit(holes, missing=True)
                likelihood = model.score_samples(holes, missing=True).sum()
                found.append((model._n_parameters() * np.log(len(X)) - 2 * likelihood, model.impute(holes)))
            filled = [
                IterativeImputer(random_state=0).fit_transform(holes), found[0][1], min(found, key=lambda f: f[0])[1]
            ]  # fmt: skip
            errors.append([np.sqrt(np.mean((each - X)[unknown] ** 2)) for each in filled])
        iterative, one, chosen = np.mean(errors, axis=0)
        print(f"{name} {X.shape}: iterative {iterative:.3f} one {one:.3f} by BIC {chosen:.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    warnings.simplefilter("ignore")  # of iterations that end at their limit, on either side
    compare_imputation(parser.parse_args().seeds)
    compare_likelihoods(parser.parse_args().seeds)
