"""Mixtures beside scikit-learn's, each from its own start: python benchmarks/gaussian_mixture.py seconds|truth|real

`seconds`: CPU seconds of a fit with one thread, the median over seeds. `truth`: ten mixtures with known parameters, and
what both lose to EM that starts there, in nats a row, the mean over seeds. `real`: log-likelihoods of real sets.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Theirs
from threadpoolctl import threadpool_limits

from globular import GaussianMixture
from harness.data import real_array

F64 = NDArray[np.float64]
TYPES = ("full", "tied", "diag", "spherical")
SIZES = (
    (2000, 5, 5), (2000, 10, 5), (5000, 10, 10), (10_000, 10, 10), (10_000, 20, 2), (4000, 5, 100), (50_000, 10, 5)
)  # fmt: skip
"""Rows, components and columns."""
TRUTHS = (
    (5, 2, 0), (5, 20, 1), (10, 10, 0), (10, 10, 1), (20, 2, 0), (20, 8, 1), (20, 5, 0), (30, 3, 0), (50, 10, 0),
    (50, 5, 1)
)  # fmt: skip
"""Components, columns, and whether weights fall as those of Zipf."""
REAL = {
    "kegg": ("keggundirected/keggundirected.npz", None),
    "covtype": ("covtype/covtype.npz", slice(0, 10)),
    "shuttle": ("shuttle/shuttle.npz", None),
    "stars": ("hipparcos/hipparcos.npz", None),
}


def mixture(n_rows: int, k: int, n_columns: int, zipf: int, seed: int) -> tuple[F64, dict[str, Any]]:
    """Rows of Gaussians of any shape, some three deviations apart, and where EM would start at the truth."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, k + 1) ** zipf
    weights /= weights.sum()
    means = rng.normal(size=(k, n_columns)) * 3.0
    shapes = np.eye(n_columns) + 0.4 * rng.normal(size=(k, n_columns, n_columns)) / np.sqrt(n_columns)
    which = rng.choice(k, size=n_rows, p=weights)
    rows = means[which] + np.einsum("nij,nj->ni", shapes[which], rng.normal(size=(n_rows, n_columns)))
    precisions = np.linalg.inv(shapes @ shapes.transpose(0, 2, 1))
    return rows, {"weights_init": weights, "means_init": means, "precisions_init": precisions}


def cpu_seconds(model: Any, rows: F64) -> float:
    """Of one fit."""
    started = time.process_time()
    model.fit(rows)
    return time.process_time() - started


def seconds(turns: int) -> Iterator[str]:
    """A line for every size and type."""
    yield "| rows | components | columns | type | scikit-learn | ours | ratio | nats more |\n" + "|---" * 8 + "|"
    ratios = []
    for n_rows, k, D in SIZES:
        rows, _ = mixture(n_rows, k, D, 0, 0)
        for kind in TYPES:
            ours, theirs, gained = [], [], []
            for seed in range(turns):
                one = GaussianMixture(k, covariance_type=kind, random_state=seed, n_threads=1)
                other = Theirs(k, covariance_type=kind, random_state=seed)
                if seed == 0:
                    one.fit(rows)  # compiles
                ours.append(cpu_seconds(one, rows))
                theirs.append(cpu_seconds(other, rows))
                gained.append(one.score(rows) - other.score(rows))
            ratio = float(np.median(theirs) / np.median(ours))
            ratios.append(ratio)
            yield (
                f"| {n_rows} | {k} | {D} | {kind} | {np.median(theirs):.3f} | {np.median(ours):.3f} | {ratio:.2f} "
                f"| {np.mean(gained):+.4f} |"
            )
    yield f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, least {min(ratios):.2f}"


def truth(turns: int) -> Iterator[str]:
    """A line for each of ten mixtures, and the mean."""
    yield "| components | columns | Zipf | scikit-learn | ours | ours − theirs |\n|---|---|---|---|---|---|"
    found = []
    for k, D, zipf in TRUTHS:
        rows, start = mixture(max(4000, 200 * k), k, D, zipf, 0)
        best = GaussianMixture(k, algorithm="em", n_threads=1, **start).fit(rows).score(rows)
        ours = [GaussianMixture(k, random_state=seed, n_threads=1).fit(rows).score(rows) for seed in range(turns)]
        theirs = [Theirs(k, random_state=seed).fit(rows).score(rows) for seed in range(turns)]
        found.append((np.mean(theirs) - best, np.mean(ours) - best))
        yield f"| {k} | {D} | {zipf} | {found[-1][0]:+.4f} | {found[-1][1]:+.4f} | {found[-1][1] - found[-1][0]:+.4f} |"
    theirs, ours = np.mean(found, axis=0)
    yield f"| mean | | | {theirs:+.4f} | {ours:+.4f} | {ours - theirs:+.4f} |"


def real(turns: int) -> Iterator[str]:
    """A line for every real set and type: 20,000 standardised rows, ten components."""
    yield "| set | type | scikit-learn | ours | ours − theirs | standard error |\n|---|---|---|---|---|---|"
    for name, (file, columns) in REAL.items():
        X = real_array(file) if columns is None else real_array(file)[:, columns]
        X = X[np.random.default_rng(0).permutation(len(X))[:20_000]].astype(np.float64)
        X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
        for kind in ("full", "tied"):
            options = {"n_components": 10, "covariance_type": kind}
            ours = [GaussianMixture(**options, random_state=s, n_threads=1).fit(X).score(X) for s in range(turns)]
            theirs = [Theirs(**options, random_state=seed).fit(X).score(X) for seed in range(turns)]
            error = np.sqrt((np.var(ours) + np.var(theirs)) / turns)
            more = np.mean(ours) - np.mean(theirs)
            yield f"| {name} | {kind} | {np.mean(theirs):.3f} | {np.mean(ours):.3f} | {more:+.3f} | {error:.3f} |"


def main() -> None:
    """Parse the command line and measure."""
    what = {"seconds": seconds, "truth": truth, "real": real}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("--turns", type=int, default=5, help="fits with different seeds")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        for line in what[options.what](options.turns):
            print(line, flush=True)


if __name__ == "__main__":
    main()
