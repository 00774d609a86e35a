"""Which bounds save time, for how many columns and clusters? python benchmarks/bounds.py [--rows 60000] [--epochs 20]

Fits nested mini-batches to Gaussian blobs from random rows, with Elkan's bounds, with yinyang's, and without. The
iterations are the same, so the seconds tell what the bounds save. The table is the one of docs/nested.md, which
`search="auto"` is chosen by.
"""

from __future__ import annotations

import argparse
import warnings

from sklearn.exceptions import ConvergenceWarning

from globular import NestedMiniBatchKMeans
from globular.datasets import many_blobs

SEARCHES = ("elkan", "yinyang", "exact")


def seconds_of(n_rows: int, n_columns: int, n_clusters: int, epochs: int, threads: int) -> dict[str, float]:
    """Seconds to the last iteration with every kind of bounds, the faster of two runs."""
    X = many_blobs(n_rows, n_clusters, n_columns, center_std=2.0, random_state=0).X
    found: dict[str, float] = {}
    for search in 2 * SEARCHES:
        model = NestedMiniBatchKMeans(
            n_clusters, search=search, init="random", max_iter=epochs, random_state=0,
            compute_labels=False, n_threads=threads,
        ).fit(X)  # fmt: skip
        found[search] = min(found.get(search, float("inf")), model.history_[-1].seconds)
    return found


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--columns", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--clusters", type=int, nargs="+", default=[20, 50, 150, 500])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| columns | " + " | ".join(f"k = {k}: elkan, yinyang, none" for k in options.clusters) + " |")
    print("|---" * (1 + len(options.clusters)) + "|")
    for D in options.columns:
        cells = [seconds_of(options.rows, D, k, options.epochs, options.threads).values() for k in options.clusters]
        print(f"| {D} | " + " | ".join(", ".join(f"{s:.2f}" for s in cell) for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
