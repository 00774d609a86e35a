"""Nested EM beside EM, fits of coresets beside those of all rows: python benchmarks/streams.py [em | coresets | file]

Rows of random mixtures in 16 columns, of 200 components for EM and of 50 for coresets. Printed are seconds of the
processor, and the mean log-likelihood of rows that no fit has seen or the error of all rows; what the figures shall be
stands beside them. Kernels are compiled before. `file --rows 100000000` makes a density of a file of 8 columns in one
reading.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from globular import GaussianMixture, KMeans, coresets
from globular.io import open_source

Rows = NDArray[np.float32]


def mixture_rows(n: int, C: int, D: int, apart: float, seed: int) -> Rows:
    """Rows of C Gaussians of uneven weights and shapes, which overlap."""
    random = np.random.default_rng(seed)
    means = apart * random.normal(size=(C, D))
    roots = random.normal(size=(C, D, D)) / np.sqrt(D) + 0.5 * np.eye(D)
    weights = random.dirichlet(np.full(C, 2.0))
    counts = random.multinomial(n, weights)
    rows = np.empty((n, D), dtype=np.float32)
    begin = 0
    for c, count in enumerate(counts):
        rows[begin : begin + count] = means[c] + random.standard_normal((count, D)) @ roots[c].T
        begin += count
    return rows[random.permutation(n)]


def timed(fit: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    found = fit()
    return time.process_time() - begin, found


def compare_em(X: Rows, new: Rows, C: int, covariance_type: str, seed: int) -> None:
    """EM, nested EM, and a stream in one reading."""
    options: dict[str, Any] = {"covariance_type": covariance_type, "random_state": seed}
    ways: dict[str, Callable[[], GaussianMixture]] = {
        "em": lambda: GaussianMixture(C, algorithm="em", **options).fit(X),
        "nested": lambda: GaussianMixture(C, algorithm="nested", **options).fit(X),
        "partial_fit": lambda: streamed(X, GaussianMixture(C, **options)),
    }
    full: tuple[float, float] | None = None
    for name, way in ways.items():
        seconds, model = timed(way)
        score = model.score(new)
        full = full or (seconds, score)
        stages = model.history_.stage_seconds if len(model.history_) else {}
        print(
            f"{covariance_type} {C} components {X.shape}: {name:16} {seconds:7.1f} s ({seconds / full[0]:.3f} of EM's) "
            f"{score:.4f} nats ({score - full[1]:+.4f}) {model.n_iter_} iterations {model.n_distances_:.3g} densities "
            f"{ {stage: round(value, 1) for stage, value in stages.items()} }",
            flush=True,
        )


def streamed(X: Rows, model: GaussianMixture) -> GaussianMixture:
    """Batches of a fiftieth of the rows."""
    for batch in np.array_split(X, 50):
        model.partial_fit(batch)
    return model


def drawn(X: Rows, kind: Any, n_parts: int, seed: int) -> coresets.Coreset:
    """A coreset of one per cent, or one merged over parts that have as many each."""
    n = len(X) // 100
    if n_parts == 1:
        return coresets.coreset(X, n, kind=kind, random_state=seed)
    parts = [
        coresets.coreset(part, n, kind=kind, random_state=seed + i) for i, part in enumerate(np.array_split(X, n_parts))
    ]
    return coresets.merge(parts, n, kind=kind, random_state=seed)


def compare_coresets(X: Rows, new: Rows, C: int, covariance_type: str, seed: int) -> None:
    """Mixtures of C components, and k-means of C, 2 C and 4 C clusters, fitted to one per cent of the rows.

    Any sample of n rows costs a mixture of P parameters about P/2n nats, and k clusters some k/n of the error.
    """
    options: dict[str, Any] = {"covariance_type": covariance_type, "algorithm": "em", "random_state": seed}
    models = [GaussianMixture(C, **options), *(KMeans(n * C, random_state=seed) for n in (1, 2, 4))]
    for model in models:
        kind = "mixture" if isinstance(model, GaussianMixture) else "k-means"
        seconds, whole = timed(partial(clone(model).fit, X))
        print(f"{model}: all {len(X)} rows {seconds:.1f} s", flush=True)
        for n_parts in (1, 8):
            drawing, part = timed(partial(drawn, X, kind, n_parts, seed))
            fitting, fitted = timed(partial(clone(model).fit, part.rows, sample_weight=part.weights))
            if kind == "k-means":
                figure = f"error {fitted.score(X) / whole.score(X) - 1:+.3%} (at most 1 %)"
            else:
                cost = fitted._n_parameters() / (2 * len(part))
                figure = f"{fitted.score(new) - whole.score(new):+.4f} nats (at least -0.02; P/2n is {cost:.4f})"
            print(f"  {n_parts} parts, {len(part)} rows: {drawing:.1f} s + {fitting:.1f} s, {figure}", flush=True)


def read_once(n_rows: int, C: int, covariance_type: str, seed: int) -> None:
    """A density of a file of 8 columns in one reading, block by block, beside EM on some of its rows."""
    some = mixture_rows(1_100_000, C, 8, 1.5, seed)
    block, n = some[:1_000_000], 1_000_000
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.npy")
        file = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, 8))
        for begin in range(0, n_rows, n):  # new rows of about the same density: neighbours mixed with noise
            rows = block[random.permutation(n)[: min(n, n_rows - begin)]]
            file[begin : begin + n] = rows + 0.05 * random.standard_normal(rows.shape, dtype=np.float32)
        file.flush()
        del file
        model = GaussianMixture(C, covariance_type=covariance_type, random_state=seed)
        seconds, _ = timed(lambda: [model.partial_fit(part.rows) for part in open_source(path).blocks(max_rows=n)])
    whole = GaussianMixture(C, covariance_type=covariance_type, algorithm="em", random_state=seed).fit(block)
    difference = model.score(some[n:]) - whole.score(some[n:])
    print(
        f"{n_rows} rows of a file, {C} components: {seconds:.1f} s, {difference:+.4f} nats beside EM on 1,000,000 rows",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "em", "coresets", "file"], default="all")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--components", type=int, default=200)
    parser.add_argument("--covariance-type", default="diag")
    parser.add_argument("--apart", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "file":
        read_once(given.rows, given.components // 4, given.covariance_type, given.seed)
    for what, C, compare in (
        ("em", given.components, compare_em),
        ("coresets", given.components // 4, compare_coresets),
    ):
        if given.what not in ("all", what):
            continue
        every = mixture_rows(given.rows + 100_000, C, 16, given.apart, given.seed)
        X, new = every[:-100_000], every[-100_000:]
        for algorithm in ("em", "nested"):  # kernels
            options = {"covariance_type": given.covariance_type, "algorithm": algorithm, "max_iter": 3, "tol": 1.0}
            GaussianMixture(8, **options).fit(new[:20_000])
        compare(X, new, C, given.covariance_type, given.seed)
