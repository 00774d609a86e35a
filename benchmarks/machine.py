"""How far from the machine? Passes of globular against what the hardware and the peers do in the same run.

    python benchmarks/machine.py [--rounds 5]

Measures, interleaved and best of several: the hottest kernels of a probing pass beside a copy and sgemm; one Lloyd
iteration against scikit-learn's, scikit-learn-intelex's and faiss' (mnist, kddbio, sift_photos, BIRCH); one iteration
of variational k-means-S (C′ = 1, G = 5 + 1: E-step, neighbourhoods, M-step) against a plain sum of the rows and those
Lloyd iterations; one probing pass. Data sets that are not found are left out and said.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")  # the OpenBLAS of faiss takes new CPUs for old ones
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "GLOBULAR_NUM_THREADS"):
    os.environ.setdefault(variable, "2")  # before anything is imported

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.cells import draw_cells
from globular.algorithms.kmeans.variational import VariationalOptions, variational_kmeans
from globular.errors import DataError
from globular.passes.cpu import CpuShard
from globular.passes.cpu.cells import BLOCK_ROWS, CellProduct
from globular.passes.cpu.engine.decide import TILE, lower_block
from globular.passes.cpu.engine.score import score_block
from globular.passes.host import NONE
from globular.seam.among import Probe
from globular.seam.center_passes import CellNeighbors
from globular.seam.passes import Assign
from globular.threads import even_ranges, run_all
from harness.data import PROBLEMS

THREADS = 2
ITERATIONS = 3
SETTLING = 10
"""Iterations before variational k-means is timed: in the first ones most rows still change their cluster."""


def best_of(rounds: int, functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Fastest wall seconds of each function, the functions taking turns."""
    seconds = dict.fromkeys(functions, np.inf)
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def peers(X: NDArray[np.float32], centers: NDArray[np.float64]) -> dict[str, Callable[[], float]]:
    """Seconds per Lloyd iteration of every installed exact peer, from the same centres."""
    start = centers.astype(np.float32)

    def sklearn_like(module: str) -> Callable[[], float]:
        import importlib

        cls = importlib.import_module(module).KMeans

        def run() -> float:
            # the difference of two runs is free of what happens once
            times = []
            for n_iter in (1, 1 + ITERATIONS):
                model = cls(len(start), init=start, n_init=1, max_iter=n_iter, tol=0.0, algorithm="lloyd")
                began = time.perf_counter()
                model.fit(X)
                times.append(time.perf_counter() - began)
            return (times[1] - times[0]) / ITERATIONS

        return run

    def faiss_run() -> float:
        import faiss

        faiss.omp_set_num_threads(THREADS)
        faiss.cvar.distance_compute_blas_threshold = 20
        index = faiss.IndexFlatL2(X.shape[1])
        index.add(start)
        began = time.perf_counter()
        index.search(X, 1)  # the assignment alone: its M-step comes on top
        return time.perf_counter() - began

    found: dict[str, Callable[[], float]] = {}
    for name, module in (("scikit-learn", "sklearn.cluster"), ("scikit-learn-intelex", "sklearnex.cluster")):
        try:
            found[name] = sklearn_like(module)
        except ImportError:
            print(f"  {name} is not installed")
    try:
        import faiss  # noqa: F401

        found["faiss (assignment)"] = faiss_run
    except ImportError:
        print("  faiss is not installed")
    return found


def measure(name: str, rounds: int) -> None:
    """All the figures of one problem."""
    try:
        X, C = PROBLEMS[name].load(), PROBLEMS[name].n_clusters
    except DataError as error:
        print(f"{name}: {error}")
        return
    N, D = X.shape
    print(f"{name}: {N:,} × {D}, {C:,} clusters")
    random = np.random.default_rng(0)
    centers = X[np.sort(random.choice(N, C, replace=False))].astype(np.float64)
    shard = CpuShard(X, n_threads=THREADS)
    shard.run(Assign(centers, want="labels"))
    cells = draw_cells(shard, centers, random)
    graph = shard.local(centers).run(CellNeighbors(np.array([0, C]), np.zeros((1, 1), dtype=np.intp), 5))
    # whole iterations of variational k-means, M-step included, on rows of their own that begin at the closest centres
    moving = CpuShard(X, n_threads=THREADS)
    moving.labels[:] = shard.labels
    options = VariationalOptions(C_prime=1, G=5, n_random=1, tol=0.0, max_iter=10**6, n_threads=THREADS)
    iterations = variational_kmeans(moving, centers, options, random, graph)
    for _ in range(SETTLING):
        next(iterations)

    def plain_sum() -> None:
        run_all(lambda span: X[slice(*span)].sum(), even_ranges(N, -(-N // THREADS)), THREADS)

    def lloyd() -> None:
        shard.run(Assign(centers))

    def truncated() -> None:
        next(iterations)

    def probing() -> None:
        shard.run(Assign(centers, Probe(cells, 2)))

    seconds = best_of(rounds, {"sum": plain_sum, "lloyd": lloyd})
    shard.run(Assign(centers, Probe(cells, 2)))
    seconds |= best_of(rounds + 8, {"sum": plain_sum, "truncated": truncated, "probing": probing})
    others = {peer: min(run() for _ in range(max(1, rounds // 2))) for peer, run in peers(X, centers).items()}
    print(f"  plain sum        {1e3 * seconds['sum']:9.1f} ms  {X.nbytes / seconds['sum'] / 1e9:6.1f} GB/s")
    flops = 2.0 * N * D * C
    print(f"  lloyd            {1e3 * seconds['lloyd']:9.1f} ms  {flops / seconds['lloyd'] / 1e9:6.1f} GF/s")
    for peer, value in others.items():
        print(f"  {peer:<17}{1e3 * value:9.1f} ms  ours / theirs {seconds['lloyd'] / value:.2f}")
    fastest = min([seconds["lloyd"], *others.values()])
    print(
        f"  S-pass, 5 + 1    {1e3 * seconds['truncated']:9.1f} ms  "
        f"{seconds['truncated'] / seconds['sum']:.2f} × the sum, "
        f"{fastest / seconds['truncated']:.0f} × less than the fastest exact iteration"
    )
    print(f"  probing, 2 cells {1e3 * seconds['probing']:9.1f} ms  {fastest / seconds['probing']:.1f} × less")


def hottest_kernels(rounds: int, n: int = 2048, D: int = 64, members: int = 64, n_tasks: int = 64) -> None:
    """The three parts of a probing pass that take most of it, on two threads, against a large sgemm and a copy."""
    random = np.random.default_rng(0)
    a, b = (random.random((3000, 3000), dtype=np.float32) for _ in range(2))
    out = np.empty_like(a)
    X = random.normal(size=(n * n_tasks, D)).astype(np.float32)
    copy, order = np.empty_like(X), random.permutation(len(X)).reshape(n_tasks, n)
    shard = CpuShard(X)
    product = CellProduct(shard, X[:members].astype(np.float64), np.arange(members), np.array([0, members]))
    best, labels, in_turn = np.zeros(len(X)), np.zeros(len(X), dtype=np.int32), np.arange(n)
    scratch = [product.workspace(members, -(-members // TILE)) for _ in range(n_tasks)]
    scores = np.empty((n_tasks, n, members), dtype=np.float32)

    def multiply(task: int) -> None:  # the rows of one task, which are in the cache
        for begin in range(0, n, BLOCK_ROWS[1]):
            some = slice(begin, begin + BLOCK_ROWS[1])
            score_block((X,), in_turn[some], NONE, product.centers, 0, scratch[task], scores[task, some])

    def check(task: int) -> None:
        for begin in range(0, n, BLOCK_ROWS[1]):
            some = slice(begin, begin + BLOCK_ROWS[1])
            lower_block(
                (X,), in_turn[some], order[task, some], NONE, product.centers, 0, scores[task, some], scratch[task],
                best, labels,
            )  # fmt: skip

    def on_threads(function: Callable[[int], None]) -> Callable[[], None]:
        return lambda: run_all(function, range(n_tasks), THREADS)

    def copy_task(task: int) -> None:
        copy[task * n : (task + 1) * n] = X[task * n : (task + 1) * n]

    for task in range(n_tasks):
        multiply(task)
        check(task)
    seconds = best_of(rounds, {"sgemm": lambda: np.matmul(a, b, out=out)})
    time.sleep(0.5)  # the threads of BLAS look for more work for a while
    seconds |= best_of(
        3 * rounds,
        {
            "copy": on_threads(copy_task),
            "product": on_threads(multiply),
            "check": on_threads(check),
            "gather": on_threads(lambda task: np.take(X, order[task], axis=0)),
        },
    )
    sgemm, flops = 2e-9 * 3000**3 / seconds["sgemm"], 2e-9 * X.size * members
    read = 1e-9 * 4 * len(X) * members
    bandwidth = 2e-9 * X.nbytes / seconds["copy"]
    print(f"sgemm {sgemm:.0f} GF/s, copy {bandwidth:.1f} GB/s (read and written)")
    print(
        f"  product of rows and cells  {flops / seconds['product']:6.0f} GF/s, {flops / seconds['product'] / sgemm:.0%}"
    )
    print(f"  lowest score and check     {read / seconds['check']:6.1f} GB/s of scores, from cache")
    print(
        f"  gather of rows by cell     {2e-9 * X.nbytes / seconds['gather']:6.1f} GB/s, of the copy's {bandwidth:.1f}"
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--problems",
        nargs="*",
        choices=list(PROBLEMS),
        metavar="NAME",
        default=["mnist-1000", "kddbio-2000", "sift-4096", "glove50-10000", "birch-4096"],
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    hottest_kernels(options.rounds)
    for name in options.problems:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
