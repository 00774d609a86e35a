"""How many clusters, and which covariances? python benchmarks/selection.py [--seeds 2] [--only loop|criteria]

First `globular.select` over numbers and covariance types beside a loop of `GaussianMixture(k, covariance_type=t)` over
the same, in seconds of one core. Then how often criteria find the number of clusters, in data of which it is known:
clusters that k-means can tell apart, and random Gaussians of random shapes, some of which lie in each other. Doubts are
those of the silhouette.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import globular
from globular import GaussianMixture

Rows = NDArray[np.float64]
TYPES = ("full", "tied", "diag", "spherical")
TRUTHS = (
    ("full", 8, 2, 2_000, 3.5), ("tied", 5, 20, 3_000, 1.2), ("diag", 10, 8, 10_000, 1.5), ("full", 12, 5, 60_000, 2.0),
)  # fmt: skip
"""Covariance type, components, columns, rows, and how far means lie apart."""
APART: tuple[dict[str, Any], ...] = (
    {"k": 1, "D": 2}, {"k": 1, "D": 10}, {"k": 2, "D": 2}, {"k": 2, "D": 10}, {"k": 3, "D": 2}, {"k": 3, "D": 20},
    {"k": 4, "D": 2, "long": True}, {"k": 4, "D": 5, "zipf": True}, {"k": 5, "D": 3}, {"k": 5, "D": 20, "long": True},
    {"k": 6, "D": 4, "tails": True}, {"k": 8, "D": 2}, {"k": 8, "D": 5, "zipf": True}, {"k": 8, "D": 10, "long": True},
    {"k": 10, "D": 3, "zipf": True}, {"k": 12, "D": 5, "zipf": True}, {"k": 12, "D": 2}, {"k": 15, "D": 8},
    {"k": 15, "D": 3, "long": True}, {"k": 18, "D": 50},
)  # fmt: skip
CLOSE: tuple[dict[str, Any], ...] = (
    {"k": 1, "D": 3, "apart": 0.0}, {"k": 1, "D": 8, "apart": 0.0}, {"k": 2, "D": 2, "apart": 3.0},
    {"k": 2, "D": 5, "apart": 2.0}, {"k": 3, "D": 2, "apart": 4.0}, {"k": 4, "D": 2, "apart": 5.0},
    {"k": 4, "D": 4, "apart": 3.0}, {"k": 4, "D": 10, "apart": 1.5}, {"k": 5, "D": 3, "apart": 4.0},
    {"k": 5, "D": 20, "apart": 1.2}, {"k": 6, "D": 4, "apart": 3.0, "tails": True}, {"k": 6, "D": 2, "apart": 6.0},
    {"k": 8, "D": 3, "apart": 4.0}, {"k": 8, "D": 8, "apart": 2.0}, {"k": 8, "D": 5, "apart": 3.0, "zipf": True},
    {"k": 10, "D": 4, "apart": 4.0}, {"k": 12, "D": 6, "apart": 3.0, "zipf": True}, {"k": 12, "D": 10, "apart": 2.0},
    {"k": 15, "D": 5, "apart": 4.0}, {"k": 15, "D": 10, "apart": 2.5},
)  # fmt: skip
SEPARATION = 5.0
"""Least distance of means of clusters that lie apart, in standard deviations."""


def truth(covariance_type: str, k: int, D: int, apart: float, seed: int) -> GaussianMixture:
    """A mixture drawn at random."""
    random = np.random.default_rng(seed)
    full, variances = shapes(k, D, random), random.uniform(0.3, 2.0, (k, D))
    covariances = {"full": full, "tied": full[0], "diag": variances, "spherical": variances[:, 0]}[covariance_type]
    weights, means = random.dirichlet(np.full(k, 5.0)), apart * random.normal(size=(k, D))
    return GaussianMixture.from_parameters(weights, means, covariances, covariance_type).set_params(random_state=seed)


def shapes(k: int, D: int, random: np.random.Generator) -> Rows:
    """Covariances of random shapes."""
    roots = random.normal(size=(k, D, D))
    return roots @ roots.transpose(0, 2, 1) / D + 0.2 * np.eye(D)


def clusters(
    k: int, D: int, seed: int, *, apart: float | None = None, zipf: bool = False, long: bool = False,
    tails: bool = False, n: int = 2000,
) -> Rows:  # fmt: skip
    """Rows of k clusters: at least `SEPARATION` apart, or with means and covariances drawn at random."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, k + 1) if zipf else np.ones(k)
    sizes = random.multinomial(n, weights / weights.sum())
    if apart is None:
        means, side = np.empty((0, D)), SEPARATION * max(1.2, k ** (1 / D))
        while len(means) < k:
            mean, side = random.uniform(0.0, side, D), side * 1.001
            if (np.linalg.norm(means - mean, axis=1) >= SEPARATION).all():
                means = np.vstack([means, mean])
        turns = [np.linalg.qr(random.normal(size=(D, D)))[0] for _ in range(k)]
        axes = np.sqrt(np.geomspace(3.0, 1 / 3, D)) if long else np.ones(D)
        factors = [turn * axes for turn in turns]
    else:
        means, factors = apart * random.normal(size=(k, D)), list(np.linalg.cholesky(shapes(k, D, random)))
    drawn = [random.standard_t(4, size=(m, D)) / 2**0.5 if tails else random.normal(size=(m, D)) for m in sizes]
    return np.concatenate([mean + z @ f.T for mean, z, f in zip(means, drawn, factors, strict=True)])


def compare_with_a_loop() -> None:
    print("| truth | rows x columns | select: number, type, BIC, s | loop: number, type, BIC, s | time |")
    print("|---|---|---|---|---|")
    for covariance_type, k, D, N, apart in TRUTHS:
        X = np.random.default_rng(0).permutation(truth(covariance_type, k, D, apart, 3).sample(N)[0])
        for data in (X[:600], X):  # the first time kernels are compiled
            started = time.process_time()
            options: dict[str, Any] = {"random_state": 0, "n_threads": 1}
            found = globular.select(data, range(1, 21), model="gmm", covariance_type=TYPES, **options)
            one, started = time.process_time() - started, time.process_time()
            bics = {
                (t, C): GaussianMixture(C, covariance_type=t, **options).fit(data).bic(data)
                for t in TYPES
                for C in range(1, 21)
            }
            loop = time.process_time() - started
        best = min(bics, key=lambda key: bics[key])
        print(
            f"| {k}, {covariance_type} | {N} x {D} | {found.best}, {found.best_covariance_type}, "
            f"{found.best_score('bic').bic:.0f}, {one:.2f} | {best[1]}, {best[0]}, {bics[best]:.0f}, {loop:.2f} | "
            f"{one / loop:.2f} |",
            flush=True,
        )


def compare_criteria(n_seeds: int) -> None:
    for name, cases in (("apart", APART), ("close", CLOSE)):
        right, seconds = Counter[str](), Counter[str]()
        for case in cases:
            for seed in range(n_seeds):
                X, k = clusters(seed=seed, **case), case["k"]
                started = time.process_time()
                plain = globular.select(X, range(1, 26), random_state=0, n_threads=1)
                seconds["k-means"] += time.process_time() - started  # type: ignore[assignment]
                started = time.process_time()
                mixed = globular.select(
                    X, range(1, 26), model="gmm", covariance_type="all", criterion="icl", random_state=0, n_threads=1
                )
                seconds["mixtures"] += time.process_time() - started  # type: ignore[assignment]
                for criterion in ("silhouette", "elbow", "variance_ratio"):
                    right[criterion] += plain.best_by(criterion) == k  # type: ignore[arg-type]
                for criterion in ("bic", "icl"):
                    right[criterion] += mixed.best_by(criterion) == k  # type: ignore[arg-type]
                kind = "right" if plain.best == k else "wrong"
                right[f"silhouette {kind}, {'doubts' if plain.doubts else 'none'}"] += 1
        total = n_seeds * len(cases)
        print(
            f"{name}: of {total}: {dict(right)}; seconds { ({key: round(s, 1) for key, s in seconds.items()}) }",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=["loop", "criteria"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.only != "criteria":
        compare_with_a_loop()
    if arguments.only != "loop":
        compare_criteria(arguments.seeds)
