"""Compile kernels ahead of the first fit: small fits of each model, in several processes at once.

A kernel is compiled when a fit first needs it, for the types of that fit. So the way to have the kernels of a model is
to fit it: to few clusters and to many, in few columns and in many, in both precisions. These fits run in processes of
their own; what two of them need is compiled by one and read from disk by the other (`kernels/cache.py`).

`python -m globular.warming FOLDER` compiles for every level of CPUs that this one reaches, for a wheel to bring along;
`python -m globular.warming FOLDER --expect LEVEL …` fails unless these levels are among them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from globular.cores import usable_cores
from globular.errors import DataError
from globular.estimators.chunky_mixture import ChunkyGaussianMixture
from globular.estimators.family_mixtures import VonMisesFisherMixture
from globular.estimators.infinite_mixture import InfiniteGaussianMixture
from globular.estimators.kmeans import KMeans
from globular.estimators.low_rank_mixture import LowRankGaussianMixture
from globular.estimators.mixture import GaussianMixture
from globular.estimators.nested import NestedMiniBatchKMeans
from globular.estimators.variational_kmeans import VariationalKMeans
from globular.estimators.variational_mixture import VariationalGaussianMixture
from globular.kernels import cache
from globular.kernels.target import levels

FITS: list[Any] = [
    KMeans(8),
    KMeans(100),
    KMeans(380),
    KMeans(600),
    KMeans(2000, max_iter=5),
    KMeans(20, algorithm="lloyd", max_iter=5),
    VariationalKMeans(600, max_iter=5),
    NestedMiniBatchKMeans(100, max_iter=20),
    GaussianMixture(8, max_iter=5),
    GaussianMixture(8, covariance_type="diag", max_iter=5),
    VariationalGaussianMixture(600, max_iter=5),
    ChunkyGaussianMixture(8),
    LowRankGaussianMixture(100, 2, max_iter=5),
    InfiniteGaussianMixture(),
    VonMisesFisherMixture(8, max_iter=5),
]
"""The fits that make the kernels of the models."""
MODELS = list(dict.fromkeys(type(fit).__name__ for fit in FITS))

MODULE = "globular.warming"  # whose `__name__` is another in a process of its own
DTYPES = ("float32", "float64")
COLUMNS = (2, 16)
ROWS = 20_000


def warmup(models: str | Sequence[str] | None = None, *, n_jobs: int | None = None) -> list[str]:
    """Compile the kernels that common fits of these models need, so that no later process has to.

    Parameters
    ----------
    models : str or sequence of str, optional
        Names of estimators; all of them by default.
    n_jobs : int, optional
        Processes at once; as many as there are cores by default.

    Returns
    -------
    list of str
        The names of the models whose kernels are on disk now.
    """
    names = checked(models)
    for _ in compile_all(names, n_jobs):
        pass
    return names


def checked(models: str | Sequence[str] | None) -> list[str]:
    """Names of models as a list; an error if there is no such model."""
    names = MODELS if models is None else [models] if isinstance(models, str) else list(models)
    for name in names:
        if name not in MODELS:
            raise DataError(f"models: no model {name!r}; there are {', '.join(MODELS)}")
    return names


def compile_all(
    names: Sequence[str], n_jobs: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Compile the kernels of some models and name each fit that is done; the first that fails is an error.

    The processes have these variables in their environment.
    """
    jobs = [(name, dtype) for dtype in DTYPES for name in names]
    with ThreadPoolExecutor(n_jobs or usable_cores()) as pool:
        yield from pool.map(lambda job: _in_a_process(job, variables), jobs)


def compile_levels(folder: Path, names: Sequence[str] = MODELS, expected: Sequence[str] = ()) -> Iterator[str]:
    """Compile for every level of CPUs that this one reaches, into a folder that a wheel can bring along.

    A level that is expected and not reached is an error before anything is compiled, and one without kernels after.
    """
    if missing := [name for name in expected if name not in levels()]:
        raise RuntimeError(
            f"kernels of {' and '.join(missing)} cannot be built here: this CPU reaches {', '.join(levels()) or 'none'}"
            "; run it again on a newer one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / cache.VERSIONS).write_text(cache.versions())
    for name, level in levels().items():
        target = {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.features}
        for done in compile_all(names, variables={**target, "NUMBA_CACHE_DIR": str(folder.absolute())}):
            yield f"{name}: {done}"
        if not any((folder / cache.name_of(level)).glob(f"*{cache.SUFFIX}")):
            raise RuntimeError(f"no kernels of {name} in {folder}: see that it belongs to you and can be written to")


def _in_a_process(job: tuple[str, str], variables: Mapping[str, str] | None = None) -> str:
    name, dtype = job
    command = [sys.executable, "-m", MODULE, name, dtype]
    environment = {**os.environ, "GLOBULAR_COMPILE_AHEAD": "0", **(variables or {})}  # cores have work enough
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
        raise RuntimeError(f"the kernels of {name} in {dtype} did not compile: {why}")
    return f"{name}, {dtype}"


def kernels_on_disk() -> tuple[int, Path | None]:
    """How many kernels are on disk, and in which folder more are kept."""
    return cache.count(), cache.folder()


def _fit(name: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    warnings.simplefilter("ignore")  # a fit of a few iterations need not converge
    for columns in COLUMNS:
        X = (random.normal(size=(ROWS, columns)) + 9 * random.integers(0, 5, (ROWS, 1))).astype(dtype)
        for model in FITS:
            if type(model).__name__ == name:
                model.set_params(random_state=0).fit(X).predict(X)


if __name__ == "__main__":
    if sys.argv[2:3] in ([], ["--expect"]):
        for compiled in compile_levels(Path(sys.argv[1]), expected=sys.argv[3:]):
            print(compiled, flush=True)
    else:
        _fit(*sys.argv[1:])
