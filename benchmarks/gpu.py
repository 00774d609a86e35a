"""K-means on a card: exact and probing iterations, and whole fits against 25 exact iterations from random rows.

    python benchmarks/gpu.py                  1,000,000 × 128 rows of float16, C = 1,000, 10,000, 100,000
    python benchmarks/gpu.py --rows 10000000 --clusters 100000
    python benchmarks/gpu.py --rows 20000000 --clusters 1000000 --only fit
    python benchmarks/gpu.py --rows 8000000 --clusters 10000 --only streamed      rows that stay in the host's memory
    python benchmarks/gpu.py --only parts       4,000,000 rows, C = 10,000: one card, and two parts on that card
    python benchmarks/gpu.py --only workers     40,000,000 rows, C = 10,000: one process, and two Dask workers
    python benchmarks/gpu.py --only file --rows 1000000000     × 32 of uint8 in the host's memory, C = 100,000
    python benchmarks/gpu.py --only file --file rows.npy --room 8     from a file; 8 GiB of the card are free
    python benchmarks/gpu.py --data mnist.npz --clusters 1000 --devices cpu cuda   final errors beside the CPU's

Medians of five. Beside our own exact pass ("all"): torch's plain one (a matrix product and an argmin, block by block),
and flash-kmeans, if it is installed. Rows are groups of uneven size along directions of falling variance, like word
vectors; white noise would flatter nobody.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from globular import KMeans
from globular.algorithms.kmeans.cells import draw_cells
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import find_labels
from globular.passes.registry import cards
from globular.passes.torch import StreamedShard
from globular.seam.among import Probe
from globular.seam.passes import Assign

GROUPS = 20_000
COMPARED_UP_TO = 10**12
"""Distances of an iteration up to which 25 exact ones are taken: some 20 s."""
DEFAULTS = {
    "parts": (4_000_000, 128, [10_000]),
    "workers": (40_000_000, 128, [10_000]),
    "file": (100_000_000, 32, [100_000]),
}
"""Rows, columns and clusters of the jobs that are not asked for unless by name."""
PLAIN_UP_TO = 2 * 10**10
"""Distances up to which torch's plain iteration is timed too; with more it takes seconds."""


def on_card(rows: Any, device: Any = "cuda") -> Any:
    """A shard over rows on a card, or on several."""
    return cards().shard_on_cards(rows, None, device)


def make_rows(n: int, n_columns: int, seed: int = 0, draw: int = 0) -> Any:
    """Groups of uneven size and spread, along directions of falling variance, in float16.

    Another draw has other rows of the same groups.
    """
    random = torch.Generator(device="cuda").manual_seed(seed)
    scale = torch.arange(1, n_columns + 1, device="cuda").float() ** -0.5
    turn = torch.linalg.qr(torch.randn(n_columns, n_columns, generator=random, device="cuda"))[0]
    means = torch.randn(GROUPS, n_columns, generator=random, device="cuda") * scale
    rows = torch.empty(n, n_columns, dtype=torch.float16, device="cuda")
    if draw:
        random.manual_seed(10_000 * (seed + 1) + draw)
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
    shard = on_card(rows)
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
    there, here = on_card(rows), StreamedShard(rows.cpu().numpy(), None, rows.device)
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


def first_centers(shard: Any, n_clusters: int) -> Any:
    """Some rows, evenly spread."""
    return np.asarray(shard.take(np.linspace(0, shard.n_rows - 1, n_clusters).astype(np.intp)))


def passes_ms(shard: Any, centers: Any, cells: Any) -> list[float]:
    """Medians of an exact pass and of a probing one."""
    works = Assign(centers), Assign(centers, Probe(cells, 2))
    return [median_ms(lambda work=work: shard.run(work)) for work in works]


def time_parts(rows: Any, n_clusters: int) -> None:
    """Print passes and fits on one card, and on two and four parts of the rows on that card."""
    base: list[float] = []
    centers = cells = None
    for n_parts in (1, 2, 4):
        device = ["cuda"] * n_parts if n_parts > 1 else "cuda"
        shard = on_card(rows, device)
        if centers is None:
            centers = first_centers(shard, n_clusters)
            cells = draw_cells(shard, centers, np.random.default_rng(0))
        found, times = passes_ms(shard, centers, cells), []
        del shard
        for _ in range(4):  # the first one records
            begun = time.perf_counter()
            model = KMeans(n_clusters, device=device, random_state=0).fit(rows)
            times.append(1e3 * (time.perf_counter() - begun))
        found.append(float(np.median(times[1:])))
        base = base or found
        told = ", ".join(
            f"{name} {ms:.1f} ms ({ms / one:.2f} x)"
            for name, ms, one in zip(("exact", "probing", "fit"), found, base, strict=True)
        )
        print(
            f"{len(rows):>11,} rows, C = {n_clusters:,}, {n_parts} part(s): {told}; {model.n_iter_} iterations, "
            f"error {model.inertia_ / len(rows):.4f}",
            flush=True,
        )


def chunk_of_rows(n: int, n_columns: int, seed: int) -> Any:
    """Rows in the memory of the host, made on the card."""
    found = make_rows(n, n_columns, seed).cpu().numpy()
    torch.cuda.empty_cache()
    return found


def time_workers(n_rows: int, n_columns: int, n_clusters: int) -> None:
    """Print passes and fits of one process, and of two Dask workers on the same card."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    from globular.data.open import tell
    from globular.passes.dask import open_on_workers
    from globular.passes.registry import Card

    half = n_rows // 2
    rows = torch.cat([make_rows(half, n_columns, seed) for seed in (0, 1)])
    shard = on_card(rows)
    centers = first_centers(shard, n_clusters)
    cells = draw_cells(shard, centers, np.random.default_rng(0))
    base = passes_ms(shard, centers, cells)
    for _ in range(2):
        begun = time.perf_counter()
        model = KMeans(n_clusters, random_state=0).fit(rows)
        seconds = time.perf_counter() - begun
    error = model.inertia_ / n_rows
    print(
        f"{n_rows:>11,} rows, C = {n_clusters:,}, one process: exact {base[0]:.1f} ms, probing {base[1]:.1f} ms, "
        f"fit {seconds:.2f} s, {model.n_iter_} iterations, error {error:.4f}",
        flush=True,
    )
    del rows, shard
    torch.cuda.empty_cache()
    with (
        LocalCluster(n_workers=2, threads_per_worker=8, dashboard_address=None, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):
        chunk = dask.delayed(chunk_of_rows, pure=True)
        chunks = [da.from_delayed(chunk(half, n_columns, seed), (half, n_columns), np.float16) for seed in (0, 1)]
        X = client.persist(da.concatenate(chunks))
        card = Card("cuda", n_clusters, 256)
        shard = open_on_workers(tell(X), None, None, unit_rows=False, labelled=True, n_threads=None, card=card)
        found = passes_ms(shard, centers, cells)
        del shard
        for _ in range(2):
            begun = time.perf_counter()
            model = KMeans(n_clusters, device="cuda", random_state=0).fit(X)
            apart = time.perf_counter() - begun
        print(
            f"{n_rows:>11,} rows, C = {n_clusters:,}, two workers: exact {found[0]:.1f} ms "
            f"({found[0] / base[0]:.2f} x), probing {found[1]:.1f} ms ({found[1] / base[1]:.2f} x), fit {apart:.2f} s "
            f"({apart / seconds:.2f} x, loading included), {model.n_iter_} iterations, "
            f"error {model.inertia_ / n_rows:.4f}",
            flush=True,
        )


def bytes_in_memory(n: int, n_columns: int, path: str | None) -> Any:
    """Rows of uint8 in the host's memory, or in an .npy file that is mapped; made on the card, 2^22 at a time."""
    out: Any = np.empty((n, n_columns), np.uint8)
    if path is not None:
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(n, n_columns))
    for number, begin in enumerate(range(0, n, 1 << 22)):
        some = make_rows(min(1 << 22, n - begin), n_columns, seed=7, draw=number).float()
        out[begin : begin + len(some)] = (128.0 + 16.0 * some).round_().clamp_(0, 255).to(torch.uint8).cpu().numpy()
    return out


def time_file(n: int, n_columns: int, n_clusters: int, path: str | None, room: float | None) -> None:
    """Print passes over rows in the host's memory or a file, and a fit: its time, memory, and what was foretold."""
    begun = time.perf_counter()
    is_parquet = path is not None and path.endswith(".parquet")
    X: Any = bytes_in_memory(n, n_columns, None if is_parquet else path)
    if is_parquet:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(X.ravel(), n_columns)})
        pq.write_table(table, path, row_group_size=1 << 20, compression="none", use_dictionary=False)
    gib = X.nbytes / 2**30
    print(f"{n:>13,} x {n_columns} uint8, {gib:.1f} GiB, made in {time.perf_counter() - begun:.1f} s", flush=True)
    rows, X = X, X if path is None else Path(path)
    torch.cuda.empty_cache()
    held = None
    if room is not None:
        held = torch.empty(int(torch.cuda.mem_get_info()[0] - room * 2**30), dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    log = logging.getLogger("globular")
    log.addHandler(logging.StreamHandler(sys.stdout))
    log.setLevel(logging.INFO)
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    model = KMeans(n_clusters, random_state=0, device="cuda").fit(X)
    seconds, peak = time.perf_counter() - begun, torch.cuda.max_memory_allocated() - before
    stages = {stage: round(taken, 2) for stage, taken in model.history_.stage_seconds.items()}
    print(
        f"fit {seconds:.1f} s, {model.n_iter_} iterations, stages {stages}, error {model.inertia_ / n:.4f}, recall "
        f"{model.label_recall_:.3f}, peak of the card {peak / 2**30:.1f} GiB, X included as far as it stays",
        flush=True,
    )
    log.setLevel(logging.WARNING)
    part = KMeans(n_clusters, random_state=0, device="cuda").fit(rows[: n // 10])
    errors, data = [], model._open(X, None, reset=False)
    for fitted in (model, part):
        centers = np.asarray(fitted.cluster_centers_, dtype=np.float64)
        find_labels(data.shard, centers, np.random.default_rng(0))
        cells, passes = draw_cells(data.shard, centers, np.random.default_rng(1)), []
        for _ in range(2):
            begun = time.perf_counter()
            found = data.shard.run(Assign(centers, Probe(cells, 4)))
            torch.cuda.synchronize()
            passes.append(time.perf_counter() - begun)
        errors.append(found.objective / n)
    print(
        f"a probing pass {min(passes):.2f} s: {gib * 2**30 / min(passes) / 1e9:.1f} GB/s; errors over all rows: "
        f"fit to all {errors[0]:.4f}, to a tenth {errors[1]:.4f} ({errors[1] / errors[0] - 1:+.2%})",
        flush=True,
    )
    del held


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
    shard = on_card(rows)
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
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int)
    parser.add_argument("--clusters", type=int, nargs="+")
    parser.add_argument("--only", choices=["iterations", "fit", "streamed", *DEFAULTS])
    parser.add_argument("--file", help="where --only file writes its rows, .npy or .parquet; else they are in memory")
    parser.add_argument("--room", type=float, help="GiB of the card that --only file leaves free")
    parser.add_argument("--quality", nargs="+", default=["balanced", "best"])
    parser.add_argument("--data", help="an .npz with the rows X")
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    options = parser.parse_args()
    n, n_columns, clusters = DEFAULTS.get(options.only, (1_000_000, 128, [1_000, 10_000, 100_000]))
    n, n_columns, clusters = options.rows or n, options.columns or n_columns, options.clusters or clusters
    if options.data:
        for n_clusters in clusters:
            compare_errors(options.data, n_clusters, options.devices)
        return
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA card")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    if options.only in ("file", "workers"):
        for n_clusters in clusters:
            if options.only == "file":
                time_file(n, n_columns, n_clusters, options.file, options.room)
            else:
                time_workers(n, n_columns, n_clusters)
        return
    rows = make_rows(n, n_columns)
    for n_clusters in clusters:
        if options.only == "parts":
            time_parts(rows, n_clusters)
            continue
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
