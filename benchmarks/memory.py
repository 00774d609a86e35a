"""Is the memory that a fit announces kept? python benchmarks/memory.py [--rows 10000000] [--clusters 1000000]

Fits variational k-means-S (C′ = 1, G = 5 + 1) to generated float32 rows and prints the memory that the fit has said it
takes at most, and how much the process has grown over what it had when X was there.
"""

from __future__ import annotations

import argparse
import logging
import time

import numpy as np

from globular import VariationalKMeans
from harness.machine import peak_memory_mib


class Announcement(logging.Handler):
    """Prints what the fit says about its memory."""

    def emit(self, record: logging.LogRecord) -> None:
        if "beside X" in record.getMessage():
            print(record.getMessage(), flush=True)


def main() -> None:
    """Parse the command line, fit, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--clusters", type=int, default=1_000_000)
    parser.add_argument("--iterations", type=int, default=3)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    X = random.random((options.rows, options.columns), dtype=np.float32)
    model = VariationalKMeans(
        options.clusters, n_candidates=1, n_neighbors=5, max_iter=options.iterations, random_state=0
    )
    n_few = min(options.clusters, 1000)
    model.set_params(n_clusters=n_few).fit(X[: 20 * n_few])  # compiled and imported
    model.set_params(n_clusters=options.clusters)
    logging.getLogger("globular").addHandler(Announcement())
    logging.getLogger("globular").setLevel(logging.INFO)
    before = peak_memory_mib()
    began = time.perf_counter()
    model.fit(X)
    grown = peak_memory_mib() - before
    print(f"grown by {grown:,.1f} MiB; {time.perf_counter() - began:.0f} s, {model.n_iter_} iterations")


if __name__ == "__main__":
    main()
