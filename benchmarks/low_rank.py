"""What do factors buy? python benchmarks/low_rank.py [--set mnist | patches] [--rows N] [--quick]

Held-out log-likelihood a row of mixtures of factor analysers, beside diagonal mixtures of five times as many components
and full covariances of few; every model gets the best of some `reg_covar` by rows that are neither fitted nor scored,
since all of them would be ruled by it: in hundreds of columns some are constant within a component. Rows are digits
(60,000 for the fits, 784 columns) and patches of 8 × 8 pixels of scikit-learn's two photographs (fits see three
quarters of each, scores the rest). Then patches with noise of σ = 25 are denoised: PSNR of expected patches.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from globular import GaussianMixture, LowRankGaussianMixture, VariationalGaussianMixture
from globular.benchmarking.sets import find_set
from globular.datasets import image_patches

Rows = NDArray[np.float32]
SIGMA = 25.0
VALIDATED = 5_000
"""Rows that choose `reg_covar`."""


@dataclass(frozen=True)
class Problem:
    name: str
    train: Rows
    test: Rows
    reg_covars: tuple[float, ...]

    @property
    def parts(self) -> tuple[Rows, Rows]:
        """Rows for fits, and for the choice among them."""
        return self.train[:-VALIDATED], self.train[-VALIDATED:]


def digits(n_rows: int) -> Problem | None:
    data = find_set("mnist")
    if data.missing_file():
        print(f"mnist: {data.missing_file()} is not there")
        return None
    X = data.load().X / np.float32(255)
    return Problem("mnist", X[: min(n_rows, 60_000)], X[60_000:], (3e-3, 1e-2, 3e-2))


def photographs(n_rows: int) -> Problem:
    images = np.stack(load_sample_images().images).astype(np.float32).mean(axis=3)
    cut = 3 * images.shape[2] // 4
    train = image_patches(images[:, :, :cut], 8, n_rows, normalize=False, random_state=0).X
    test = image_patches(images[:, :, cut:], 8, 20_000, normalize=False, random_state=1).X
    return Problem("patches", train, test, (0.1, 1.0, 10.0))


def models(quick: bool) -> dict[str, Callable[[float], Any]]:
    """By name, from `reg_covar`."""
    scale = 10 if quick else 1
    low, diag, full = 2000 // scale, 10_000 // scale, 50 // scale
    return {
        f"low rank, {low} x 8, tied noise": lambda r: LowRankGaussianMixture(
            low, 8, noise="tied_diag", n_candidates=3, reg_covar=r, random_state=0, tol=0.1
        ),
        f"low rank, {low} x 8": lambda r: LowRankGaussianMixture(
            low, 8, n_candidates=3, reg_covar=r, random_state=0, tol=0.1
        ),
        f"diag, {diag}": lambda r: VariationalGaussianMixture(diag, reg_covar=r, random_state=0, tol=0.1),
        f"full, {full}": lambda r: GaussianMixture(
            full, algorithm="em", reg_covar=r, random_state=0, tol=0.1, max_iter=15
        ),
    }


def best_fit(make: Callable[[float], Any], problem: Problem) -> tuple[Any, float, float]:
    """The fit of the best `reg_covar`, its seconds, and that `reg_covar`."""
    train, validated = problem.parts
    found = []
    for reg_covar in problem.reg_covars:
        model, begin = make(reg_covar), time.perf_counter()
        model.fit(train)
        seconds = time.perf_counter() - begin
        found.append((model.score(validated), model, seconds, reg_covar))
        print(
            f"  {reg_covar:7g}: {seconds:6.1f} s, {model.n_iter_} iterations, validated {found[-1][0]:.2f}", flush=True
        )
    return max(found, key=lambda each: each[0])[1:]


def psnr(patches: Rows, clean: Rows) -> float:
    return float(10 * np.log10(255**2 / np.square(patches.astype(np.float64) - clean).mean()))


def by_matrices(model: GaussianMixture, noisy: Rows) -> Rows:
    """Expected patches under full covariances."""
    covariances, eye = model.covariances_.astype(np.float64), SIGMA**2 * np.eye(noisy.shape[1])
    blurred = GaussianMixture.from_parameters(
        model.weights_.astype(np.float64) / model.weights_.sum(dtype=np.float64), model.means_, covariances + eye
    )
    shares, total = blurred.predict_proba(noisy), np.zeros(noisy.shape)
    for c, covariance in enumerate(covariances):
        gain = np.linalg.solve(covariance + eye, covariance)
        total += shares[:, [c]] * (model.means_[c] + (noisy - model.means_[c]) @ gain)
    return total.astype(np.float32)


def compare_likelihoods(problem: Problem, quick: bool) -> None:
    print(f"{problem.name}: {len(problem.train)} x {problem.train.shape[1]}, scored on {len(problem.test)}", flush=True)
    for name, make in models(quick).items():
        print(f" {name}", flush=True)
        model, seconds, reg_covar = best_fit(make, problem)
        print(
            f" {name}: {model.score(problem.test):.2f} nats a row, {seconds:.1f} s, reg_covar={reg_covar}", flush=True
        )


def compare_denoising(problem: Problem, quick: bool) -> None:
    noisy = problem.test + SIGMA * np.random.default_rng(2).normal(size=problem.test.shape).astype(np.float32)
    print(f"denoising: noisy {psnr(noisy, problem.test):.2f} dB", flush=True)
    C = 20 if quick else 200
    begin = time.perf_counter()
    full = GaussianMixture(C, algorithm="em", reg_covar=1.0, random_state=0, tol=1e-2, max_iter=100).fit(problem.train)
    seconds = time.perf_counter() - begin
    print(f" full, {C}: {psnr(by_matrices(full, noisy), problem.test):.2f} dB, {seconds:.1f} s", flush=True)
    C *= 10
    for noise in ("diag", "tied_diag"):
        begin = time.perf_counter()
        model = LowRankGaussianMixture(C, 8, noise=noise, reg_covar=1.0, random_state=0, tol=1e-2).fit(problem.train)
        seconds = time.perf_counter() - begin
        clean = model.reconstruct(noisy, noise_std=SIGMA)
        print(f" low rank, {C} x 8, {noise}: {psnr(clean, problem.test):.2f} dB, {seconds:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("mnist", "patches"), help="one of them alone")
    parser.add_argument("--rows", type=int, default=200_000, help="most rows for a fit")
    parser.add_argument("--quick", action="store_true", help="a tenth of the components")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # few iterations need not converge
    problems = {"mnist": digits, "patches": photographs}
    for name, load in problems.items():
        if given.set in (None, name) and (problem := load(given.rows)) is not None:
            compare_likelihoods(problem, given.quick)
            if name == "patches":
                compare_denoising(problem, given.quick)


if __name__ == "__main__":
    main()
