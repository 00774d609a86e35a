"""Figs. 3, 4 and 5: how much the doubling threshold ρ matters, with bounds, without, and asking all centres together.

    python -m experiments.newling2016.figure3 [--quick] [--problems NAME …] [--runs N] [--rows N] [--seconds S]
                                            [--jobs N] [--keep-only] [--report-only] [-o DIR]

Figs. 4 and 5 are the curves of the same runs, with bounds and without. Energy above the lowest at two times, an early
and a late one (the paper's are 2 s and 10 s; `--seconds` is the late one, a fifth of it the early one).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import markdown_table, provenance, read_results, save_figure, update_report, write_results
from experiments.newling2016 import HEADING, REPORT
from experiments.newling2016.cells import measure_curves
from experiments.newling2016.curves import SETUP, Curve, Setup, best_energy, from_json, to_json
from experiments.newling2016.drawing import chosen_problems, chosen_setup, curve_parser, draw_panels
from experiments.newling2016.problems import PAPERS, PROBLEMS
from experiments.verdicts import Claim, claims_table, said, tally

COLORS = {"nmbatch": "tab:blue", "nmbatch.deact": "tab:cyan", "nmbatch.mean": "tab:red"}
THRESHOLDS = (0.1, 1.0, 5.0, 10.0, 100.0, 1000.0)
"""The paper's, and 5."""
FULL = Setup(seconds=10.0)
QUICK = Setup(k=20, b0=300, seconds=0.5)
EARLY = 0.2
"""The early time as a share of the late one."""
SURE = 2.0
"""Standard errors beyond which a difference is told from none."""
LITTLE = 0.2
"""Percentage points that differ little."""
WAITING = (
    "b₀ / k = 100 rows in a cluster, of which a single one that moves shifts its centre by more than a hundredth of "
    "its standard error: a large ρ waits until none does (`docs/nested.md`)"
)
"""Why a smaller ρ does better on the stand-ins."""


def label(algorithm: str, rho: float) -> str:
    """The name under which a setting is kept."""
    return f"{algorithm} ρ={rho:g}"


def measure(name: str, setup: Setup, n_runs: int, n_rows: int | None, n_jobs: int) -> dict[str, list[Curve]]:
    """All thresholds on one data set."""
    settings = [(label(algorithm, rho), algorithm, rho) for algorithm in COLORS for rho in THRESHOLDS]
    return measure_curves(name, setup, settings, n_runs, n_rows, n_jobs)


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
    runs = "; ".join(
        f"`--problems {name} --runs {entry['runs']} --seconds {entry['seconds']:g}`" for name, entry in kept.items()
    )
    asked = [claim for name, entry in kept.items() for claim in claims(name, entry)]
    missing = [PROBLEMS[name].title for name in PAPERS if name not in kept]
    return "\n\n".join(
        [
            "## Figs. 3, 4 and 5: the doubling threshold",
            "Mean validation energy above the lowest of all runs. nmbatch.mean compares all centres together with ρ "
            "instead of each, which the paper has not.",
            replace(
                SETUP, command="newling2016.figure3", data="stand-ins; k = 50, b₀ = 5,000",
                runs=f"20 in the paper, at 2 s and 10 s; here {runs}",
            ).text(f"{entry['provenance']} ({name})" for name, entry in kept.items()),
            f"![excess energy against ρ]({picture})",
            markdown_table(("", *(f"ρ = {rho:g}" for rho in THRESHOLDS)), rows).rstrip(),
            "Fig. 4, the curves of nmbatch, and Fig. 5, those without bounds:",
            f"![curves with bounds]({picture.replace('figure3', 'figure4')})",
            f"![curves without bounds]({picture.replace('figure3', 'figure5')})",
            *([f"Not run, for their time: {', '.join(missing)}."] if missing else []),
            claims_table(asked),
            tally(asked),
        ]
    )  # fmt: skip


def ahead(curves: Mapping[str, Sequence[Curve]], first: str, second: str, seconds: float) -> float:
    """Energies of the second above those of the first at one time, the mean in its standard errors; 0 for one run."""
    times = np.array([seconds])
    pairs = zip(curves[first], curves[second], strict=True)
    gaps = np.array([float(two.at(times)[0] - one.at(times)[0]) for one, two in pairs])
    error = float(gaps.std(ddof=1)) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return float(gaps.mean()) / error if error else 0.0


def decided(z: float) -> bool | None:
    """Whether a mean difference is above zero; None within two standard errors."""
    return None if abs(z) <= SURE else z > 0


def claims(name: str, entry: Mapping[str, Any]) -> list[Claim]:
    """What the captions say, at the early and at the late time."""
    curves = from_json(entry["curves"])
    return [claim for share in (EARLY, 1.0) for claim in _claims_at(name, curves, share * entry["seconds"])]


def _claims_at(name: str, curves: Mapping[str, Sequence[Curve]], seconds: float) -> list[Claim]:
    with_bounds, without = (
        dict(zip(THRESHOLDS, excesses(curves, algorithm, seconds), strict=True))
        for algorithm in ("nmbatch", "nmbatch.deact")
    )

    def points(values: Mapping[float, float], *chosen: float) -> str:
        return ", ".join(f"ρ = {rho:g}: {values[rho]:.2f} %" for rho in chosen)

    title = f"{PROBLEMS[name].title}, {seconds:g} s"
    best = min((rho for rho in THRESHOLDS if rho < 100), key=lambda rho: with_bounds[rho])
    large = min((100.0, 1000.0), key=lambda rho: with_bounds[rho])
    z = ahead(curves, label("nmbatch", large), label("nmbatch", best), seconds)
    bare = [
        ahead(curves, label("nmbatch.deact", 10.0), label("nmbatch.deact", rho), seconds) for rho in (100.0, 1000.0)
    ]
    met = decided(z)
    return [
        said(f"{title}, Fig. 4: large ρ works best",
             f"{points(with_bounds, 100, 1000)}; best of the others: {points(with_bounds, best)}", met,
             "; ".join(filter(None, [f"{z:+.1f} standard errors", "" if met is not False else WAITING]))),
        replace(
            said(f"{title}, Fig. 4: ρ = 100 and 1,000 differ little", points(with_bounds, 100, 1000),
                 abs(with_bounds[100] - with_bounds[1000]) <= LITTLE),
            band=f"at most {LITTLE:g} points",
        ),
        said(f"{title}, Fig. 5: without bounds ρ = 10 is better than 100 and 1,000", points(without, 10, 100, 1000),
             decided(min(bare)) if min(bare) > 0 else decided(max(bare)) if max(bare) < 0 else None,
             f"{bare[0]:+.1f} and {bare[1]:+.1f} standard errors"),
    ]  # fmt: skip


def draw_curves_by_rho(kept: Mapping[str, Any], algorithm: str, path: Path) -> None:
    """Figs. 4 and 5: energy against seconds, one curve for each ρ, one panel per data set."""
    found = {
        name: {f"ρ = {rho:g}": curves[label(algorithm, rho)] for rho in THRESHOLDS if label(algorithm, rho) in curves}
        for name, curves in ((name, from_json(entry["curves"])) for name, entry in kept.items())
    }
    draw_panels(found, path)


def write_report(kept: Mapping[str, Any], folder: Path, name: str) -> None:
    """The picture, and the section of the report about it."""
    draw(kept, folder / f"{name}.png")
    draw_curves_by_rho(kept, "nmbatch", folder / f"{name.replace('figure3', 'figure4')}.png")
    draw_curves_by_rho(kept, "nmbatch.deact", folder / f"{name.replace('figure3', 'figure5')}.png")
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
            "curves": to_json(measure(problem, setup, n_runs, chosen.rows, chosen.jobs)), "runs": n_runs, "k": setup.k,
            "b0": setup.b0, "seconds": setup.seconds, "provenance": provenance(),
        }  # fmt: skip
        write_results(folder / f"{name}.json", kept)
    if not chosen.keep_only:
        write_report(kept, folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
