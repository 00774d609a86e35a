"""Fig. 2: speed-up and free-energy ratio of Fast-VIM against VIM, for N, D and separation, one varied at a time.

    python -m experiments.kurihara2006.figure2 [--quick] [--runs N] [--only N D c] [--with cells defaults]
                                               [--report-only] [-o DIR]

Twice: Fast-VIM on cells alone ("cells", as in the paper), and as it runs by itself, which goes over to rows where cells
would cost as much ("defaults"). VIM is the same in both and is run once.

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
    quick_folder,
    read_results,
    save_figure,
    update_report,
    write_results,
)
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import CELLS, SETUP, TOL, Problem, algorithms, energy_ratio, priors, run, warm_up
from experiments.verdicts import Claim, claims_table, in_band, near, tally

LINEAR = Band(low=1.0)
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


WAYS = {"cells": (CELLS, "figure2-cells.json"), "defaults": ("Fast-VIM", "figure2.json")}
"""The fast algorithm, and where its fits are kept with those of VIM."""
REASONS = {
    "cells": "what is left of Fast-VIM's time, splits and matrices of some 200 cells, does not depend on N",
    "defaults": "another start with more components, which VIM does without, takes four fifths of the time at 100,000",
}
"""Why the speed-up is what it is."""
Runs = Sequence[Mapping[str, Mapping[str, Any]]]


def measure(
    config: Config,
    way: str,
    names: Sequence[str],
    found: dict[str, Any],
    keep: Callable[[], None],
    other: Mapping[str, Any],
) -> None:
    """All fits that are not there yet; VIM from the other way if it is there."""
    both = algorithms(config.T, 1)
    for seed in range(config.n_runs):
        for name in names:
            for value in config.sweeps[name]:
                runs = found.setdefault(name, {}).setdefault(f"{value:g}", [])
                if len(runs) > seed:
                    continue
                rows = at(config.problem, name, value).draw(seed)
                shared = priors(rows)
                beside = other.get(name, {}).get(f"{value:g}", [])[seed : seed + 1]
                entry = {"VIM": beside[0]["VIM"]} if beside else {}
                for algorithm in {"VIM", WAYS[way][0]} - set(entry):
                    entry[algorithm] = run(rows, both[algorithm] | shared, seed)[1].as_dict()
                runs.append(entry)
                found["when"] = sorted({*found.get("when", []), provenance()})
                keep()


def fast_of(runs: Runs) -> str:
    """Which fast algorithm these fits are of."""
    return next(name for name in runs[0] if name != "VIM")


def speedup(runs: Runs, *, planted: bool = True) -> float:
    """Median over the runs; `planted` begins to count when the tree is there, in both after the first cycle."""
    fast = fast_of(runs)

    def seconds(fit: Mapping[str, Any]) -> float:
        return float(fit["seconds"] - (fit["start_seconds"] if planted else 0.0))

    return float(np.median([seconds(entry["VIM"]) / seconds(entry[fast]) for entry in runs]))


def ratio(runs: Runs) -> float:
    """Mean free-energy ratio of the fast algorithm against VIM."""
    fast = fast_of(runs)
    return float(np.mean([energy_ratio(e[fast]["free_energy"], e["VIM"]["free_energy"]) for e in runs]))


def growth(sweep: Mapping[str, Any], of: str = "") -> float:
    """Slope of log speed-up, or of log seconds of one algorithm, against log N, from 10,000 rows on if there are."""
    sizes = np.array([float(value) for value in sweep])

    def seconds(runs: Runs) -> float:
        return float(np.median([entry[of]["seconds"] - entry[of]["start_seconds"] for entry in runs]))

    values = np.array([seconds(runs) if of else speedup(runs) for runs in sweep.values()])
    large = sizes >= min(10_000, np.sort(sizes)[-2])
    return float(np.polyfit(np.log(sizes[large]), np.log(values[large]), 1)[0])


def section(config: Config, found: Mapping[str, dict[str, Any]]) -> str:
    """A table for each sweep, with what the paper says."""
    base = config.problem
    setup = replace(
        SETUP, command="kurihara2006.figure2",
        data=f"{base.k} Gaussians; N = {base.N:,}, D = {base.D} and c = {base.c:g} unless varied",
        stopping=f"cycles end when F falls by less than {TOL:g} per row; at most {config.T} components",
        runs="data sets by the tables. Seconds are processor time until the last cycle, labels not counted",
    )  # fmt: skip
    parts = [
        "## Fig. 2: Fast-VIM against VIM",
        "VIM tries splits on all rows of a component, as in the paper. Medians of times and speed-ups, means of "
        "free-energy ratios 1 + (F − F′)/|F′|. The paper's input is *already stored in a kd-tree*: so is the first "
        "speed-up, counted for both from the end of the first cycle on. The second counts everything from the rows on; "
        "since the tree takes O(N log N) and VIM O(N), that one levels off as N grows.",
        setup.text(when for way in found.values() for when in way.get("when", [])),
    ]
    titles = {
        "cells": "As printed: Fast-VIM on cells alone.",
        "defaults": "By our defaults: rows take over where they are few or components overlap; the ratio is 1 then.",
    }
    for way, title in titles.items():
        sweeps = {name: found[way][name] for name in LABELS if name in found[way]}
        parts += [title, *(_table(name, sweep) for name, sweep in sweeps.items())]
        missing = [LABELS[name] for name in config.sweeps if name not in sweeps]
        parts += [f"Not run: {', '.join(missing)}."] if missing else []
    asked = claims(found)
    return "\n\n".join([*parts, "![Fig. 2](figure2.png)", claims_table(asked), tally(asked)])


def _value(value: str) -> str:
    """As a table has it: rows in full."""
    return f"{int(float(value)):,}" if float(value) >= 1000 else f"{float(value):g}"


def _table(name: str, sweep: Mapping[str, Any]) -> str:
    head = (
        LABELS[name], "VIM", "Fast-VIM", "of which tree", "speed-up given the tree", "with the tree",
        "free-energy ratio", "components (VIM, Fast-VIM)", "at the end", "data sets",
    )  # fmt: skip
    rows = []
    for value, runs in sweep.items():
        both = ("VIM", fast_of(runs))
        seconds = [f"{np.median([e[n]['seconds'] for e in runs]):.2f} s" for n in both]
        sizes = [f"{np.median([e[n]['n_components'] for e in runs]):g}" for n in both]
        tree = f"{np.median([e[both[1]]['start_seconds'] for e in runs]):.2f} s"
        gains = [f"{speedup(runs, planted=planted):.1f} ×" for planted in (True, False)]
        ending = runs[-1][both[1]].get("ending", "not kept")
        excess = f"{ratio(runs):.4f}"
        rows.append([_value(value), *seconds, tree, *gains, excess, ", ".join(sizes), ending, str(len(runs))])
    return markdown_table(head, rows).rstrip()


def claims(found: Mapping[str, dict[str, Any]]) -> list[Claim]:
    """What the text says of the figure."""
    asked = []
    for way, (fast, _) in WAYS.items():
        sweeps = found[way]
        slope = growth(sweeps["N"]) if len(sweeps.get("N", {})) > 1 else None
        million = sweeps.get("N", {}).get("1e+06")
        times = [f"{name}'s like N^{growth(sweeps['N'], name):.2f}" for name in ("VIM", fast)] if slope else []
        remark = f"given the tree seconds grow: {', '.join(times)}" if times else ""
        asked.append(
            in_band(f"{fast}: speed-up at least linear in N, exponent", "1 or more", slope, LINEAR, "{:.2f}", remark)
        )
        gained = speedup(million) if million else None
        asked.append(near(f"{fast}: speed-up at N = 1,000,000", 154, gained, "{:.0f} ×", 15, "± 10 %; " + REASONS[way]))
        columns = {float(D): speedup(runs) for D, runs in sweeps.get("D", {}).items()}
        best = f"D = {max(columns, key=lambda D: columns[D]):g}" if columns else ""
        gains = ", ".join(f"{gain:.1f} × at {D:g}" for D, gain in columns.items())
        asked.append(Claim(f"{fast}: fastest at", "D = 64", best, "", best == "D = 64" if best else None, gains))
        every = [ratio(runs) for name in LABELS for runs in sweeps.get(name, {}).values()]
        asked.append(in_band(f"{fast}: largest free-energy ratio", "a little above 1", max(every, default=None), CLOSE,
                             "{:.4f}"))  # fmt: skip
    return asked


def draw(found: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Speed-ups above, free-energy ratios below."""
    from matplotlib.figure import Figure

    names = [name for name in LABELS if any(name in way for way in found.values())]
    figure = Figure(figsize=(3.4 * len(names), 5.3), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        above, below = axes[:, column]
        for way, color in (("cells", "tab:blue"), ("defaults", "tab:orange")):
            sweep = found[way].get(name, {})
            values = [float(value) for value in sweep]
            above.plot(values, [speedup(runs) for runs in sweep.values()], "o-", color=color, label=way)
            with_tree = [speedup(runs, planted=False) for runs in sweep.values()]
            above.plot(values, with_tree, "s:", color=color, label=f"{way}, with the tree")
            below.plot(values, [ratio(runs) for runs in sweep.values()], "o-", color=color)
        below.axhline(1.0, color="grey", linewidth=0.8)
        for axis in (above, below):
            axis.set_xlabel(LABELS[name])
            if name != "c":
                axis.set_xscale("log")
        above.set_yscale("log" if name == "N" else "linear")
        below.ticklabel_format(axis="y", useOffset=False)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    axes[0, 0].set_ylabel("speed-up over VIM")
    axes[1, 0].set_ylabel("free-energy ratio")
    save_figure(figure, path)


def report(
    config: Config, folder: Path, names: Sequence[str] = (), ways: Sequence[str] = tuple(WAYS)
) -> dict[str, dict[str, Any]]:
    """Measure what is missing, and write the section."""
    found = {way: read_results(folder / file) for way, (_, file) in WAYS.items()}
    if ways:
        warm_up()
    for way in ways:
        file = folder / WAYS[way][1]
        chosen = names or list(config.sweeps)
        other = found[next(name for name in WAYS if name != way)]
        measure(config, way, chosen, found[way], lambda way=way, file=file: write_results(file, found[way]), other)
    draw(found, folder / "figure2.png")
    update_report(folder / "report.md", HEADING, "figure 2", section(config, found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("Fast-VIM against VIM", REPORT)
    made.add_argument("--only", nargs="+", choices=list(LABELS), default=[], help="some of the sweeps")
    made.add_argument(
        "--with", nargs="+", choices=list(WAYS), default=list(WAYS), dest="ways", help="one of the two ways"
    )
    made.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
    chosen = made.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    names = [name for name in chosen.only or config.sweeps if name in config.sweeps]
    config = replace(config, n_runs=chosen.runs or config.n_runs)
    report(config, quick_folder(chosen), names, [] if chosen.report_only else chosen.ways)
    return 0


if __name__ == "__main__":
    sys.exit(main())
