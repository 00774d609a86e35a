"""Fig. 1: how much better optimal shared responsibilities are than the posterior of the cell's mean.

    python -m experiments.verbeek2003.figure1 [--quick] [--runs N] [-o DIR]

The sum of Kullback-Leibler divergences from the rows' posteriors differs between the two rules by the difference of
their bounds, as Eq. 4 says, so the figure is made of bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.common import Band, markdown_table, parser, provenance, save_figure, update_report, write_results
from experiments.verbeek2003 import HEADING, REPORT
from experiments.verbeek2003.fits import Problem, Rows, draw, kmeans_start
from globular.backends.cpu import CpuShard
from globular.model.covariances import OUTER
from globular.seam.tree_passes import ExpectCells, Plant

NEVER_WORSE = Band(low=0.0)
PAPER = Problem(N=5000, d=10, k=20, c=2.0, n_test=1)


@dataclass(frozen=True, slots=True)
class Config:
    """What to draw: the paper's data, and the tree one level after the other."""

    problem: Problem = PAPER
    depths: tuple[int, ...] = tuple(range(13))
    n_runs: int = 20


FULL = Config()
QUICK = Config(Problem(N=1000, d=5, k=8, c=2.0, n_test=1), tuple(range(9)), 3)


def measure(config: Config) -> Rows:
    """Difference of the bounds, optimal minus centroid, (runs, depths)."""
    found = np.empty((config.n_runs, len(config.depths)))
    for run in range(config.n_runs):
        rows = draw(config.problem, run).rows
        mixture = kmeans_start(rows, config.problem.k, run)
        shard = CpuShard(rows)
        for place, depth in enumerate(config.depths):
            shard.run(Plant(OUTER, 1, depth=depth))
            optimal = shard.run(ExpectCells(mixture, rule="optimal")).log_likelihood
            found[run, place] = optimal - shard.run(ExpectCells(mixture, rule="centroid")).log_likelihood
    return found


def draw_picture(config: Config, found: Rows, path: Path) -> None:
    """The mean over the data sets, and all of them behind it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(config.depths, found.T, color="0.8", linewidth=0.8)
    axes.plot(config.depths, found.mean(axis=0), color="C0", marker="o", markersize=4)
    axes.set(xlabel="depth of the partition", ylabel="difference in summed KL divergence", yscale="symlog")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def section(config: Config, found: Rows, picture: str) -> str:
    """Means and extremes in a table below the picture."""
    problem, smallest = config.problem, float(found.min())
    # what is left where cells are single rows is rounding
    slack = 1e-9 * problem.N
    rows = [
        [str(depth), f"{2**depth}", f"{values.mean():,.2f}", f"{values.min():,.2f}", f"{values.max():,.2f}"]
        for depth, values in zip(config.depths, found.T, strict=True)
    ]
    return "\n\n".join(
        [
            "## Fig. 1: optimal against centroid responsibilities",
            f"{config.n_runs} data sets of {problem.N:,} rows from {problem.k} components in {problem.d} dimensions, "
            f"separation {problem.c:g}; a mixture from k-means; the difference in Kullback-Leibler divergence, summed "
            "over the rows, when the tree is opened one level after the other. The paper: the optimal rule is better "
            "throughout, most of all for coarse partitions; its figure has no numbers to compare with. Never worse "
            f"here: {NEVER_WORSE.verdict(smallest + slack)} (smallest difference {smallest:.2g}).",
            f"![difference in KL divergence]({picture})",
            markdown_table(("depth", "cells, at most", "mean", "smallest", "largest"), rows).rstrip(),
            f"*{provenance()}*",
        ]
    )


def report(config: Config, folder: Path, *, quick: bool = False) -> Rows:
    """Run the figure and write its section and its picture."""
    name = "figure1-quick" if quick else "figure1"
    found = measure(config)
    write_results(folder / f"{name}.json", {"depths": list(config.depths), "differences": found.tolist()})
    draw_picture(config, found, folder / f"{name}.png")
    update_report(folder / "report.md", HEADING, name, section(config, found, f"{name}.png"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    chosen = parser("Fig. 1 of Verbeek et al. 2003", REPORT).parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    report(replace(config, n_runs=chosen.runs or config.n_runs), chosen.output, quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
