"""Where a mixture finds its candidates: python benchmarks/mixtures.py [problem …] [--covariance-type diag]

Fits `VariationalGaussianMixture` by neighbourhoods (from seeds, and from `KMeans` as probing does) and by probing to
all but 5,000 rows of a problem and prints a row of a table for each: seconds from nothing to parameters, iterations,
the free energy that it ended with, and the mean log-likelihood of the rows held out.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from globular import KMeans, VariationalGaussianMixture
from harness.data import PROBLEMS

FROM_KMEANS = "neighbors from k-means"
SEARCHES = ("neighbors", FROM_KMEANS, "probing")
USUAL = ("birch-4096", "glove50-2000", "glove50-10000", "sift-4096")
HELD_OUT = 5000


def row_of_table(problem: str, covariance_type: str, search: str, n_threads: int) -> str:
    """One fit."""
    found = PROBLEMS[problem]
    X = found.load()
    order = np.random.default_rng(7).permutation(len(X))
    held_out, rows = X[np.sort(order[:HELD_OUT])], X[np.sort(order[HELD_OUT:])]
    model = VariationalGaussianMixture(
        covariance_type=covariance_type,
        weights="equal",
        search=search.split()[0],
        reg_covar=1e-6,
        random_state=0,
        n_threads=n_threads,
    )
    model.set_params(n_components=60).fit(rows[:2000])  # compiles
    started = time.perf_counter()
    if search == FROM_KMEANS:
        model.init = KMeans(found.n_clusters, random_state=0, n_threads=n_threads).fit(rows).cluster_centers_
    model.set_params(n_components=found.n_clusters).fit(rows)
    seconds = time.perf_counter() - started
    return (
        f"| {problem} | {covariance_type} | {search} | {seconds:.1f} | {model.n_iter_} | {model.lower_bound_:.3f} "
        f"| {model.score(held_out):.3f} |"
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", choices=[*PROBLEMS, []], metavar="problem")
    parser.add_argument("--covariance-type", default="tied_spherical")
    parser.add_argument("--searches", nargs="+", default=SEARCHES, choices=SEARCHES)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| problem | covariances | search | seconds | iterations | F | held out |\n|---|---|---|---|---|---|---|")
    for problem in options.problems or USUAL:
        for search in options.searches:
            print(row_of_table(problem, options.covariance_type, search, options.threads), flush=True)


if __name__ == "__main__":
    main()
