"""Fig. 3: how much the doubling threshold ρ matters, with bounds and without, and where all centres are asked together.

    python -m experiments.newling2016.figure3 [--quick] [--problems NAME …] [--runs N] [--rows N] [--seconds S] [-o DIR]

Energy above the lowest at two times, an early and a late one (the paper's are 2 s and 10 s; `--seconds` is the late
one, a fifth of it the early one).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import markdown_table, provenance, read_results, save_figure, update_report, write_results
from experiments.newling2016 import HEADING, REPORT
from experiments.newling2016.curves import Curve, Setup, best_energy, from_json, to_json, trace, warm_up
from experiments.newling2016.drawing import chosen_problems, chosen_setup, curve_parser
from experiments.newling2016.problems import PROBLEMS

COLORS = {"nmbatch": "tab:blue", "nmbatch.deact": "tab:cyan", "nmbatch.mean": "tab:red"}
THRESHOLDS = (0.1, 1.0, 5.0, 10.0, 100.0, 1000.0)
"""The paper's, and 5."""
FULL = Setup(seconds=10.0)
QUICK = Setup(k=20, b0=300, seconds=0.5)
EARLY = 0.2
"""The early time as a share of the late one."""


def label(algorithm: str, rho: float) -> str:
    """The name under which a setting is kept."""
    return f"{algorithm} ρ={rho:g}"


def measure(name: str, setup: Setup, n_runs: int, n_rows: int | None) -> dict[str, list[Curve]]:
    """All thresholds on one data set."""
    split = PROBLEMS[name].load(n_rows)
    warm_up(split, setup, tuple(COLORS))
    return {
        label(algorithm, rho): [trace(split, setup, algorithm, seed, rho) for seed in range(n_runs)]
        for algorithm in COLORS
        for rho in THRESHOLDS
    }


def excesses(curves: Mapping[str, Sequence[Curve]], algorithm: str, seconds: float) -> list[float]:
    """Mean energy above the lowest of all runs in percent, for every ρ, at one time; NaN where none was measured."""
    lowest = best_energy(curves)
    times = np.array([seconds])
    found = [[curve.at(times)[0] for curve in curves.get(label(algorithm, rho), [])] for rho in THRESHOLDS]
    return [100.0 * (float(np.mean(runs)) / lowest - 1.0) if runs else float("nan") for runs in found]


def draw(kept: Mapping[str, Any], path: Path) -> None:
    """One panel per data set, early dotted and late solid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(kept), 3.9), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(kept)))
    for panel, (name, entry) in zip(panels, kept.items(), strict=True):
        curves, late = from_json(entry["curves"]), entry["seconds"]
        for algorithm, color in COLORS.items():
            for seconds, style in ((EARLY * late, ":"), (late, "-")):
                values = excesses(curves, algorithm, seconds)
                panel.plot(
                    THRESHOLDS, values, style, color=color, marker="o", ms=4, label=f"{algorithm}, {seconds:g} s"
                )
        panel.set(xscale="log", yscale="log", xlabel="ρ")
        panel.set_title(PROBLEMS[name].title, fontsize="medium")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    panels[0].set_ylabel("validation energy above the lowest, %")
    save_figure(figure, path)


def section(kept: Mapping[str, Any], picture: str) -> str:
    """The picture and its numbers."""
    rows = []
    for name, entry in kept.items():
        curves, late = from_json(entry["curves"]), entry["seconds"]
        for algorithm in COLORS:
            for seconds in (EARLY * late, late):
                shown = ["–" if np.isnan(value) else f"{value:.2f} %" for value in excesses(curves, algorithm, seconds)]
                rows.append([f"{name}: {algorithm}, {seconds:g} s", *shown])
    entry = next(iter(kept.values()))
    return "\n\n".join(
        [
            "## Fig. 3: the doubling threshold",
            "Mean validation energy above the lowest of all runs. The paper: with bounds large ρ work well and 10, 100 "
            "and 1,000 differ little; without bounds ρ = 10 is better in general than larger ones. nmbatch.mean "
            "compares all centres together with ρ instead of each.",
            f"![excess energy against ρ]({picture})",
            markdown_table(("", *(f"ρ = {rho:g}" for rho in THRESHOLDS)), rows).rstrip(),
            f"{entry['runs']} runs, k = {entry['k']}, b₀ = {entry['b0']:,}.",
            f"*{entry['provenance']}*",
        ]
    )


def write_report(kept: Mapping[str, Any], folder: Path, name: str) -> None:
    """The picture, and the section of the report about it."""
    draw(kept, folder / f"{name}.png")
    update_report(folder / "report.md", HEADING, name, section(kept, f"{name}.png"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    chosen = curve_parser("Fig. 3 of Newling & Fleuret 2016", REPORT).parse_args(arguments)
    setup = chosen_setup(chosen, QUICK, FULL)
    n_runs = chosen.runs or (2 if chosen.quick else 20)
    name = "figure3-quick" if chosen.quick else "figure3"
    folder: Path = chosen.output
    kept = read_results(folder / f"{name}.json")
    for problem in chosen_problems(chosen):
        kept[problem] = {
            "curves": to_json(measure(problem, setup, n_runs, chosen.rows)), "runs": n_runs, "k": setup.k,
            "b0": setup.b0, "seconds": setup.seconds, "provenance": provenance(),
        }  # fmt: skip
        write_results(folder / f"{name}.json", kept)
    if not chosen.keep_only:
        write_report(kept, folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
