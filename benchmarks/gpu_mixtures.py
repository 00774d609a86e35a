"""Mixtures on a card: exact EM beside scikit-learn's, and truncated EM of many components beside our own CPU.

    python benchmarks/gpu_mixtures.py                 both, iterations and fits
    python benchmarks/gpu_mixtures.py --only exact    exact EM, "full", 50 components, 1,000,000 × 32
    python benchmarks/gpu_mixtures.py --only truncated    "diag", 10,000 components, 1,000,000 × 64

Rows are float32, drawn from a mixture. Medians of five on the card; on the CPU, with all threads, the least of a few.
An iteration of scikit-learn's is timed on a fifth of the rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as TheirMixture

from globular import GaussianMixture, VariationalGaussianMixture
from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.passes.registry import shard_over
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect
from globular.threads import resolve_threads
from gpu import median_ms, on_card, times_ms


def make_rows(n: int, n_columns: int, n_groups: int) -> Any:
    """Rows about the means of many groups of uneven size and width, on the card."""
    random = torch.Generator(device="cuda").manual_seed(0)
    means = 2.0 * torch.randn(n_groups, n_columns, generator=random, device="cuda")
    widths = 0.3 + torch.rand(n_groups, n_columns, generator=random, device="cuda")
    group = (torch.rand(n, generator=random, device="cuda") ** 1.5 * n_groups).long()
    return means[group] + widths[group] * torch.randn(n, n_columns, generator=random, device="cuda")


def start(rows: Any, n_components: int, kind: str) -> GaussianParameters:
    """Components about some of the rows, as wide as the groups."""
    means = rows[: 7 * n_components : 7].double().cpu().numpy()
    D = means.shape[1]
    covariances = np.full((n_components, D), 0.7) if kind == "diag" else np.tile(0.7 * np.eye(D), (n_components, 1, 1))
    return GaussianParameters(np.full(n_components, 1 / n_components), means, covariances, kind)


def time_exact(n: int, n_columns: int, n_components: int) -> None:
    """Print an iteration of exact EM on the card, on our CPU and by scikit-learn, and how far likelihoods differ."""
    rows = make_rows(n, n_columns, n_components)
    host, mixture = rows.cpu().numpy(), start(rows, n_components, "full")
    limits = CovarianceLimits.for_data("auto", host.mean(axis=0), host.var(axis=0))
    shards = on_card(rows), shard_over(host, n_threads=resolve_threads(None))

    def iterate(shard: Any) -> float:
        found = shard.run(Expect(mixture))
        m_step(mixture, found, limits)
        return float(found.log_likelihood)

    likelihoods = [iterate(shard) for shard in shards]
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    card = median_ms(lambda: iterate(shards[0]))
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20
    print(f"exact full, {n:,} × {n_columns}, {n_components} components: card {card:.1f} ms", flush=True)
    cpu = min(times_ms(lambda: iterate(shards[1]), 2))
    precisions = np.linalg.inv(mixture.covariances)
    given = {"weights_init": mixture.weights, "means_init": mixture.means, "precisions_init": precisions}
    model = TheirMixture(n_components, init_params="random", max_iter=1, random_state=0, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        model.fit(host[: 100 * n_components])
    some, begun = host[: n // 5], time.perf_counter()
    model._m_step(some, model._e_step(some)[1])
    theirs = 5e3 * (time.perf_counter() - begun)
    print(
        f"  CPU {cpu:.0f} ms, scikit-learn {theirs:.0f} ms ({theirs / card:.0f}×), {peak:,.0f} MiB beside X, "
        f"log-likelihoods differ by {abs(likelihoods[0] / likelihoods[1] - 1):.1e}",
        flush=True,
    )
    for where, X in (("card", rows), ("card", rows), ("CPU", host)):
        begun = time.perf_counter()
        model = GaussianMixture(n_components, random_state=0).fit(X)
        stages = {record.stage: round(record.seconds, 2) for record in model.history_}
        print(
            f"  fit on the {where}: {time.perf_counter() - begun:.2f} s, {model.n_iter_} iterations over all rows, "
            f"log-likelihood {model.lower_bound_:.5f}, stages end {stages}",
            flush=True,
        )


def time_truncated(n: int, n_columns: int, n_components: int, *, cpu: bool) -> None:
    """Print iterations of truncated EM, with a search and without, and whole fits, on the card and our CPU."""
    rows = make_rows(n, n_columns, 2 * n_components)
    host, mixture = rows.cpu().numpy(), start(rows, n_components, "diag")
    limits = CovarianceLimits.for_data("auto", host.mean(axis=0), host.var(axis=0))
    shards = [("card", on_card(rows))]
    shards += [("CPU", shard_over(host, n_threads=resolve_threads(None)))] if cpu else []
    for where, shard in shards:
        rng, parameters = np.random.default_rng(0), [mixture]
        label_by_cells(shard, mixture.means, draw_cells(shard, mixture.means, rng))

        def iterate(search: bool, shard: Any = shard, rng: Any = rng, parameters: Any = parameters) -> None:
            means = parameters[0].means
            among = Probe(draw_cells(shard, means, rng), 2, 5) if search else Probe(None, 0, 5)
            parameters[0] = m_step(parameters[0], shard.run(Expect(parameters[0], among)), limits)

        iterate(True)
        searching, settled = (
            median_ms(partial(iterate, search)) if where == "card" else min(times_ms(partial(iterate, search), 2))
            for search in (True, False)
        )
        print(
            f"truncated diag, {n:,} × {n_columns}, {n_components:,} components, {where}: with a search {searching:.1f} "
            f"ms, without {settled:.1f} ms",
            flush=True,
        )
    for where, X in (("card", rows), ("card", rows), ("CPU", host))[: 3 if cpu else 2]:
        torch.cuda.reset_peak_memory_stats()
        held, begun = torch.cuda.memory_allocated(), time.perf_counter()
        model = VariationalGaussianMixture(n_components, random_state=0).fit(X)
        seconds = time.perf_counter() - begun
        peak = (torch.cuda.max_memory_allocated() - held) / 2**20
        stages = {record.stage: round(record.seconds, 2) for record in model.history_}
        print(
            f"  fit on the {where}: {seconds:.2f} s, {model.n_iter_} iterations, free energy {model.lower_bound_:.4f}, "
            f"stages end {stages}, {peak:,.0f} MiB of the card beside X",
            flush=True,
        )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["exact", "truncated"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--no-cpu", action="store_true", help="leave out truncated EM on the CPU")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA card")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    if options.only != "truncated":
        time_exact(options.rows, 32, 50)
    if options.only != "exact":
        time_truncated(options.rows, 64, 10_000, cpu=not options.no_cpu)


if __name__ == "__main__":
    main()
