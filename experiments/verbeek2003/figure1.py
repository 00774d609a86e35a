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

from experiments.common import (
    Band,
    markdown_table,
    parser,
    provenance,
    read_results,
    save_figure,
    update_report,
    write_results,
)
from experiments.verbeek2003 import HEADING, REPORT
from experiments.verbeek2003.fits import Problem, Rows, draw, kmeans_start
from experiments.verdicts import Setup, claims_table, in_band, said, tally
from globular.model.covariances import OUTER
from globular.passes.cpu import CpuShard
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


def section(config: Config, found: Rows, picture: str, when: str) -> str:
    """Means and extremes in a table below the picture."""
    problem, smallest = config.problem, float(found.min())
    # what is left where cells are single rows is rounding
    slack = 1e-9 * problem.N
    rows = [
        [str(depth), f"{2**depth}", f"{values.mean():,.2f}", f"{values.min():,.2f}", f"{values.max():,.2f}"]
        for depth, values in zip(config.depths, found.T, strict=True)
    ]
    means = found.mean(axis=0)
    asked = [
        in_band("the optimal rule is better throughout: smallest difference", "in words", smallest + slack, NEVER_WORSE,
                "{:.2g}"),
        said("most of all for coarse partitions", f"largest at depth {config.depths[int(means.argmax())]}",
             bool(means.argmax() <= len(means) // 3)),
    ]  # fmt: skip
    setup = Setup(
        command="verbeek2003.figure1",
        data=f"{problem.N:,} rows from {problem.k} components in {problem.d} dimensions, separation {problem.c:g}",
        start="a mixture from k-means on all rows", stopping="no EM step: responsibilities of that mixture",
        splits="the tree one level after the other, down to single rows",
        runs=f"{config.n_runs} data sets (the paper: 20)", ending="cells",
        deviations="the tree's principal components are from 256 rows at most",
    )  # fmt: skip
    return "\n\n".join(
        [
            "## Fig. 1: optimal against centroid responsibilities",
            "The difference in Kullback-Leibler divergence, summed over the rows; the paper's figure has no numbers.",
            setup.text([when]),
            f"![difference in KL divergence]({picture})",
            markdown_table(("depth", "cells, at most", "mean", "smallest", "largest"), rows).rstrip(),
            claims_table(asked),
            tally(asked),
        ]
    )


def report(config: Config, folder: Path, *, quick: bool = False, report_only: bool = False) -> Rows:
    """Run the figure and write its section and its picture."""
    name = "figure1-quick" if quick else "figure1"
    kept = read_results(folder / f"{name}.json")
    if not report_only:
        found = measure(config)
        kept = {"depths": list(config.depths), "differences": found.tolist(), "when": provenance()}
        write_results(folder / f"{name}.json", kept)
    found = np.array(kept["differences"])
    config = replace(config, depths=tuple(kept["depths"]), n_runs=len(found))
    draw_picture(config, found, folder / f"{name}.png")
    text = section(config, found, f"{name}.png", kept.get("when", "unknown"))
    update_report(folder / "report.md", HEADING, name, text)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = parser("Fig. 1 of Verbeek et al. 2003", REPORT)
    options.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
    chosen = options.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    config = replace(config, n_runs=chosen.runs or config.n_runs)
    report(config, chosen.output, quick=chosen.quick, report_only=chosen.report_only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
