"""Beyond one memory and one machine, measured: python benchmarks/scaling.py WHAT [--small]

    overhead   a fit on 2 worker processes against the same fit on 2 threads
    simulate   the client's own work in a pass on 10, 100 and 1,000 workers: seconds and bytes; answers are made here
    dask-ml    seconds to the quality of dask-ml's KMeans on the same cluster
    stream     a directory larger than memory: seconds, and the peak memory of every worker
    plan       the plan on paper for 10⁹ × 128 and a million clusters; the tree of workers is simulated

Every command prints a table; `--small` finishes in seconds and shows that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import pickle
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, protocol
from sklearn.exceptions import ConvergenceWarning

from globular import KMeans, VariationalKMeans
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.model.statistics import HardStatistics
from globular.passes import dask
from globular.passes.dask import DaskShard
from globular.passes.dask.messages import Log, Post, Reply, Request, Work, halves
from globular.passes.dask.workers import collection_partitions
from globular.passes.many import TreeSum
from globular.seam.passes import Assign
from globular.seeding import kmeans_plus_plus

N_WORKERS, N_PARTITIONS = 2, 8


def cluster(memory_limit: str = "auto") -> LocalCluster:
    """Two processes of one thread."""
    return LocalCluster(
        n_workers=N_WORKERS,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.ERROR,
        memory_limit=memory_limit,
    )


def mixture_rows(n: int, D: int, C: int, seed: int = 0) -> np.ndarray:
    """Rows around C places, which are the same for every seed, in float32."""
    random = np.random.default_rng([1, seed])
    places = 4.0 * np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)
    rows = random.standard_normal(size=(n, D), dtype=np.float32)
    rows += places[random.integers(C, size=n)]
    return rows


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds and the result."""
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result


def print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    """A table of two columns."""
    print(f"\n{title}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def overhead(small: bool, rows_wanted: int, n_candidates: int) -> None:
    """The same variational fit on threads and on workers, in turns, after both have compiled; the fastest counts."""
    n, D, C, n_iter, n_rounds = (40_000, 8, 300, 4, 2) if small else (rows_wanted, 32, 5_000, 12, 3)
    rows = mixture_rows(n, D, C)

    def fit(X: Any, n_threads: int | None) -> tuple[float, VariationalKMeans]:
        model = VariationalKMeans(
            C, n_candidates=n_candidates, init="hierarchical", random_state=0, n_threads=n_threads
        )
        return timed(lambda: model.set_params(max_iter=n_iter, tol=0).fit(X))

    with cluster() as workers, Client(workers) as client:
        X = client.persist(da.from_array(rows, chunks=(-(-n // N_PARTITIONS), D)))
        for some in (rows[:4000], X[:4000]):
            VariationalKMeans(20, n_candidates=n_candidates, max_iter=2, random_state=0, init="hierarchical").fit(some)
        fits = [(fit(rows, N_WORKERS), fit(X, None)) for _ in range(n_rounds)]
    here, there = ([pair[side][0] for pair in fits] for side in (0, 1))
    local, found = fits[0][0][1], fits[0][1][1]
    iterations = [
        min((model.history_[-1].seconds - model.history_[0].seconds) / (n_iter - 1) for _, model in side)
        for side in zip(*fits, strict=True)
    ]
    print_rows(
        f"overhead: N = {n:,}, D = {D}, C = {C:,}, C' = {n_candidates}, variational (S), {n_iter} iterations",
        [
            ("2 threads, whole fits", ", ".join(f"{seconds:.2f}" for seconds in here) + " s"),
            (
                f"{N_WORKERS} workers, {N_PARTITIONS} partitions",
                ", ".join(f"{seconds:.2f}" for seconds in there) + " s",
            ),
            ("overhead of the whole fit", f"{100 * (min(there) / min(here) - 1):+.1f} %"),
            ("2 threads, an iteration", f"{iterations[0]:.4f} s"),
            ("workers, an iteration", f"{iterations[1]:.4f} s"),
            ("overhead of an iteration", f"{100 * (iterations[1] / iterations[0] - 1):+.1f} %"),
            ("objective, threads and workers", f"{local.inertia_:.14g}  {found.inertia_:.14g}"),
            ("labels that differ", f"{int((local.labels_ != found.labels_).sum()):,}"),
        ],
    )


def iterations_to(shard: DaskShard, seeds: np.ndarray, error: float, at_most: int = 60) -> int:
    """How many exact Lloyd iterations lead from seeds to an error; dask-ml's are such."""
    for step in lloyd(shard, seeds.astype(np.float64), KMeansOptions(max_iter=at_most + 1, tol=0)):
        if step.objective <= error:  # at the centres that it began with
            return step.iteration - 1
    return at_most


def against_dask_ml(small: bool) -> None:
    """Both on the same cluster and array, each until it has the quality at which the other ends."""
    import dask_ml.cluster
    from dask_ml.cluster.k_means import k_init

    n, D, C = (20_000, 8, 50) if small else (1_000_000, 16, 1_000)
    rows = mixture_rows(n, D, 2 * C)
    with cluster() as workers, Client(workers) as client:
        X = client.persist(da.from_array(rows, chunks=(-(-n // N_PARTITIONS), D)))
        shard = DaskShard(client, collection_partitions(X))
        for K in (20, 100):  # everything is compiled
            KMeans(K, max_iter=2, random_state=0, algorithm="probing").fit(X[:4000])
        dask_ml.cluster.KMeans(20, init=rows[:20], max_iter=1).fit(X[:4000])

        def theirs(start: np.ndarray, n_iter: int) -> tuple[float, float]:
            model = dask_ml.cluster.KMeans(C, init=start, max_iter=n_iter, tol=0)
            seconds, _ = timed(lambda: model.fit(X))
            return seconds, shard.run(Assign(model.cluster_centers_.astype(np.float64), want="labels")).objective

        seconds, ours = min(
            (timed(lambda: KMeans(C, random_state=0).fit(X)) for _ in range(2)), key=lambda pair: pair[0]
        )
        error = -ours.score(X)
        # of their defaults, two candidates a round would leave all but 40 of the seeds to chance
        seeding_seconds, seeds = timed(
            lambda: k_init(X, C, random_state=0, oversampling_factor=C, max_iter=5, n_init="auto")
        )
        n_equal = iterations_to(shard, seeds, error)
        equal_seconds, equal_error = theirs(seeds, n_equal)
        long_seconds, long_error = theirs(seeds, 25)
        patient = KMeans(C, random_state=0, tol=0, max_iter=200).fit(X)
        reached = next((record for record in patient.history_ if record.objective <= long_error), None)
        same = kmeans_plus_plus(X, C, random_state=0)
        same_seconds, from_same = timed(lambda: KMeans(C, init=same, random_state=0).fit(X))
        same_error = -from_same.score(X)
        n_same = iterations_to(shard, same, same_error)
        their_same_seconds, their_same_error = theirs(same, n_same)
    print_rows(
        f"dask-ml: N = {n:,}, D = {D}, C = {C:,}, {N_PARTITIONS} partitions, {N_WORKERS} workers",
        [
            ("globular KMeans, defaults", f"{seconds:.2f} s, error {error:.6g}"),
            (
                "dask-ml KMeans to that error",
                f"{seeding_seconds:.1f} s seeding + {equal_seconds:.1f} s for {n_equal} iterations, "
                f"error {equal_error:.6g}",
            ),
            ("  times as long", f"{(seeding_seconds + equal_seconds) / seconds:.1f}"),
            ("dask-ml KMeans, 25 iterations", f"{seeding_seconds + long_seconds:.1f} s, error {long_error:.6g}"),
            (
                "globular KMeans, tol=0, to that error",
                "not reached" if reached is None else f"{reached.seconds:.2f} s, iteration {reached.iteration}",
            ),
            (
                "  times as long",
                "–" if reached is None else f"{(seeding_seconds + long_seconds) / reached.seconds:.1f}",
            ),
            ("from the same seeds, globular", f"{same_seconds:.2f} s, error {same_error:.6g}"),
            (
                "from the same seeds, dask-ml",
                f"{their_same_seconds:.1f} s for {n_same} iterations, error {their_same_error:.6g}",
            ),
            ("  times as long", f"{their_same_seconds / same_seconds:.1f}"),
        ],
    )


def peak_memory() -> float:
    """Highest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


@dataclass(frozen=True)
class StreamedFit:
    """A fit of files, and what it took."""

    seconds: float
    iterations: list[float]
    error: float
    peaks: list[float]

    def lines(self, name: str, gigabytes: float) -> list[tuple[str, str]]:
        """For the table."""
        speed = ", ".join(f"{1000 * gigabytes / seconds:.0f}" for seconds in self.iterations)
        return [
            (f"{name}, whole fit", f"{self.seconds:.1f} s, error {self.error:.8g}"),
            (f"{name}, seconds of an iteration", ", ".join(f"{seconds:.1f}" for seconds in self.iterations)),
            (f"{name}, MB/s", speed),
            (f"{name}, peak memory of a process", ", ".join(f"{peak:.2f} GB" for peak in self.peaks)),
        ]


def fit_files(folder: Path, n_clusters: int, n_iter: int) -> StreamedFit:
    """Few iterations of k-means; where depends on whether there is a client."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = KMeans(n_clusters, algorithm="probing", init="random", max_iter=n_iter, tol=0, random_state=0)
    seconds, _ = timed(lambda: model.fit(folder))
    times = [record.seconds for record in model.history_]
    return StreamedFit(seconds, [b - a for a, b in pairwise(times)], model.inertia_, [peak_memory()])


def streamed(small: bool, gigabytes: float, folder: Path | None) -> None:
    """Write a directory of .npy files; fit it on workers that must stream, then in one process without Dask."""
    D, C, n_iter = 128, 1_000, 3
    gigabytes = 0.25 if small else gigabytes
    n_files = 8 if small else 32
    rows_per_file = int(gigabytes * 1e9 / (4 * D * n_files))
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        for number in range(n_files):
            np.save(made / f"part-{number:03d}.npy", mixture_rows(rows_per_file, D, C, seed=number))
        dask.WORKER_SHARE = 0.0 if small else dask.WORKER_SHARE  # little data must stream as well
        with cluster("2GB" if small else "3GB") as workers, Client(workers) as client:
            there = replace(fit_files(made, C, n_iter), peaks=list(client.run(peak_memory).values()))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:  # for a peak of its own
            here = alone.submit(fit_files, made, C, n_iter).result()
    finally:
        shutil.rmtree(made)
    print_rows(
        f"streamed: {gigabytes:g} GB in {n_files} files, D = {D}, C = {C:,}, probing, {n_iter} iterations",
        there.lines(f"{N_WORKERS} workers", gigabytes) + here.lines("one process, 2 threads", gigabytes),
    )


class SimulatedShard(DaskShard):
    """A shard whose workers answer at once; what the client packs, unpacks and merges for a pass is real."""

    def __init__(self, n_workers: int, sums: HardStatistics) -> None:
        self.key, self.partitions, self.log, self.n_repairs = "simulated", [None] * n_workers, Log(), 0
        self.owners = [f"tcp://worker-{number:04d}:8786" for number in range(n_workers)]
        self.cluster, self._direct, self._parts = self, True, []
        self.sums, self.ready = sums, dict[str, Any]()
        self.n_sent = self.n_received = 0

    def sync(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """In the place of the client's event loop."""
        return asyncio.run(function(*arguments))

    async def watched(self, call: Any, workers: Any) -> Any:
        """Nobody is ever lost."""
        return await call

    async def _call(self, request: Request) -> Reply:
        arguments = pickle.dumps((request,), 5)
        frames = protocol.dumps({"op": "run", "function": b"", "args": arguments, "wait": True})
        self.n_sent += sum(map(len, frames))
        packed = self.ready[request.route[0].address]
        self.n_received += sum(map(len, packed))
        return cast(Reply, protocol.loads(packed)["result"])

    def prepare(self, work: Work) -> None:
        """Pack the answers that the workers would send."""
        for route in halves(self._route(None)):
            tree = TreeSum[HardStatistics](len(self.partitions), lambda one, other: one)
            for post in route:
                for part in post.parts:
                    tree.insert(0, part, self.sums)
            nodes = {node: deepcopy(found) for node, found in tree.nodes.items()}  # as one they would travel once
            reply = {"status": "OK", "result": protocol.to_serialize(Reply(nodes))}
            self.ready[route[0].address] = [bytes(frame) for frame in protocol.dumps(reply)]


def simulate(small: bool) -> None:
    """An exact pass on simulated workers; what a worker receives and sends is the same, whatever their number."""
    for C, D in ((10_000, 16),) if small else ((100_000, 128), (1_000_000, 16)):
        random = np.random.default_rng(0)
        sums = HardStatistics(random.normal(size=(C, D)), random.random(C), 1.0, 1, 1)
        lines = []
        for n_workers in (10, 100, 1_000):
            shard, work = SimulatedShard(n_workers, sums), Assign(sums.sums)
            shard.prepare(Work(work))
            begun = time.process_time()
            wall, _ = timed(partial(shard.run, work))
            seconds = time.process_time() - begun
            told = f"{shard.n_sent / 1e6:,.0f} MB out, {shard.n_received / 1e6:,.0f} MB back"
            lines.append((f"{n_workers:,} workers", f"{seconds:.2f} s of the processor, {wall:.2f} s; {told}"))
        print_rows(f"simulated: C = {C:,}, D = {D}, 8 C D = {8 * C * D / 1e6:,.0f} MB, an exact pass", lines)


def tree_of(route: tuple[Post, ...]) -> float:
    """Steps until all workers of a route have the parameters, when each sends to its two halves one after the other."""
    if not route:
        return 0.0
    arrivals = [position + 1 + tree_of(half[1:]) for position, half in enumerate(halves(route))]
    return max(arrivals, default=0.0)


CLIENT_SECONDS_PER_BYTE = 7.6e-9
"""The client's work in a pass for each byte of the centres in float64, as `simulate` found."""
N_PASSES = 20
"""Of a fit with many clusters: rounds of swaps, iterations and labels."""


def plan(small: bool) -> None:
    """The plan on paper: what each machine holds, what each link carries, how long that takes."""
    N, D, C, W = 10**9, 128, 10**6, 100
    bandwidth, rate = 1.25e9, 40e9  # bytes per second of 10 Gb/s; flops per core of a probing pass
    cores = 16
    down, up = 8.0 * C * (D + 1) + 8.0 * D * C ** (2 / 3), 8.0 * C * (D + 1)
    steps = tree_of(tuple(Post(str(i), (i,)) for i in range(16 if small else W)))
    compute = 2 * D * N / W * 10 * C ** (1 / 3) / (cores * rate)  # cells in cells: 4 C^(1/3) to find 6 of them
    client = CLIENT_SECONDS_PER_BYTE * 8 * C * D
    each = compute + client + steps * (down + up) / bandwidth
    print_rows(
        f"plan: N = {N:.0e}, D = {D}, C = {C:.0e}, {W} workers of {cores} cores, 10 Gb/s",
        [
            ("rows per worker, float32", f"{4 * N * D / W / 1e9:.1f} GB"),
            ("state per worker (labels, d², cells)", f"{(4 + 8 + 4) * N / W / 1e9:.2f} GB"),
            ("parameters and sums per worker", f"{(3 * down + 2 * up) / 1e9:.1f} GB"),
            ("down or up one link", f"{down / 1e9:.2f} / {up / 1e9:.2f} GB"),
            ("depth of the tree in sends (simulated)", f"{steps:.0f}"),
            ("parameters to all workers", f"{steps * down / bandwidth:.1f} s"),
            ("sums back", f"{steps * up / bandwidth:.1f} s"),
            ("the client packs and merges", f"{client:.1f} s"),
            ("a probing pass over the rows", f"{compute:.1f} s"),
            ("a pass in all", f"{each:.0f} s"),
            (f"a fit of {N_PASSES} passes", f"{N_PASSES * each / 60:.0f} min"),
            ("machine hours", f"{W * N_PASSES * each / 3600:.0f}"),
        ],
    )


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "simulate", "dask-ml", "stream", "plan", "all"])
    parser.add_argument("--small", action="store_true", help="finish in seconds")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the fit of which the overhead is taken")
    parser.add_argument("--candidates", type=int, default=3, help="C′ of that fit")
    parser.add_argument("--gigabytes", type=float, default=30.0, help="size of the directory that is streamed")
    parser.add_argument("--folder", type=Path, default=None, help="where to write it")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    runs: dict[str, Callable[[], None]] = {
        "overhead": lambda: overhead(options.small, options.rows, options.candidates),
        "simulate": lambda: simulate(options.small),
        "dask-ml": lambda: against_dask_ml(options.small),
        "stream": lambda: streamed(options.small, options.gigabytes, options.folder),
        "plan": lambda: plan(options.small),
    }
    for name, run in runs.items():
        if options.what in (name, "all"):
            run()


if __name__ == "__main__":
    main()
