"""Fig. 1: relative runtimes and free energies of Fast-VIM, VIM and BJ, N = 1,000 to 5,000 rows of 16 columns.

    python -m experiments.kurihara2006.figure1 [--quick] [--runs N] [--only forced free] [--jobs N] [--keep-only]
                                            [--report-only] [-o DIR]

Twice: as in the paper, where BJ, VIM and Fast-VIM all end with T = 20 ("forced"), and with VIM and Fast-VIM as they
stop by themselves, which is at the ten true components ("free"). BJ is the same in both and is run once. Fits are kept;
more runs are added to those there are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Cell, add_options, measured
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
from experiments.kurihara2006.fits import (
    BY_ROW,
    CELLS,
    SETUP,
    TOL,
    Problem,
    algorithms,
    energy_ratio,
    priors,
    run,
    to_T,
    warm_up,
)
from experiments.verdicts import Claim, claims_table, in_band, near, tally

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


BJ_START = (
    "BJ in these tables starts from random rows for means. Blei and Jordan's own start, in which rows come one by one "
    "in random order and responsibilities follow from the posteriors of the rows before (`one_by_one.py`), ends in one "
    "or two components with the prior that all algorithms share here. That the mean of an empty component is so "
    "uncertain, which costs D/2β₀ nats, is a part of it only: with β₀ = 1 in place of 0.01 it ends in four, with 10 in "
    "three (one data set of 1,000 rows, 5 starts). Random rows do BJ the better turn. 20 starts each:"
)
FORCED = "splits beyond the ten true components raise F; BJ leaves its spare ones empty"
OTHER_START = "Fast-VIM also tries another start with more components, which VIM does without, and ends on rows too"
WAYS = {"forced": "figure1-forced.json", "free": "figure1.json"}


def measure(
    config: Config, ways: Sequence[str], found: Mapping[str, dict[str, Any]], keep: Callable[[], None], n_jobs: int = 1
) -> None:
    """All fits that are not there yet: per size and run, figures by algorithm; BJ from the other way if it is there."""
    cells = []
    for seed in range(config.n_runs):
        for N in sorted(config.sizes, reverse=True):
            missing = [way for way in ways if len(found[way].get(str(N), [])) <= seed]
            known = next((one[str(N)][seed]["BJ"] for one in found.values() if len(one.get(str(N), [])) > seed), None)
            if missing:
                cells.append(Cell((str(N), str(seed)), measure_set, (config, missing, N, seed, known)))
    waiting: dict[tuple[str, str, int], Any] = {}
    for cell, (fits, when) in measured(cells, n_jobs, lambda line: print(line, flush=True)):
        for way, figures in fits.items():
            waiting[way, cell.name[0], int(cell.name[1])] = figures
            runs = found[way].setdefault(cell.name[0], [])
            while (way, cell.name[0], len(runs)) in waiting:  # data sets are kept in the order of their seeds
                runs.append(waiting.pop((way, cell.name[0], len(runs))))
            found[way]["when"] = sorted({*found[way].get("when", []), when})
        keep()


def measure_set(
    config: Config, ways: Sequence[str], N: int, seed: int, known: dict[str, Any] | None
) -> tuple[dict[str, dict[str, Any]], str]:
    """All algorithms on one data set, in turns; BJ is the same in both ways."""
    warm_up()
    rows = replace(config.problem, N=N).draw(seed)
    shared, figures = priors(rows), {}
    for way in ways:
        chosen = to_T(config.T, config.n_trials) if way == "forced" else algorithms(config.T, config.n_trials)
        figures[way] = {
            name: known if name == "BJ" and known else run(rows, one | shared, seed)[1].as_dict()
            for name, one in chosen.items()
        }
        known = figures[way]["BJ"]
    return figures, provenance()


def speedups(runs: Sequence[dict[str, dict[str, float]]], slow: str, fast: str) -> float:
    """Median over the runs of how many times faster."""
    return float(np.median([entry[slow]["seconds"] / entry[fast]["seconds"] for entry in runs]))


def ratios(runs: Sequence[dict[str, dict[str, float]]], a: str, b: str) -> float:
    """Mean over the runs of the free-energy ratio."""
    return float(np.mean([energy_ratio(entry[a]["free_energy"], entry[b]["free_energy"]) for entry in runs]))


def section(config: Config, found: Mapping[str, dict[str, Any]]) -> str:
    """The figure as tables, with what the paper says."""
    setup = replace(
        SETUP, command="kurihara2006.figure1",
        data=f"{config.problem.k} Gaussians, D = {config.problem.D}, c = {config.problem.c:g}",
        stopping=f"cycles end when F falls by less than {TOL:g} per row",
        runs=f"BJ: T = {config.T}, {config.n_trials} starts; data sets by the tables. Seconds are processor time "
        "until the last cycle",
    )  # fmt: skip
    parts = [
        "## Fig. 1: Fast-VIM, VIM and BJ",
        "Free-energy ratios as in the paper, 1 + (F − F′)/|F′|; below 1 is better. Medians of speed-ups, means of "
        "ratios.",
        setup.text(when for way in found.values() for when in way.get("when", [])),
    ]
    titles = {
        "forced": f"As printed: everybody goes to T = {config.T}, Fast-VIM on cells alone. Components that lose their "
        "rows again are dropped, of BJ's not counted, so that fewer are left.",
        "free": "VIM and Fast-VIM as they stop by themselves; Fast-VIM may go over to rows, which for so few rows it "
        "does. (Not like with like: BJ has its T, they have half of it.)",
    }
    for way, title in titles.items():
        fast = CELLS if way == "forced" else "Fast-VIM"
        sizes = {N: runs for N, runs in found[way].items() if N != "when"}
        parts.append(title)
        parts.append(_table(sizes, fast) if sizes else "Not run.")
        if way == "forced" and sizes:
            parts += [BJ_START, _starts(sizes)]
    asked = claims(found, str(max(config.sizes)))
    return "\n\n".join([*parts, "![Fig. 1](figure1.png)", claims_table(asked), tally(asked)])


def _starts(sizes: Mapping[str, Any]) -> str:
    rows = []
    for N, runs in sizes.items():
        components = [f"{np.median([entry[name]['n_components'] for entry in runs]):g}" for name in ("BJ", BY_ROW)]
        seconds = [f"{np.median([entry[name]['seconds'] for entry in runs]):.1f} s" for name in ("BJ", BY_ROW)]
        rows.append([f"{int(N):,}", *seconds, *components, f"{ratios(runs, BY_ROW, 'BJ'):.4f}", str(len(runs))])
    head = ("N", "random rows", "one by one", "components", "one by one ", "F against random rows", "data sets")
    return markdown_table(head, rows).rstrip()


def _table(sizes: Mapping[str, Any], fast: str) -> str:
    rows = []
    for N, runs in sizes.items():
        components = ", ".join(
            f"{np.median([entry[name]['n_components'] for entry in runs]):g}" for name in (fast, "VIM", "BJ")
        )
        rows.append([
            f"{int(N):,}", f"{speedups(runs, 'BJ', fast):.1f} ×", f"{speedups(runs, 'VIM', fast):.1f} ×",
            f"{ratios(runs, fast, 'BJ'):.4f}", f"{ratios(runs, 'VIM', 'BJ'):.4f}", f"{ratios(runs, fast, 'VIM'):.4f}",
            components, runs[-1][fast].get("ending", "rows"), str(len(runs)),
        ])  # fmt: skip
    head = (
        "N", "faster than BJ", "faster than VIM", "F against BJ", "F of VIM against BJ", "F against VIM",
        f"components ({fast}, VIM, BJ)", "at the end", "data sets",
    )  # fmt: skip
    return markdown_table(head, rows).rstrip()


def claims(found: Mapping[str, dict[str, Any]], N: str) -> list[Claim]:
    """What the paper says at its largest N."""
    asked = []
    for way, fast in (("forced", CELLS), ("free", "Fast-VIM")):
        runs = found[way].get(N)
        name = "T = 20" if way == "forced" else "as they stop"
        sizes = {size: one for size, one in found[way].items() if size != "when"}
        every = [ratios(one, fast, "BJ") for one in sizes.values()]
        flat = " and ".join(
            f"{np.median([one[fast]['seconds'] for one in sizes[size]]):.2f} s at N = {int(size):,}"
            for size in (min(sizes, key=int), max(sizes, key=int))
        ) if sizes else ""  # fmt: skip
        slow = f"read off the figure, ± 5; {fast} takes {flat}" if flat else ""
        over = {slow: speedups(runs, slow, fast) if runs else None for slow in ("BJ", "VIM")}
        at = f"{name}, N = {int(N):,}"
        asked += [
            near(f"{at}: faster than BJ", 23, over["BJ"], "{:.1f} ×", 5, slow),
            near(
                f"{at}: faster than VIM",
                3,
                over["VIM"],
                "{:.1f} ×",
                1,
                "read off the figure, ± 1" + ("" if way == "forced" else f"; {OTHER_START}"),
            ),
            in_band(
                f"{name}: F always better than BJ's, largest ratio",
                "< 1",
                max(every, default=None),
                BETTER,
                "{:.4f}",
                FORCED if way == "forced" else "",
            ),
        ]
    return asked


def draw(found: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Speed-ups and free-energy ratios against N."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, fast, color in (("forced", CELLS, "tab:blue"), ("free", "Fast-VIM", "tab:orange")):
        sizes = {int(N): runs for N, runs in found[way].items() if N != "when"}
        if not sizes:
            continue
        for slow, style in (("BJ", "o-"), ("VIM", "s--")):
            gains = [speedups(runs, slow, fast) for runs in sizes.values()]
            left.plot(list(sizes), gains, style, color=color, label=f"over {slow}, {way}")
        for name, style in ((fast, "o-"), ("VIM", "s--")):
            excess = [ratios(runs, name, "BJ") for runs in sizes.values()]
            right.plot(list(sizes), excess, style, color=color, label=f"{name} against BJ, {way}")
    left.set(xlabel="N", ylabel="Fast-VIM is so many times faster", yscale="log")
    left.legend(fontsize="small")
    right.axhline(1.0, color="grey", linewidth=0.8)
    right.set(xlabel="N", ylabel="free-energy ratio")
    right.ticklabel_format(useOffset=False)
    right.legend(fontsize="small")
    save_figure(figure, path)


def keep_measuring(config: Config, folder: Path, ways: Sequence[str] = tuple(WAYS), n_jobs: int = 1) -> None:
    """Add what is wanted to the kept numbers."""
    found = {way: read_results(folder / file) for way, file in WAYS.items()}

    def keep() -> None:
        for way in ways:
            ordered = sorted(found[way].items(), key=lambda one: int(one[0]) if one[0] != "when" else 0)
            write_results(folder / WAYS[way], dict(ordered))

    measure(config, ways, found, keep, n_jobs)


def write_report(config: Config, folder: Path) -> dict[str, dict[str, Any]]:
    """The section and the picture of what is kept."""
    found = {way: read_results(folder / file) for way, file in WAYS.items()}
    draw(found, folder / "figure1.png")
    update_report(folder / "report.md", HEADING, "figure 1", section(config, found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("Fast-VIM, VIM and BJ on small sets", REPORT)
    made.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS), help="one of the two ways")
    add_options(made)
    chosen = made.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    config = replace(config, n_runs=chosen.runs or config.n_runs)
    folder = quick_folder(chosen)
    if not chosen.report_only:
        keep_measuring(config, folder, chosen.only, chosen.jobs)
    if not chosen.keep_only:
        write_report(config, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
