"""Fig. 2: speed-up and free-energy ratio of Fast-VIM against VIM, for N, D and separation, one varied at a time.

    python -m experiments.kurihara2006.figure2 [--quick] [--runs N] [--only N D c] [-o DIR]

Results are kept after every fit of VIM, the long ones; what is there already is not measured again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import Problem, algorithms, energy_ratio, priors, run, warm_up

LINEAR = Band(low=1.0)
AT_A_MILLION = Band(low=50.0)
CLOSE = Band(high=1.06)
LABELS = {"N": "rows N", "D": "columns D", "c": "separation c"}


@dataclass(frozen=True, slots=True)
class Config:
    """What is varied, about which problem."""

    problem: Problem = field(default_factory=Problem)
    sweeps: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "N": (1000, 10_000, 100_000, 1_000_000),
            "D": (4, 8, 16, 32, 64, 128),
            "c": (0.5, 1, 2, 3, 4),
        }
    )
    T: int = 100
    n_runs: int = 3


FULL = Config()
QUICK = Config(Problem(N=1500, D=4, k=4), {"N": (1000, 4000), "c": (1, 2)}, T=20, n_runs=1)


def at(problem: Problem, name: str, value: float) -> Problem:
    """The problem with one of its numbers changed."""
    return replace(problem, **{name: value if name == "c" else int(value)})


def measure(config: Config, names: Sequence[str], found: dict[str, Any], keep: Callable[[], None]) -> None:
    """All fits that are not there yet."""
    warm_up()
    both = algorithms(config.T, 1)
    for name in names:
        for value in config.sweeps[name]:
            runs = found.setdefault(name, {}).setdefault(f"{value:g}", [])
            for seed in range(len(runs), config.n_runs):
                rows = at(config.problem, name, value).draw(seed)
                shared = priors(rows)
                runs.append({n: run(rows, both[n] | shared, seed)[1].as_dict() for n in ("VIM", "Fast-VIM")})
                keep()


def speedup(runs: Sequence[Mapping[str, Mapping[str, float]]], *, planted: bool = True) -> float:
    """Median over the runs; `planted` begins to count when the tree is there, in both after the first cycle."""

    def seconds(fit: Mapping[str, float]) -> float:
        return fit["seconds"] - (fit["start_seconds"] if planted else 0.0)

    return float(np.median([seconds(entry["VIM"]) / seconds(entry["Fast-VIM"]) for entry in runs]))


def ratio(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> float:
    """Mean free-energy ratio of Fast-VIM against VIM."""
    return float(np.mean([energy_ratio(e["Fast-VIM"]["free_energy"], e["VIM"]["free_energy"]) for e in runs]))


def growth(sweep: Mapping[str, Any]) -> float:
    """Slope of log speed-up against log N over the largest sizes, from 10,000 rows on where there are such."""
    sizes = np.array([float(value) for value in sweep])
    gains = np.array([speedup(runs) for runs in sweep.values()])
    large = sizes >= min(10_000, np.sort(sizes)[-2])
    return float(np.polyfit(np.log(sizes[large]), np.log(gains[large]), 1)[0])


def section(config: Config, found: Mapping[str, Any]) -> str:
    """A table for each sweep, with what is asked for."""
    base = config.problem
    parts = [
        "## Fig. 2: Fast-VIM against VIM",
        f"{base.k} Gaussians; N = {base.N:,}, D = {base.D} and c = {base.c:g} unless varied; {config.n_runs} data sets "
        "each. VIM tries splits on all rows of a component, as in the paper. Medians of times and speed-ups, means of "
        "free-energy ratios 1 + (F − F′)/|F′|. The paper's input is *already stored in a kd-tree*: so is the first "
        "speed-up, counted for both from the end of the first cycle on. The second counts everything from the rows on; "
        "since the tree takes O(N log N) and VIM O(N), that one levels off as N grows.",
    ]
    for name, sweep in found.items():
        head = (
            LABELS[name], "VIM", "Fast-VIM", "of which tree", "speed-up given the tree", "with the tree",
            "free-energy ratio", "components (VIM, Fast-VIM)",
        )  # fmt: skip
        rows = []
        for value, runs in sweep.items():
            seconds = [f"{np.median([e[n]['seconds'] for e in runs]):.2f} s" for n in ("VIM", "Fast-VIM")]
            sizes = [f"{np.median([e[n]['n_components'] for e in runs]):g}" for n in ("VIM", "Fast-VIM")]
            tree = f"{np.median([e['Fast-VIM']['start_seconds'] for e in runs]):.2f} s"
            gains = [f"{speedup(runs, planted=planted):.1f} ×" for planted in (True, False)]
            rows.append([f"{float(value):,g}", *seconds, tree, *gains, f"{ratio(runs):.4f}", ", ".join(sizes)])
        parts.append(markdown_table(head, rows).rstrip())
    if "N" in found and len(found["N"]) > 1:
        slope = growth(found["N"])
        last, runs = list(found["N"].items())[-1]
        text = f"From the larger sizes on the speed-up grows as N to the power of {slope:.2f} "
        text += f"({LINEAR.text('{:g}')} asked for: {LINEAR.verdict(slope)})."
        if float(last) >= 1e6:
            gained = speedup(runs)
            text += f" At a million rows it is {gained:.0f} × ({AT_A_MILLION.text('{:g} ×')} asked for: "
            text += f"{AT_A_MILLION.verdict(gained)}; the paper: 154 ×), "
            text += f"with the tree {speedup(runs, planted=False):.0f} ×."
        parts.append(text)
    return "\n\n".join([*parts, "![Fig. 2](figure2.png)", f"*{provenance()}*"])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Speed-ups above, free-energy ratios below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(found), 5), layout="constrained")
    axes = figure.subplots(2, len(found), squeeze=False)
    for column, (name, sweep) in enumerate(found.items()):
        values = [float(value) for value in sweep]
        above, below = axes[:, column]
        above.plot(values, [speedup(runs) for runs in sweep.values()], "o-", label="given the tree")
        above.plot(values, [speedup(runs, planted=False) for runs in sweep.values()], "s:", label="with the tree")
        below.plot(values, [ratio(runs) for runs in sweep.values()], "o-", color="tab:red")
        below.axhline(1.0, color="grey", linewidth=0.8)
        for axis in (above, below):
            axis.set_xlabel(LABELS[name])
            if name != "c":
                axis.set_xscale("log")
        above.set_yscale("log" if name == "N" else "linear")
        below.ticklabel_format(axis="y", useOffset=False)
    axes[0, 0].legend()
    axes[0, 0].set_ylabel("speed-up over VIM")
    axes[1, 0].set_ylabel("free-energy ratio")
    save_figure(figure, path)


def report(config: Config, folder: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Measure what is missing, and write the section."""
    results = folder / "figure2.json"
    found = read_results(results)
    measure(config, names or list(config.sweeps), found, lambda: write_results(results, found))
    found = {name: found[name] for name in LABELS if name in found}
    draw(found, folder / "figure2.png")
    update_report(folder / "report.md", HEADING, "figure 2", section(config, found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("Fast-VIM against VIM", REPORT)
    made.add_argument("--only", nargs="+", choices=list(LABELS), default=[], help="some of the sweeps")
    chosen = made.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    names = [name for name in chosen.only or config.sweeps if name in config.sweeps]
    report(replace(config, n_runs=chosen.runs or config.n_runs), chosen.output, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
