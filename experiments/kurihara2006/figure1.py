"""Fig. 1: relative runtimes and free energies of Fast-VIM, VIM and BJ, N = 1,000 to 5,000 rows of 16 columns.

    python -m experiments.kurihara2006.figure1 [--quick] [--runs N] [-o DIR]

As in the paper BJ has T = 20 and 20 starts, VIM and Fast-VIM grow up to T = 20 by one split a round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import Band, markdown_table, parser, provenance, save_figure, update_report, write_results
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import Problem, algorithms, energy_ratio, priors, run, warm_up

FASTER = Band(low=10.0)
BETTER = Band(high=1.0)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of the figure."""

    problem: Problem = field(default_factory=Problem)
    sizes: tuple[int, ...] = (1000, 2000, 3000, 4000, 5000)
    T: int = 20
    n_trials: int = 20
    n_runs: int = 5


FULL = Config()
QUICK = Config(Problem(D=4, k=4), sizes=(300, 600), T=6, n_trials=3, n_runs=1)


def measure(config: Config) -> dict[str, list[dict[str, dict[str, float]]]]:
    """All fits: per size and run, figures by algorithm."""
    warm_up()
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for N in config.sizes:
        found[str(N)] = []
        for seed in range(config.n_runs):
            rows = replace(config.problem, N=N).draw(seed)
            shared = priors(rows)
            figures = {
                name: run(rows, parameters | shared, seed)[1].as_dict()
                for name, parameters in algorithms(config.T, config.n_trials).items()
            }
            found[str(N)].append(figures)
    return found


def speedups(runs: Sequence[dict[str, dict[str, float]]], slow: str, fast: str) -> float:
    """Median over the runs of how many times faster."""
    return float(np.median([entry[slow]["seconds"] / entry[fast]["seconds"] for entry in runs]))


def ratios(runs: Sequence[dict[str, dict[str, float]]], a: str, b: str) -> float:
    """Mean over the runs of the free-energy ratio."""
    return float(np.mean([energy_ratio(entry[a]["free_energy"], entry[b]["free_energy"]) for entry in runs]))


def section(config: Config, found: dict[str, Any]) -> str:
    """The figure as a table, with what is asked for."""
    rows = []
    for N, runs in found.items():
        rows.append(
            [
                f"{int(N):,}",
                f"{speedups(runs, 'BJ', 'Fast-VIM'):.1f} ×",
                f"{speedups(runs, 'VIM', 'Fast-VIM'):.1f} ×",
                f"{ratios(runs, 'Fast-VIM', 'BJ'):.4f}",
                f"{ratios(runs, 'VIM', 'BJ'):.4f}",
                f"{ratios(runs, 'Fast-VIM', 'VIM'):.4f}",
                ", ".join(
                    f"{np.median([entry[name]['n_components'] for entry in runs]):g}"
                    for name in ("Fast-VIM", "VIM", "BJ")
                ),
            ]
        )
    head = (
        "N", "faster than BJ", "faster than VIM", "F against BJ", "F of VIM against BJ", "F against VIM",
        "components (Fast-VIM, VIM, BJ)",
    )  # fmt: skip
    largest = found[str(max(config.sizes))]
    faster, better = speedups(largest, "BJ", "Fast-VIM"), ratios(largest, "Fast-VIM", "BJ")
    return "\n\n".join(
        [
            "## Fig. 1: Fast-VIM, VIM and BJ",
            f"{config.problem.k} Gaussians, D = {config.problem.D}, c = {config.problem.c:g}, {config.n_runs} data "
            f"sets a size. BJ: T = {config.T}, {config.n_trials} starts; the others grow up to T = {config.T}. "
            "Free-energy ratios as in the paper, 1 + (F − F′)/|F′|; below 1 is better.",
            markdown_table(head, rows).rstrip(),
            f"The paper at N = 5,000: about 23 × faster than BJ, 3 × faster than VIM, F always better than BJ. Asked "
            f"for here: {FASTER.text('{:g} ×')} ({FASTER.verdict(faster)}) and a ratio {BETTER.text('{:g}')} "
            f"({BETTER.verdict(better)}).",
            "![Fig. 1](figure1.png)",
            f"*{provenance()}*",
        ]
    )


def draw(config: Config, found: dict[str, Any], path: Path) -> None:
    """Speed-ups and free-energy ratios against N."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [int(N) for N in found]
    for slow, style in (("BJ", "o-"), ("VIM", "s--")):
        left.plot(sizes, [speedups(runs, slow, "Fast-VIM") for runs in found.values()], style, label=f"over {slow}")
    left.set(xlabel="N", ylabel="Fast-VIM is so many times faster", yscale="log")
    left.legend()
    for name, style in (("Fast-VIM", "o-"), ("VIM", "s--")):
        right.plot(sizes, [ratios(runs, name, "BJ") for runs in found.values()], style, label=f"{name} against BJ")
    right.axhline(1.0, color="grey", linewidth=0.8)
    right.set(xlabel="N", ylabel="free-energy ratio")
    right.ticklabel_format(useOffset=False)
    right.legend()
    save_figure(figure, path)


def report(config: Config, folder: Path) -> dict[str, Any]:
    """Measure, and write the section."""
    found = measure(config)
    write_results(folder / "figure1.json", found)
    draw(config, found, folder / "figure1.png")
    update_report(folder / "report.md", HEADING, "figure 1", section(config, found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    chosen = parser("Fast-VIM, VIM and BJ on small sets", REPORT).parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    report(replace(config, n_runs=chosen.runs or config.n_runs), chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
