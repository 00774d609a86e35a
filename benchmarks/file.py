"""A file much larger than the memory that its fit takes: python benchmarks/file.py [--gigabytes 20] [--folder DIR]

Makes a .npy file of float32 rows in which only some runs of rows are written (the rest are holes, which read as zeros
and take no room on disk), clusters it from its path with nested mini-batches, and prints the peak memory of the
process. The file is deleted afterwards.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from globular import NestedMiniBatchKMeans
from harness.machine import peak_memory_mib


def make_file(path: Path, n_rows: int, n_columns: int, n_runs: int, run: int) -> None:
    """Rows around 1,000 places, in runs all over the file."""
    random = np.random.default_rng(0)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, n_columns))
    places = random.normal(size=(1000, n_columns)).astype(np.float32)
    for start in np.sort(random.choice(n_rows // run, n_runs, replace=False)) * run:
        noise = 0.3 * random.standard_normal((run, n_columns), dtype=np.float32)
        X[start : start + run] = places[random.integers(len(places), size=run)] + noise
    X.flush()


def main() -> None:
    """Parse the command line, make the file, fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--search", choices=("auto", "elkan", "yinyang", "exact", "cells"), default="auto")
    parser.add_argument("--folder", type=Path, default=None, help="where the file goes; default: the temporary folder")
    options = parser.parse_args()
    n_rows = int(options.gigabytes * 1e9 / (4 * options.columns))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rows.npy"
        make_file(path, n_rows, options.columns, n_runs=200, run=500)
        size, on_disk = path.stat().st_size, 512 * path.stat().st_blocks
        print(f"{n_rows:,} × {options.columns}: {size / 1e9:.1f} GB, {on_disk / 1e9:.2f} of them on disk", flush=True)
        before, started = peak_memory_mib(), time.perf_counter()
        model = NestedMiniBatchKMeans(
            options.clusters, search=options.search, max_iter=options.epochs,
            random_state=0,
        ).fit(path)  # fmt: skip
        seconds = time.perf_counter() - started
    print(
        f"{model.n_steps_} batches, the last of {model.batch_size_:,} rows, search {model.search_}; {model.stopped_}; "
        f"{seconds:.0f} s; peak memory {peak_memory_mib():,.0f} MiB ({before:,.0f} before the fit)"
    )


if __name__ == "__main__":
    main()
