"""Problems of `benchmarks/threads.py`, each timed in a process of its own with a given number of threads and cores.

    python -m harness.threaded PROBLEM PROGRAM THREADS SCALE ROUNDS

prints seconds and error as a line of JSON. A program is the name of an adapter, or "globular", "sklearn" or "faiss"
where a problem is more than a fit to centres. Everything is done once on a few rows before it is timed, so that
imports, compilation and thread pools are not in the figures.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular import datasets
from globular.threads import even_ranges, run_all

from .adapters import ADAPTERS
from .fits import Task
from .quantization import quantization_error

F32 = NDArray[np.float32]
FEW, MANY = 2, 12
"""Iterations of the two fits whose difference is free of what happens once."""
WARM_UP_ROWS = 8_192
MACHINE_TASKS = 128
"""Tasks of the problems that measure the machine itself."""
JUDGED_ROWS = 100_000
"""Rows of which the error is taken, the same for everybody: all would take longer than the fits."""


@dataclass(frozen=True)
class Setting:
    """How a problem is run; `scale` is the share of its rows."""

    program: str
    threads: int
    scale: float
    rounds: int

    def rows(self, n: int) -> int:
        """How many of n rows."""
        return max(2_000, int(n * self.scale))

    def clusters(self, k: int, n: int) -> int:
        """How many of k clusters: fewer where rows are few."""
        return min(k, self.rows(n) // 10)

    def best(self, function: Callable[[], Any]) -> tuple[float, Any]:
        """The fastest of the rounds, and the last result."""
        seconds, result = math.inf, None
        for _ in range(self.rounds):
            began = time.perf_counter()
            result = function()
            seconds = min(seconds, time.perf_counter() - began)
        return seconds, result

    def per_iteration(self, fit: Callable[[int], Any]) -> float:
        """Seconds of an iteration of a fit that makes as many as it is told."""
        few, many = (self.best(partial(fit, n_iter))[0] for n_iter in (FEW, MANY))
        return (many - few) / (MANY - FEW)


@dataclass(frozen=True)
class Timed:
    """Seconds of a fit or of an iteration, and the mean squared distance where centres are the result."""

    seconds: float
    error: float | None = None


@dataclass(frozen=True)
class ThreadProblem:
    """What is timed, by which programs; problems of one family share a panel of the picture."""

    name: str
    family: str
    unit: str
    programs: tuple[str, ...]
    run: Callable[[Setting], Timed]
    n_samples: int


def _groups(n: int, n_features: int, n_groups: int, center_std: float) -> F32:
    data = datasets.many_blobs(n, min(n, n_groups), n_features, center_std=center_std, random_state=0)
    return np.ascontiguousarray(data.X, dtype=np.float32)


def _along_a_curve(n: int) -> F32:
    """Groups of many sizes along a curve in the plane, as on roads and shores."""
    random = np.random.default_rng(0)
    at = np.sort(random.random(5_000)) * 40.0
    places = np.column_stack([at * np.cos(at), 0.7 * at * np.sin(1.3 * at)])
    spread = random.lognormal(-3.0, 1.0, size=len(at))
    chosen = random.choice(len(at), size=n, p=spread / spread.sum())
    return (places[chosen] + spread[chosen, None] * random.normal(size=(n, 2))).astype(np.float32)


def _lloyd(n_features: int, k: int, setting: Setting) -> Timed:
    n = setting.rows(_MILLION)
    X, adapter = _groups(n, n_features, 1_000, 1.0), ADAPTERS[setting.program]
    task = Task(X, setting.clusters(k, _MILLION), MANY, setting.threads, 0)
    start = X[: task.n_clusters].copy()
    return Timed(setting.per_iteration(lambda n_iter: adapter.fit(replace(task, n_iter=n_iter, start=start))))


def _fit(make: Callable[[int], F32], n: int, k: int, setting: Setting) -> Timed:
    X, adapter = make(setting.rows(n)), ADAPTERS[setting.program]
    task = Task(X, setting.clusters(k, n), 25, setting.threads, 0)
    seconds, centers = setting.best(lambda: adapter.fit(task))
    judged = X[np.sort(np.random.default_rng(0).choice(len(X), min(len(X), JUDGED_ROWS), replace=False))]
    return Timed(seconds, quantization_error(judged, centers, threads=setting.threads))


def _variational(setting: Setting) -> Timed:
    X, k = _groups(setting.rows(_MILLION), 64, 20_000, 1.0), setting.clusters(10_000, _MILLION)
    cls = import_module("globular").VariationalKMeans
    options = {"n_candidates": 1, "n_neighbors": 5, "init": X[:k].astype(np.float64), "tol": 0.0, "random_state": 0}

    def iteration() -> float:
        # by its own clock: the labels at the end of a fit take as long as all of its iterations
        seconds = cls(k, max_iter=MANY, **options).fit(X).history_.iterations.column("seconds")
        return float(seconds[-1] - seconds[FEW - 1]) / (len(seconds) - FEW)

    return Timed(min(iteration() for _ in range(setting.rounds)))


def _expectation_maximization(setting: Setting) -> Timed:
    n, k, n_features = _MILLION // 2, 50, 16
    X = _groups(setting.rows(n), n_features, 60, 1.0)
    exact = setting.program == "globular"
    cls = import_module("globular" if exact else "sklearn.mixture").GaussianMixture
    options: dict[str, Any] = {"algorithm": "em"} if exact else {}
    options |= {"weights_init": np.full(k, 1.0 / k), "means_init": X[:k].astype(np.float64), "tol": 0.0}
    options |= {"precisions_init": np.tile(np.eye(n_features), (k, 1, 1)), "random_state": 0}
    return Timed(setting.per_iteration(lambda n_iter: cls(k, max_iter=n_iter, **options).fit(X)))


def _estimator(name: str, options: Mapping[str, Any], make: Callable[[int], F32], n: int, setting: Setting) -> Timed:
    X, cls = make(setting.rows(n)), getattr(import_module("globular"), name)
    return Timed(setting.best(lambda: cls(random_state=0, **options).fit(X))[0])


def _predict(k: int, setting: Setting) -> Timed:
    X, k = _groups(setting.rows(_MILLION), 64, 1_000, 1.0), setting.clusters(k, _MILLION)
    if setting.program == "faiss":
        faiss = import_module("faiss")
        faiss.omp_set_num_threads(setting.threads)
        index = faiss.IndexFlatL2(X.shape[1])
        index.add(X[:k].copy())
        return Timed(setting.best(lambda: index.search(X, 1))[0])
    cls = import_module("globular" if setting.program == "globular" else "sklearn.cluster").KMeans
    model = cls(k, algorithm="lloyd", init=X[:k].copy(), n_init=1, max_iter=1).fit(X[: 2 * k])
    return Timed(setting.best(lambda: model.predict(X))[0])


def _machine(kind: str, setting: Setting) -> Timed:
    """Tasks that share nothing: what more threads gain there is what they can gain elsewhere."""
    random = np.random.default_rng(0)
    X = random.random((setting.rows(_MILLION), 64), dtype=np.float32)
    spans = even_ranges(len(X), -(-len(X) // MACHINE_TASKS))

    def multiply(span: tuple[int, int]) -> None:
        some = X[slice(*span)][:384]
        for _ in range(50):
            some @ some.T

    def add(span: tuple[int, int]) -> None:
        for _ in range(10):
            X[slice(*span)].sum()

    def gather(span: tuple[int, int]) -> None:
        chosen = np.random.default_rng(span[0]).integers(len(X), size=span[1] - span[0])
        for _ in range(5):
            np.take(X, chosen, axis=0)

    work = {"products": multiply, "memory": add, "gathering": gather}[kind]
    return Timed(setting.best(lambda: run_all(work, spans, setting.threads))[0])


_MILLION = 1_000_000
_LLOYD = ("globular-lloyd", "sklearn-lloyd", "faiss-kmeans")
_FITS = ("globular-fast", "globular-balanced", "globular-best", "faiss-kmeans", "superkmeans-hierarchical")
_OURS_ONLY = ("globular",)


def _problems() -> list[ThreadProblem]:
    found = []
    for D in (10, 64, 200):
        for k in (2, 8, 32, 64, 256, 1_000):
            name, family = f"Lloyd {D} columns k={k}", f"Lloyd, {D} columns"
            found.append(ThreadProblem(name, family, "iteration", _LLOYD, partial(_lloyd, D, k), _MILLION))
    fits: list[tuple[str, Callable[[int], F32], int, int]] = [
        ("KMeans 32 columns C=10000", lambda n: _groups(n, 32, 20_000, 2.0), _MILLION, 10_000),
        ("KMeans 2 columns C=3000", _along_a_curve, 482_176, 3_000),
        ("KMeans 192 columns C=8000", lambda n: _groups(n, 192, 10_000, 0.5), 100_000, 8_000),
    ]
    for name, make, n, k in fits:
        found.append(ThreadProblem(name, "KMeans, many clusters", "fit", _FITS, partial(_fit, make, n, k), n))
    variational = ("VariationalKMeans C=10000", "other estimators", "iteration", _OURS_ONLY, _variational, _MILLION)
    mixture = ("GaussianMixture 50 full", "other estimators", "iteration", ("globular", "sklearn"))
    found += [ThreadProblem(*variational), ThreadProblem(*mixture, _expectation_maximization, _MILLION // 2)]
    estimators: list[tuple[str, dict[str, Any], Callable[[int], F32], int]] = [
        (
            "NestedMiniBatchKMeans",
            {"n_clusters": 1_000, "max_iter": 10},
            lambda n: _groups(n, 32, 2_000, 1.0),
            _MILLION,
        ),
        ("ChunkyGaussianMixture", {"n_components": 50}, lambda n: _groups(n, 8, 50, 2.0), _MILLION // 2),
        ("InfiniteGaussianMixture", {}, lambda n: _groups(n, 4, 30, 3.0), _MILLION // 2),
    ]
    for name, options, make, n in estimators:
        run = partial(_estimator, name, options, make, n)
        found.append(ThreadProblem(name, "other estimators", "fit", _OURS_ONLY, run, n))
    for k in (1_000, 10_000):
        programs = ("globular", "sklearn", "faiss")
        found.append(ThreadProblem(f"predict C={k}", "predict", "call", programs, partial(_predict, k), _MILLION))
    for kind in ("products", "memory", "gathering"):
        run = partial(_machine, kind)
        found.append(ThreadProblem(f"the machine, {kind}", "the machine itself", "call", _OURS_ONLY, run, _MILLION))
    return found


PROBLEMS: Mapping[str, ThreadProblem] = MappingProxyType({problem.name: problem for problem in _problems()})


def time_problem(problem: ThreadProblem, setting: Setting) -> Timed:
    """Warm up, then time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so few iterations do not converge
        problem.run(replace(setting, scale=min(setting.scale, WARM_UP_ROWS / problem.n_samples), rounds=1))
        return problem.run(setting)


def main(arguments: list[str]) -> None:
    """Time what the command line says."""
    name, program, threads, scale, rounds = arguments
    timed = time_problem(PROBLEMS[name], Setting(program, int(threads), float(scale), int(rounds)))
    print(json.dumps({"seconds": timed.seconds, "error": timed.error}))


if __name__ == "__main__":
    main(sys.argv[1:])
