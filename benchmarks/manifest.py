"""Record which kernels common fits call, for which types: `src/globular/jit/manifest.txt`, which `make kernels` builds.

    python benchmarks/manifest.py            # write it anew; some minutes, mostly compiling
    python benchmarks/manifest.py --check    # name what these fits call and the manifest lacks

A kernel is compiled for the types of its arguments, which nobody knows before they are made. So the way to know them is
to fit: to few clusters and to many, in few columns and in many, in both precisions, dense and sparse.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import globular
from globular.io import write_whole
from globular.jit import build, functions, library
from globular.jit.build import MANIFEST, lines
from globular.machine import usable_cores

FITS: dict[str, list[tuple[dict[str, Any], int]]] = {
    # options and rows
    "KMeans": [
        ({"n_clusters": 8}, 20_000), ({"n_clusters": 100}, 20_000), ({"n_clusters": 380}, 20_000),
        ({"n_clusters": 1000}, 20_000), ({"n_clusters": 2000, "max_iter": 5}, 20_000),
        ({"n_clusters": 20, "algorithm": "lloyd", "max_iter": 5}, 20_000), ({"n_clusters": 50}, 200_000),
        ({"n_clusters": 30, "metric": "cosine"}, 20_000), ({"n_clusters": 1000, "metric": "cosine"}, 20_000),
    ],
    "VariationalKMeans": [({"n_clusters": 1000, "max_iter": 5}, 20_000)],
    "NestedMiniBatchKMeans": [
        ({"n_clusters": 100, "max_iter": 20}, 20_000), ({"n_clusters": 1000, "max_iter": 5}, 20_000),
    ],
    "GaussianMixture": [
        ({"n_components": 8, "max_iter": 5, "covariance_type": kind}, 20_000)
        for kind in ("full", "tied", "diag", "spherical")
    ] + [({"n_components": 8, "max_iter": 5}, 200_000)],
    "VariationalGaussianMixture": [
        ({"n_components": 600, "max_iter": 5, "covariance_type": kind}, 20_000) for kind in ("diag", "spherical")
    ],
    "ChunkyGaussianMixture": [({"n_components": 8}, 20_000)],
    "LowRankGaussianMixture": [({"n_components": 100, "n_factors": 2, "max_iter": 5}, 20_000)],
    "BayesianGaussianMixture": [({"n_components": 8, "max_iter": 5}, 20_000)],
    "InfiniteGaussianMixture": [({}, 20_000)],
    "VonMisesFisherMixture": [({"n_components": 8, "max_iter": 5}, 20_000)],
    "PoissonMixture": [({"n_components": 8, "max_iter": 5}, 20_000)],
    "BernoulliMixture": [({"n_components": 8, "max_iter": 5}, 20_000)],
    "InfiniteMultinomialMixture": [({}, 5_000)],
}  # fmt: skip
DTYPES = ("float32", "float64")
COLUMNS = (2, 16)
WORDS = (300, 2000)
SPARSE = ("KMeans", "NestedMiniBatchKMeans")
"""Estimators that are also fitted to CSR rows."""
ANSWERS = ("predict", "transform", "score_samples", "predict_proba", "score")


def written(kind: Any) -> str:
    """A type of numba's as text; ValueError for one that has none."""
    from numba import types

    for letters, name in build.NAMES.items():
        if kind == getattr(types, name):
            return letters
    if isinstance(kind, types.Array) and kind.aligned and kind.layout in "CF":
        return f"{written(kind.dtype)}:{kind.ndim}{kind.layout}{'' if kind.mutable else '!'}"
    if isinstance(kind, types.BaseTuple):
        named = getattr(kind, "instance_class", tuple)
        name = "" if named is tuple else f"{named.__module__}.{named.__name__}".removeprefix(f"{build.PACKAGE_NAME}.")
        members: Any = kind
        return f"{name}({' '.join(map(written, members.types))})"
    raise ValueError(f"no text for {kind}")


def rows(n: int, n_columns: int, dtype: str, estimator: str) -> Any:
    """Rows about a few places; counts or flags where the estimator takes nothing else."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, n_columns)) + 9.0 * random.integers(0, 5, (n, 1))
    if estimator in ("PoissonMixture", "InfiniteMultinomialMixture"):
        X = np.floor(np.abs(X))
    if estimator == "BernoulliMixture":
        X = X > 9.0
    return X.astype(dtype)


def sparse_rows(n: int, n_columns: int, dtype: str) -> Any:
    """CSR rows with six words of many."""
    from scipy.sparse import random_array

    options: Any = {"density": 6 / n_columns, "format": "csr", "dtype": np.dtype(dtype)}
    return random_array((n, n_columns), random_state=np.random.default_rng(0), **options)


def fit_all(estimator: str, dtype: str) -> None:
    """Fit an estimator in all its ways, and ask it everything."""
    warnings.simplefilter("ignore")  # a fit of a few iterations need not converge
    for options, n in FITS[estimator]:
        columns = (1, *COLUMNS) if estimator == "KMeans" else COLUMNS  # one column has an optimum
        inputs = [rows(n, D, dtype, estimator) for D in columns]
        if estimator in SPARSE and "metric" not in options:
            inputs += [sparse_rows(5_000, D, dtype) for D in WORDS]
        for X in inputs:
            model = getattr(globular, estimator)(random_state=0, **options).fit(X)
            for answer in ANSWERS:
                if hasattr(model, answer):
                    getattr(model, answer)(X[:500])


def record(estimator: str, dtype: str) -> set[str]:
    """The kernels that these fits call and the library does not have, as lines of the manifest."""
    import numba

    found: set[str] = set()
    call = functions.Kernel._call

    def noted(self: functions.Kernel, arguments: tuple[Any, ...]) -> Any:
        try:
            kinds = " ".join(written(numba.typeof(each)) for each in arguments)
        except ValueError:  # no kernel of a common fit
            return call(self, arguments)
        found.add(f"{library.name_of(self.function)} {kinds}")
        return call(self, arguments)

    functions.Kernel._call = noted  # type: ignore[method-assign]
    try:
        fit_all(estimator, dtype)
    finally:
        functions.Kernel._call = call  # type: ignore[method-assign]
    return found


def in_processes() -> Iterator[str]:
    """The lines of all estimators in both precisions, each in a process of its own."""

    def run(job: tuple[str, str]) -> list[str]:
        command = [sys.executable, __file__, "--one", *job]
        environment = {**os.environ, "GLOBULAR_JIT": "fast"}  # the library would hide what it has
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return done.stdout.splitlines()

    with ThreadPoolExecutor(usable_cores()) as pool:
        for found in pool.map(run, [(name, dtype) for name in FITS for dtype in DTYPES]):
            yield from found


def main() -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("ESTIMATOR", "DTYPE"))
    options = parser.parse_args()
    if options.one:
        print("\n".join(sorted(record(*options.one))))
    elif options.check:
        missing = sorted(set(in_processes()) - set(lines()))
        print("\n".join(missing))
        sys.exit(f"{len(missing)} kernels are not in {MANIFEST}" if missing else 0)
    else:
        text = "\n".join(sorted(set(in_processes()))) + "\n"
        write_whole(MANIFEST, lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
