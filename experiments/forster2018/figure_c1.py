"""Fig. C.1: free energy, log-likelihood and quantization error by iteration, on BIRCH 5 × 5 and KDD.

    python -m experiments.forster2018.figure_c1 [--quick] [--only birch|kdd] [--runs N] [-o DIR]

For k-means, too, there is a free energy: that of a mixture whose responsibilities are hard, with σ² = φ / (N·D).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.common import Rows, markdown_table, parser, percent, provenance, real_rows, save_figure, update_report
from experiments.forster2018 import HEADING, REPORT, figure2
from experiments.forster2018.fits import Variant
from experiments.forster2018.traces import Trace, draw_bounds, draw_errors, final_errors, label, plain_ticks, traces
from globular import datasets
from globular.errors import DataError


@dataclass(frozen=True, slots=True)
class Config:
    """One data set of the figure."""

    name: str
    title: str
    load: Callable[[], Rows]
    n_clusters: int
    sizes: tuple[int, ...]
    n_iter: int
    n_runs: int
    every: int = 1
    """Measure errors and likelihoods every so many iterations: each costs N·C distances."""

    def variants(self, algorithm: tuple[str, str]) -> list[Variant]:
        """One algorithm for all G, as in Fig. 2."""
        return figure2.Config(sizes=self.sizes, n_iter=self.n_iter).variants(algorithm)


def _birch() -> Rows:
    return np.asarray(datasets.birch_grid(5, 100, random_state=0).X, np.float32)


BIRCH = Config("birch", "BIRCH 5 × 5", _birch, 25, (2, 3, 5, 10, 25), 40, 100)
KDD = Config("kdd", "KDD-Cup 2004", lambda: real_rows("kddbio/kddbio.npz"), 200, (2, 5, 20, 200), 60, 10, every=4)
FULL = (BIRCH, KDD)
QUICK = (replace(BIRCH, n_iter=15, n_runs=3),)


def measure(config: Config) -> dict[str, list[Trace]]:
    """All runs of all algorithms on one data set."""
    X = config.load()
    variants = [variant for algorithm in figure2.ALGORITHMS for variant in config.variants(algorithm)]
    return traces(X, config.n_clusters, variants, config.n_runs, likelihood=True, every=config.every)


def draw(config: Config, found: Mapping[str, Sequence[Trace]], path: Path) -> None:
    """Bounds above, errors below; a column per algorithm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.4), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey="row")
    for column, algorithm in enumerate(figure2.ALGORITHMS):
        variants = config.variants(algorithm)
        draw_bounds(panels[0, column], variants, found)
        draw_errors(panels[1, column], variants, found)
        panels[0, column].set_title(variants[0].algorithm)
    # the first steps from random sets lie far below all the rest
    ends = [run.free_energies[np.isfinite(run.free_energies)][-1] for runs in found.values() for run in runs]
    top, bottom = max(ends), np.percentile(ends, 10)
    panels[0, 0].set_ylim(bottom - 2 * (top - bottom) - 0.5, top + 0.2 * (top - bottom) + 0.1)
    panels[1, 0].set_yscale("log")
    panels[0, 0].set_ylabel("log-likelihood —, free energy - -")
    panels[1, 0].set_ylabel("quantization error per row")
    plain_ticks(panels[1, 0].yaxis)
    panels[1, 0].legend(fontsize="small")
    save_figure(figure, path)


def gap(runs: Sequence[Trace]) -> float:
    """Mean of log-likelihood minus free energy at the last iteration where both are known, per row."""
    known = [np.flatnonzero(np.isfinite(run.log_likelihoods) & np.isfinite(run.free_energies))[-1] for run in runs]
    return float(np.mean([run.log_likelihoods[t] - run.free_energies[t] for run, t in zip(runs, known, strict=True)]))


def section(config: Config, found: Mapping[str, Sequence[Trace]], picture: str) -> str:
    """The gap of the bound and the final error of every curve."""
    rows = []
    for algorithm in figure2.ALGORITHMS:
        variants = config.variants(algorithm)
        exact = final_errors(found[label(variants[-1])]).mean()
        for variant in variants:
            runs = found[label(variant)]
            final = final_errors(runs).mean()
            rows.append(
                [
                    variant.algorithm,
                    variant.size,
                    f"{gap(runs):.4f}",
                    f"{final:.6g}",
                    percent(100 * (final / exact - 1)),
                ]
            )
    head = ("algorithm", "G", "log-likelihood − free energy", "mean final error", "against exact")
    return "\n\n".join(
        [
            f"## Fig. C.1: {config.title}",
            f"Per row, means over {config.n_runs} runs. Both bounds belong to the same parameters, so the free energy "
            "never exceeds the log-likelihood. The paper: the bound is almost tight for small G already, and the best "
            "runs match the best of the exact algorithms (the largest G).",
            f"![bounds and error by iteration]({picture})",
            markdown_table(head, rows).rstrip(),
            f"*{provenance()}*",
        ]
    )


def report(configs: Sequence[Config], folder: Path, *, quick: bool = False) -> dict[str, dict[str, list[Trace]]]:
    """Run the figure's data sets one by one; each has its own section and picture."""
    everything = {}
    for config in configs:
        name = f"figure-c1-{config.name}" + ("-quick" if quick else "")
        try:
            found = measure(config)
        except DataError as error:
            print(f"{config.name}: {error}", flush=True)
            continue
        draw(config, found, folder / f"{name}.png")
        update_report(folder / "report.md", HEADING, name, section(config, found, f"{name}.png"))
        everything[config.name] = found
    return everything


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = parser("Fig. C.1 of Forster & Lücke 2018", REPORT)
    options.add_argument("--only", choices=[config.name for config in FULL], help="one of the data sets")
    chosen = options.parse_args(arguments)
    configs = [one for one in (QUICK if chosen.quick else FULL) if chosen.only in (None, one.name)]
    configs = [replace(one, n_runs=chosen.runs or one.n_runs) for one in configs]
    report(configs, chosen.output, quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
