"""What do factors buy? python benchmarks/low_rank.py [--set mnist | patches] [--rows N] [--components C]

Held-out log-likelihood a row of mixtures of factor analysers, beside diagonal mixtures of five times as many components
and full covariances of few, at the same `reg_covar`: in hundreds of columns many are all but constant within a
component, and what is added to their variances rules the likelihood of every model. Rows are digits (60,000 for the
fits, 784 columns) and patches of 8 × 8 pixels of scikit-learn's two photographs (fits see three quarters of each,
scores the rest). Then patches with noise of σ = 25 are denoised: PSNR of expected patches.

Low rank comes with correlated noise, the default, and without. Full covariances of digits are fitted by k-means and two
hard steps of EM among the three closest cells; in so many columns a row belongs to one component anyway.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from sklearn.datasets import load_sample_images

from globular import GaussianMixture, KMeans, LowRankGaussianMixture, VariationalGaussianMixture
from globular.datasets import image_patches
from globular.errors import DataError
from harness.data import real_array

Rows = NDArray[Any]
SIGMA = 25.0
SCORED = 2_000
"""Digits that are scored: 50 matrices of 784 columns make that slow."""


def tell(name: str, seconds: float, score: float) -> None:
    print(f"  {name}: {score:.1f} nats a row, {seconds:.1f} s", flush=True)


def fit_and_score(name: str, model: Any, train: Rows, test: Rows, offset: float = 0.0) -> Any:
    """Fit and tell; scores are lower bounds by way of cells, where the model has them."""
    begin = time.perf_counter()
    model.fit(train)
    seconds = time.perf_counter() - begin
    how = {} if isinstance(model, GaussianMixture) else {"exact": False}
    tell(name, seconds, model.score_samples(test, **how).mean() + offset)
    return model


def low_rank(C: int, reg_covar: float, **options: Any) -> LowRankGaussianMixture:
    return LowRankGaussianMixture(C, 8, n_candidates=3, reg_covar=reg_covar, tol=0.1, random_state=0, **options)


def hard_full(train: Rows, test: Rows, C: int, reg_covars: tuple[float, ...]) -> None:
    """Full covariances by k-means and two hard steps of EM among the three closest cells of every row."""
    begin = time.perf_counter()
    cells, (N, D) = KMeans(C, random_state=0).fit(train), train.shape
    close, labels = np.argsort(cells.transform(train), axis=1)[:, :3], cells.labels_
    for step in range(3):
        held = [train[labels == c] for c in range(C)]
        means = [own.mean(axis=0) for own in held]
        scatter = [(own - mean).T @ (own - mean) / len(own) for own, mean in zip(held, means, strict=True)]
        log_weights = [np.log(len(own) / N) for own in held]

        def roots(reg_covar: float, scatter: list[Rows] = scatter) -> list[Rows]:
            return [np.linalg.cholesky(each + np.float32(reg_covar) * np.eye(D, dtype=np.float32)) for each in scatter]

        def joint(rows: Rows, c: int, root: Rows, means: Any = means, log_weights: Any = log_weights) -> Rows:
            white = solve_triangular(root, (rows - means[c]).T, lower=True, check_finite=False)
            determinant = np.log(np.diag(root)).sum() + 0.5 * D * np.log(2 * np.pi)
            return np.asarray(log_weights[c] - determinant - 0.5 * np.square(white).sum(axis=0), dtype=np.float64)

        if step == 2:
            break
        best = np.full((N, 3), -np.inf)
        for c, root in enumerate(roots(reg_covars[0])):
            for a in range(3):
                own = np.flatnonzero(close[:, a] == c)
                best[own, a] = joint(train[own], c, root)
        labels = close[np.arange(N), best.argmax(axis=1)]
    seconds = time.perf_counter() - begin
    for reg_covar in reg_covars:
        table = np.stack([joint(test, c, root) for c, root in enumerate(roots(reg_covar))], axis=1)
        tell(f"full, {C}, reg_covar={reg_covar}", seconds, float(np.logaddexp.reduce(table, axis=1).mean()))


def digits(n_rows: int, C: int) -> None:
    try:
        X = real_array("mnist/mnist.npz") / np.float32(255)
    except DataError as error:
        print(f"mnist: {error}")
        return
    train, test = X[: min(n_rows, 60_000)], X[60_000 : 60_000 + SCORED]
    reg_covars = (1e-3, 1e-4)
    print(f"mnist: {len(train)} x 784, scored on {len(test)}", flush=True)
    for reg_covar in reg_covars:
        print(f" reg_covar={reg_covar}", flush=True)
        fit_and_score(f"low rank, {C} x 8", low_rank(C, reg_covar, max_iter=6), train, test)
        alone = low_rank(C, reg_covar, max_iter=10, correlated_noise=False)
        fit_and_score(f"low rank, {C} x 8, independent noise", alone, train, test)
        diagonal = VariationalGaussianMixture(5 * C, reg_covar=reg_covar, random_state=0, tol=0.1, max_iter=10)
        fit_and_score(f"diag, {5 * C}", diagonal, train, test)
    hard_full(train, test, max(2, C // 40), reg_covars)


def psnr(patches: Rows, clean: Rows) -> float:
    return float(10 * np.log10(255**2 / np.square(patches.astype(np.float64) - clean).mean()))


def by_matrices(model: GaussianMixture, noisy: Rows) -> Rows:
    """Expected patches under full covariances."""
    covariances, eye = model.covariances_.astype(np.float64), SIGMA**2 * np.eye(noisy.shape[1])
    weights = model.weights_.astype(np.float64)
    blurred = GaussianMixture.from_parameters(weights / weights.sum(), model.means_, covariances + eye)
    shares, total = blurred.predict_proba(noisy), np.zeros(noisy.shape)
    for c, covariance in enumerate(covariances):
        gain = np.linalg.solve(covariance + eye, covariance)
        total += shares[:, [c]] * (model.means_[c] + (noisy - model.means_[c]) @ gain)
    return total


def patches(n_rows: int, C: int) -> None:
    images = np.stack(load_sample_images().images).astype(np.float32).mean(axis=3)
    cut = 3 * images.shape[2] // 4
    train = image_patches(images[:, :, :cut], 8, n_rows, normalize=False, random_state=0).X
    test = image_patches(images[:, :, cut:], 8, 10_000, normalize=False, random_state=1).X
    print(f"patches: {len(train)} x 64, scored on {len(test)}, reg_covar=1", flush=True)
    given: dict[str, Any] = {"reg_covar": 1.0, "random_state": 0, "tol": 0.03}
    noisy = test + SIGMA * np.random.default_rng(2).normal(size=test.shape).astype(np.float32)
    print(f" noisy: {psnr(noisy, test):.2f} dB; denoised:", flush=True)
    for n, is_correlated in ((C, True), (C // 4, True), (C // 10, True), (C, False), (C // 4, False)):
        model = LowRankGaussianMixture(n, 8, correlated_noise=is_correlated, max_iter=30, **given)
        name = f"low rank, {n} x 8" + ("" if is_correlated else ", independent noise")
        model = fit_and_score(name, model, train, test)
        print(f"    {psnr(model.reconstruct(noisy, noise_std=SIGMA), test):.2f} dB", flush=True)
    fit_and_score(f"diag, {5 * C}", VariationalGaussianMixture(5 * C, **given), train, test)
    few = GaussianMixture(C // 40, algorithm="em", init_params="k-means++", max_iter=30, **given)
    fit_and_score(f"full, {C // 40}", few, train, test)
    more = GaussianMixture(C // 10, algorithm="em", init_params="k-means++", max_iter=30, **given)
    more = fit_and_score(f"full, {C // 10}", more, train, test)
    print(f"    {psnr(by_matrices(more, noisy), test):.2f} dB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("mnist", "patches"), help="one of them alone")
    parser.add_argument("--rows", type=int, default=200_000, help="most rows for a fit")
    parser.add_argument("--components", type=int, default=2_000, help="of low rank; the others follow")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # few iterations need not converge
    for name, compare in {"mnist": digits, "patches": patches}.items():
        if given.set in (None, name):
            compare(given.rows, given.components)


if __name__ == "__main__":
    main()
