"""K-means on a card: exact and probing iterations, and whole fits against 25 exact iterations from random rows.

    python benchmarks/gpu.py                  1,000,000 × 128 rows of float16, C = 1,000, 10,000, 100,000
    python benchmarks/gpu.py --rows 10000000 --clusters 100000
    python benchmarks/gpu.py --rows 20000000 --clusters 1000000 --only fit
    python benchmarks/gpu.py --rows 8000000 --clusters 10000 --only streamed      rows that stay in the host's memory
    python benchmarks/gpu.py --data mnist.npz --clusters 1000 --devices cpu cuda   final errors beside the CPU's

Medians of five. Beside our own exact pass ("all"): torch's plain one (a matrix product and an argmin, block by block),
and flash-kmeans, if it is installed. Rows are groups of uneven size along directions of falling variance, like word
vectors; white noise would flatter nobody.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from globular import KMeans
from globular.algorithms.kmeans.cells import draw_cells
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.passes.registry import shard_on_card
from globular.seam.among import Probe
from globular.seam.passes import Assign

GROUPS = 20_000
COMPARED_UP_TO = 10**12
"""Distances of an iteration up to which 25 exact ones are taken: some 20 s."""
PLAIN_UP_TO = 2 * 10**10
"""Distances up to which torch's plain iteration is timed too; with more it takes seconds."""


def make_rows(n: int, n_columns: int, seed: int = 0) -> Any:
    """Groups of uneven size and spread, along directions of falling variance, in float16."""
    random = torch.Generator(device="cuda").manual_seed(seed)
    scale = torch.arange(1, n_columns + 1, device="cuda").float() ** -0.5
    turn = torch.linalg.qr(torch.randn(n_columns, n_columns, generator=random, device="cuda"))[0]
    means = torch.randn(GROUPS, n_columns, generator=random, device="cuda") * scale
    rows = torch.empty(n, n_columns, dtype=torch.float16, device="cuda")
    for begin in range(0, n, 1 << 20):
        m = min(1 << 20, n - begin)
        group = (torch.rand(m, generator=random, device="cuda") ** 2 * GROUPS).long()
        spread = 0.4 + 0.6 * torch.rand(m, 1, generator=random, device="cuda")
        noise = torch.randn(m, n_columns, generator=random, device="cuda") * scale * spread
        rows[begin : begin + m] = (3.0 * (means[group] + noise) @ turn).half()
    return rows


def median_ms(work: Callable[[], object], n: int = 5) -> float:
    """Of n runs after two to warm up."""
    return float(np.median(times_ms(work, n)))


def times_ms(work: Callable[[], object], n: int) -> list[float]:
    """Of n runs after two to warm up, what the card still does for them included."""
    times = []
    for _ in range(n + 2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return times[2:]


def plain_iteration(rows: Any, centers: Any) -> Any:
    """What one writes in torch: products, argmin, sums by index."""
    half, norms = centers.half(), (centers * centers).sum(1)
    labels = torch.empty(len(rows), dtype=torch.int64, device="cuda")
    step = max(1, (1 << 30) // len(centers))
    for begin in range(0, len(rows), step):
        labels[begin : begin + step] = (norms - 2 * (rows[begin : begin + step] @ half.T).float()).argmin(1)
    sums = torch.zeros_like(centers).index_add_(0, labels, rows.float())
    return sums / torch.bincount(labels, minlength=len(centers)).clamp_min(1)[:, None]


def time_iterations(rows: Any, n_clusters: int) -> None:
    """Print exact iterations of all there are, and a probing one."""
    shard = shard_on_card(rows, None)
    chosen = np.sort(np.random.default_rng(1).choice(len(rows), n_clusters, replace=False))
    centers, rng = shard.take(chosen), np.random.default_rng(0)
    ours = median_ms(lambda: shard.run(Assign(centers)))
    few = len(rows) * n_clusters <= PLAIN_UP_TO
    start = rows[torch.as_tensor(chosen, device="cuda")].float()
    plain = median_ms(lambda: plain_iteration(rows, start), 3) if few else np.nan
    probing = median_ms(lambda: shard.run(Assign(centers, Probe(draw_cells(shard, centers, rng), 2))))
    cells = median_ms(lambda: draw_cells(shard, centers, rng))
    print(
        f"{len(rows):>10,} rows, C = {n_clusters:>9,}: exact {ours:8.2f} ms, torch {plain:8.2f} ms, "
        f"probing {probing:7.2f} ms (cells {cells:.2f})",
        flush=True,
    )
    try:
        from flash_kmeans import batch_kmeans_Euclid
    except ImportError:
        return
    flash = median_ms(lambda: batch_kmeans_Euclid(rows[None], n_clusters=n_clusters, max_iters=10, tol=-1.0), 3) / 10
    print(f"{'':>10} flash-kmeans {flash:8.2f} ms", flush=True)


def time_streamed(rows: Any, n_clusters: int) -> None:
    """Print iterations over rows that come from the host's memory for every pass, beside rows that lie on the card."""
    there, here = shard_on_card(rows, None), shard_on_card(rows.cpu().numpy(), None)
    centers = there.take(np.sort(np.random.default_rng(1).choice(len(rows), n_clusters, replace=False)))
    rng, figures = np.random.default_rng(0), []
    for shard in (there, here):
        figures.append(median_ms(lambda shard=shard: shard.run(Assign(centers)), 3))
        cells = draw_cells(shard, centers, rng)
        figures.append(median_ms(lambda shard=shard, cells=cells: shard.run(Assign(centers, Probe(cells, 2))), 3))
    rate = rows.numel() * rows.element_size() / figures[3] / 1e6
    print(
        f"{len(rows):>10,} rows, C = {n_clusters:>9,}: on the card exact {figures[0]:.1f} ms, "
        f"probing {figures[1]:.1f}; streamed exact {figures[2]:.1f}, probing {figures[3]:.1f} ms ({rate:.1f} GB/s)",
        flush=True,
    )


def compare_errors(path: str, n_clusters: int, devices: list[str], n_seeds: int = 3) -> None:
    """Print the final errors of default fits on these devices, with seconds after the first, which compiles."""
    rows = np.load(path)["X"]
    rows = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    for device in devices:
        errors, seconds = [], []
        for seed in range(n_seeds):
            begun = time.perf_counter()
            errors.append(KMeans(n_clusters, random_state=seed, device=device).fit(rows).inertia_ / len(rows))
            seconds.append(time.perf_counter() - begun)
        told = ", ".join(f"{error:.6g}" for error in errors)
        print(
            f"{path}, C = {n_clusters:,}, {device}: errors {told}, mean {np.mean(errors):.6g}, {min(seconds):.3f} s",
            flush=True,
        )


def error_to_reach(rows: Any, n_clusters: int) -> tuple[float, float]:
    """The error of 25 exact iterations from random rows, and their seconds."""
    shard = shard_on_card(rows, None)
    chosen = np.sort(np.random.default_rng(1).choice(len(rows), n_clusters, replace=False))
    begun = time.perf_counter()
    for step in lloyd(shard, shard.take(chosen), KMeansOptions(max_iter=25)):
        goal = step.objective
    return goal, time.perf_counter() - begun


def time_fit(rows: Any, n_clusters: int, quality: str, goal: float, exact: float) -> None:
    """Print how long a fit takes, its error and memory, and when it passes the error of 25 exact iterations."""
    times = []
    for _ in range(6):  # the first compiles
        torch.cuda.reset_peak_memory_stats()
        held, begun = torch.cuda.memory_allocated(), time.perf_counter()
        model = KMeans(n_clusters, quality=quality, random_state=0).fit(rows)
        passed = next((record.seconds for record in model.history_ if record.objective <= goal), np.nan)
        times.append((time.perf_counter() - begun, passed))
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20
    seconds, reached = np.median(times[1:], axis=0)
    stages = {record.stage: record.seconds for record in model.history_}
    print(
        f"{len(rows):>10,} rows, C = {n_clusters:>9,}, {quality}: fit {seconds:7.3f} s, "
        f"error {model.inertia_ / len(rows):.4f} "
        f"(25 exact iterations {goal / len(rows):.4f} in {exact:.3f} s, passed after {reached:.3f} s), "
        f"stages end { ({name: round(at, 3) for name, at in stages.items()}) }, recall {model.label_recall_:.3f}, "
        f"{peak:,.0f} MiB beside X",
        flush=True,
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--only", choices=["iterations", "fit", "streamed"])
    parser.add_argument("--quality", nargs="+", default=["balanced", "best"])
    parser.add_argument("--data", help="an .npz with the rows X")
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    options = parser.parse_args()
    if options.data:
        for n_clusters in options.clusters:
            compare_errors(options.data, n_clusters, options.devices)
        return
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA card")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    rows = make_rows(options.rows, options.columns)
    for n_clusters in options.clusters:
        if options.only == "streamed":
            time_streamed(rows, n_clusters)
            continue
        if options.only != "fit":
            time_iterations(rows, n_clusters)
        if options.only != "iterations":
            few = len(rows) * n_clusters <= COMPARED_UP_TO
            goal, exact = error_to_reach(rows, n_clusters) if few else (np.inf, np.nan)
            for quality in options.quality:
                time_fit(rows, n_clusters, quality, goal, exact)


if __name__ == "__main__":
    main()
