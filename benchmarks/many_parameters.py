"""Mixtures with many parameters: diagonal ones of generated rows, factor analysers of crops of photographs.

    python benchmarks/many_parameters.py diag --components 50000 --rows 10000000 --device cuda
    python benchmarks/many_parameters.py crops --photos photos.npz --components 4650 --rows 1000000 --device cuda

`photos.npz` has one array (n, height, width, 3) of uint8. Prints seconds, iterations, parameters, memory, and the mean
log-likelihood of the rows and of rows left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from globular import LowRankGaussianMixture, VariationalGaussianMixture
from globular.threads import default_threads, even_ranges, run_all

HELD_OUT = 20_000


def generated(n_rows: int, n_columns: int, seed: int) -> np.ndarray:
    """Rows of a mixture of 20,000 components of uneven size, whose variances fall off by column."""
    shape = np.random.default_rng(1)
    means = shape.normal(size=(20_000, n_columns)).astype(np.float32)
    scales = (0.1 + 0.4 * shape.random((20_000, n_columns))).astype(np.float32)
    shares = shape.dirichlet(np.full(20_000, 2.0))
    random = np.random.default_rng(seed)
    rows = np.empty((n_rows, n_columns), dtype=np.float32)
    for begin in range(0, n_rows, 1 << 18):
        some = rows[begin : begin + (1 << 18)]
        c = random.choice(20_000, size=len(some), p=shares)
        some[:] = means[c] + scales[c] * random.standard_normal(some.shape, dtype=np.float32)
    return rows


def crops(photos: np.ndarray, n_rows: int, size: int, seed: int) -> np.ndarray:
    """Crops of size × size pixels at random places of random photographs, uint8."""
    random = np.random.default_rng(seed)
    n, height, width, _ = photos.shape
    which = random.integers(n, size=n_rows)
    top, left = (random.integers(extent - size, size=n_rows) for extent in (height, width))
    rows = np.empty((n_rows, size * size * 3), dtype=np.uint8)

    def cut(span: tuple[int, int]) -> None:
        for i in range(*span):
            rows[i] = photos[which[i], top[i] : top[i] + size, left[i] : left[i] + size].ravel()

    run_all(cut, even_ranges(n_rows, 1 << 14), default_threads())
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["diag", "crops"])
    parser.add_argument("--components", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64, help="of generated rows")
    parser.add_argument("--size", type=int, default=32, help="pixels of a side of a crop")
    parser.add_argument("--factors", type=int, default=5)
    parser.add_argument("--max-iter", type=int, default=100)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    common = {"device": asked.device, "max_iter": asked.max_iter, "random_state": 0, "n_threads": asked.threads}
    if asked.job == "diag":
        rows, held_out = (generated(n, asked.columns, seed) for seed, n in enumerate((asked.rows, HELD_OUT)))
        model: Any = VariationalGaussianMixture(asked.components, covariance_type="diag", **common)
    else:
        photos = np.load(asked.photos)["photos"]
        rows, held_out = (crops(photos, n, asked.size, seed) for seed, n in enumerate((asked.rows, HELD_OUT)))
        model = LowRankGaussianMixture(asked.components, asked.factors, correlated_noise=False, **common)
    print(f"{asked.job}: {rows.shape} {rows.dtype}, {asked.components} components", flush=True)

    begin = time.perf_counter()
    model.fit(rows)
    seconds = time.perf_counter() - begin
    n_parameters = model._n_parameters()
    stages = {name: round(value, 2) for name, value in model.history_.stage_seconds.items()}
    found = {
        "parameters": n_parameters, "seconds": round(seconds, 2), "iterations": model.n_iter_, "stages": stages,
        "bound": round(model.lower_bound_, 3), "stopped": model.stopped_,
        "host_GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }  # fmt: skip
    if asked.device.startswith("cuda"):
        import torch

        found["card_GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    begin = time.perf_counter()
    found["held_out"] = round(float(np.mean(model.score_samples(held_out, exact=False))), 3)
    found["seconds_to_score"] = round(time.perf_counter() - begin, 2)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
