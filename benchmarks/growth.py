"""How the time per row grows with the number of clusters: N / C fixed, from 1,000 clusters to 256,000.

Generated rows like word vectors: 50 columns of slowly falling variance, some of it between topics and most of it inside
them. Writes growth.csv and growth.png. Should grow no faster than √C.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular import KMeans
from globular.io import write_whole
from globular.plotting.history import BLUE, GREY, pyplot, tidy

HEAD = ("clusters", "rows", "seconds", "microseconds per row", "iterations", "error per row")
N_COLUMNS = 50
N_TOPICS = 1_000


def word_vectors_like(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows around topics, float32."""
    spread = ((1.0 + np.arange(N_COLUMNS)) ** -0.25).astype(np.float32)
    topics = 0.6 * rng.standard_normal((N_TOPICS, N_COLUMNS), dtype=np.float32)
    X = rng.standard_normal((n, N_COLUMNS), dtype=np.float32)
    for start in range(0, n, 1 << 18):
        part = X[start : start + (1 << 18)]
        part += topics[rng.integers(N_TOPICS, size=len(part))]
        part *= spread
    return X


def main() -> None:
    """Parse the command line, measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", nargs="+", type=int, default=[1_000, 4_000, 16_000, 64_000, 256_000])
    parser.add_argument("--rows-per-cluster", type=int, default=20)
    parser.add_argument("--quality", default="balanced")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    KMeans(500, random_state=0, n_threads=options.threads).fit(word_vectors_like(8_192, np.random.default_rng(1)))
    lines = []
    for C in options.clusters:
        X = word_vectors_like(options.rows_per_cluster * C, np.random.default_rng(0))
        model = KMeans(C, quality=options.quality, random_state=0, n_threads=options.threads)
        start = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - start
        lines.append((C, len(X), seconds, 1e6 * seconds / len(X), model.n_iter_, model.inertia_ / len(X)))
        print(f"C = {C:,}: {seconds:.1f} s, {lines[-1][3]:.1f} µs a row, {model.n_iter_} iterations", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    csv.writer(table).writerows([HEAD, *lines])
    write_whole(options.output / "growth.csv", lambda file: file.write(table.getvalue().encode()))
    draw(lines, options.output / "growth.png", options.threads)


def draw(lines: list[tuple[Any, ...]], path: Path, n_threads: int) -> None:
    """Time per row against C, and the slope of √C for comparison."""
    clusters, per_row = np.array([line[0] for line in lines]), np.array([line[3] for line in lines])
    exponent = np.polyfit(np.log(clusters), np.log(per_row), 1)[0]
    figure, axes = pyplot().subplots(figsize=(6, 4), layout="constrained")
    tidy(axes)
    axes.loglog(clusters, per_row, "o-", color=BLUE, label=f"globular, {n_threads} threads: C^{exponent:.2f}")
    axes.loglog(clusters, per_row[0] * np.sqrt(clusters / clusters[0]), "--", color=GREY, label="√C")
    axes.set(xlabel="clusters C (20 rows each)", ylabel="µs per row, whole fit", title="Time per row")
    axes.legend(frameon=False)
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=110))
    print(f"exponent {exponent:.2f}; written: {path}")


if __name__ == "__main__":
    main()
