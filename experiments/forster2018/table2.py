"""Table 2: distances saved per iteration, and quantization error against k-means from the same seeds.

    python -m experiments.forster2018.table2 [--quick] [--only TEXT …] [--without TEXT …] [--add FILE …]
                                            [--runs N] [--jobs N] [--keep-only] [--report-only] [-o DIR]

KDD runs without random candidates and without warm-up, as in the paper; BIRCH and SONG with one random candidate per
row and E-steps before the first M-step, 20 of them for SONG, tuned as in the paper for BIRCH (`birch_warmup`). SONG is
not to be had here: glove50 and sift_photos stand in for it, with its numbers beside theirs. Runs are kept one by one,
so `--only` and a larger `--runs` add to what is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Cell, add_options, measured, merged
from experiments.common import (
    Rows,
    exact_error,
    lloyd_run,
    markdown_table,
    n_empty_clusters,
    parser,
    percent,
    provenance,
    read_results,
    save_figure,
    update_report,
    write_results,
)
from experiments.forster2018 import HEADING, REPORT
from experiments.forster2018.fits import CHAIN_LENGTH, SETUP, run
from experiments.forster2018.table2_rows import FULL, QUICK, Config, Entry, Problem
from experiments.forster2018.traces import plain_ticks
from experiments.verdicts import MARGIN, Claim, claims_table, near, said, tally
from globular import seeding

LLOYD = "Lloyd"


def measure(
    config: Config, results: dict[str, Any], keep: Callable[[], None], say: Callable[[str], None], n_jobs: int = 1
) -> None:
    """Run what is wanted and not there yet; `keep` is called after every run."""
    for cell, found in measured(wanted_cells(config, results), n_jobs, say):
        problem, name, number = cell.name
        kept = results.setdefault(problem, {"baseline": {}, "entries": {}})
        kept |= found.pop("data")
        if name == LLOYD:
            kept["baseline"][number] = found
        else:
            entry = kept["entries"].setdefault(name, {"runs": {}, "when": []})
            entry["when"] = sorted({*entry["when"], found.pop("when")})
            entry["runs"] = dict(sorted({**entry["runs"], number: found}.items(), key=lambda one: int(one[0])))
        say(f"{problem}, {name}, run {number}: {found['error']:.6g} after {found['n_iter']}")
        keep()


def wanted_cells(config: Config, results: Mapping[str, Any]) -> list[Cell[dict[str, Any]]]:
    """All runs that are not kept: run number by run number, those that take longest first."""
    cells: list[Cell[dict[str, Any]]] = []
    for number in range(config.n_runs):
        for problem in config.problems:
            entries = sorted(config.wanted(problem), key=lambda one: one.variant.least_savings(problem.n_clusters))
            kept = results.get(problem.name, {"baseline": {}, "entries": {}})
            if entries and str(number) not in kept["baseline"]:
                cells.append(Cell((problem.name, LLOYD, str(number)), measure_lloyd, (problem, number)))
            cells += [
                Cell((problem.name, entry.name, str(number)), measure_entry, (problem, entry, number))
                for entry in entries
                if str(number) not in kept["entries"].get(entry.name, {"runs": {}})["runs"]
            ]
    return cells


def measure_lloyd(problem: Problem, number: int) -> dict[str, Any]:
    """One run of k-means: what the others are compared with."""
    X = problem.load()
    found = lloyd_run(X, _seeds(X, problem, number), problem.max_iter)
    return {"error": found.error, "n_iter": found.n_iter, "data": _shape(X, problem)}


def measure_entry(problem: Problem, entry: Entry, number: int) -> dict[str, Any]:
    """One run of a row of the table."""
    X = problem.load()
    variant = replace(entry.variant, max_iter=problem.max_iter)
    found = run(X, _seeds(X, problem, number), variant, seed=number)
    return {
        "error": exact_error(X, found.centers),
        "savings": found.savings(len(X)),
        "n_iter": found.n_iter,
        "n_empty": n_empty_clusters(X, found.centers),
        "seconds": found.seconds,
        "when": provenance(),
        "data": _shape(X, problem),
    }


def _seeds(X: Rows, problem: Problem, number: int) -> Any:
    return seeding.afk_mc2(X, problem.n_clusters, chain_length=CHAIN_LENGTH, random_state=number)


def _shape(X: Rows, problem: Problem) -> dict[str, int]:
    return {"n_rows": len(X), "n_columns": X.shape[1], "n_clusters": problem.n_clusters}


def compared(kept: Mapping[str, Any] | None, name: str) -> list[tuple[float, float]]:
    """The errors of an entry's runs, each with that of k-means from the same seeds; empty: not run."""
    runs = kept["entries"].get(name, {"runs": {}})["runs"] if kept else {}
    base = kept["baseline"] if kept else {}
    return [(one["error"], base[number]["error"]) for number, one in runs.items() if number in base]


def relative_error(kept: Mapping[str, Any], name: str) -> float:
    """Mean error of the runs against the mean of k-means from the same seeds, in percent."""
    ours, base = np.mean(compared(kept, name), axis=0)
    return 100.0 * (float(ours) / float(base) - 1.0)


def _average(kept: Mapping[str, Any], name: str, what: str) -> float:
    return float(np.mean([one[what] for one in kept["entries"][name]["runs"].values()]))


def section(config: Config, results: dict[str, Any], picture: str) -> str:
    """The table as Markdown, the paper's numbers beside ours."""
    when = [one for kept in results.values() for entry in kept["entries"].values() for one in entry["when"]]
    asked = [claim for problem in config.problems for claim in claims(problem, results.get(problem.name))]
    asked += improvements(config, results)
    parts = [
        "## Table 2: distances saved and quantization error",
        "Quantization error is measured over all rows and all centres, relative to Lloyd's algorithm from the same "
        "seeds; means over the runs. Savings are N·C over the distances counted in an iteration; a distance is counted "
        "once, that K(n) is evaluated again for responsibilities is not. For var-GMM the paper gives the least "
        "possible saving and the measured one.",
        replace(
            SETUP, command="forster2018.table2", data="as headed below; SONG is not to be had here",
            start=f"{SETUP.start}; E-steps before the first M-step and random candidates by the table",
            stopping="by the tables; Lloyd until no label changes or as many iterations",
            runs="5 in the paper; those made are in the tables",
        ).text(when),
        f"![savings and error]({picture})",
    ]  # fmt: skip
    parts += [_problem_section(problem, results.get(problem.name)) for problem in config.problems]
    if asked:
        parts += ["### Verdicts", _BANDS, claims_table(asked), tally(asked)]
    return "\n\n".join(parts)


_BANDS = (
    f"Errors: within {MARGIN:g} percentage points of the printed ones. Savings: within 5 %. Numbers of SONG are beside "
    "its stand-ins above; they have no band, the data being others."
)


FINDINGS = {
    ("kdd", "var-k-means-S G=2"): "the paper's number lies between what the printed algorithm and what the authors' "
    "published program come to here. That program starts otherwise, from K(n) and G_c drawn at random in place of "
    "G(n) for every row: from the same seeds it ends at +115.8 % (standard error of five runs 3.5), and with E-steps "
    "before the first M-step, which the paper has for its other data, at +106.2 % (5.0; one) or +106.5 % (4.6; five), "
    "a standard error from the paper's (“What the paper leaves open”). The start alone makes the difference: the "
    "program's other departures, added to the printed start, give +90.2 % in five runs. Chance is not quite excluded: "
    "40 runs from the printed start, chains of 1 to 2,000, have a mean of +97.0 %, and the mean of five has a standard "
    "error of 2.9, of which the paper's is 1.7 above, but 2.8 above the ten with chains of 200, the default of the "
    "program's seeding too. Excluded: E-steps before the first M-step from the printed start (+67.8 % with one, "
    "+58.1 % with five, five runs each); places that Eq. 8 knows nothing of, and empty clusters at the origin (there "
    "are none from the printed start). Scaled columns are unlikely, since the other five rows agree",
    ("birch-4096", "var-GMM-S G=5 + 1"): "our tolerance, which ends runs after some 40 of 200 iterations, explains 0.5 "
    "of the 2.3 points: the same five runs without it end at −9.9 % (standard error 0.2), inside the band, but nine "
    "standard errors above the paper's. The rest is not explained. The length of the warm-up, here that of "
    "var-k-means-S, is tuned by the paper and not printed; on BIRCH 20 × 20 other lengths end up to four points lower, "
    "in three runs that differ as much (“What the paper leaves open”)",
}
"""What is known of errors outside their bands."""


def claims(problem: Problem, kept: dict[str, Any] | None) -> list[Claim]:
    """Every printed number of a data set that is the paper's."""
    asked = []
    for entry in problem.entries:
        if entry.paper_error is None or problem.stand_in:
            continue
        known = bool(compared(kept, entry.name))
        error = relative_error(kept, entry.name) if known and kept else None
        savings = _average(kept, entry.name, "savings") if known and kept else None
        name, printed = f"{problem.title}, {entry.name}", entry.measured_savings
        spread = _spread(kept, entry.name) if known and kept else ""
        spread = "; ".join(filter(None, [spread, FINDINGS.get((problem.name, entry.name), "")]))
        asked.append(near(f"{name}: error", entry.paper_error, error, remark=spread))
        asked.append(near(f"{name}: savings", printed, savings, "{:.4g}×", max(0.5, 0.05 * printed)))
    return asked


def improvements(config: Config, results: Mapping[str, Any]) -> list[Claim]:
    """The paper: var-GMM-S consistently improves on k-means, for G ≥ 5 on natural data and in all settings on BIRCH."""
    asked = []
    for problem in config.problems:
        kept, natural = results.get(problem.name), "birch" not in problem.name
        entries = [one for one in problem.entries if one.variant.kind == "GMM" and (one.variant.G >= 5 or not natural)]
        found = {one.variant.size: compared(kept, one.name) for one in entries}
        what = f"{problem.title}: var-GMM-S improves on k-means" + (" for G ≥ 5" if natural else "")
        if not all(len(runs) > 1 for runs in found.values()):
            asked.append(Claim(what, "in words"))
            continue
        gaps = {size: [100 * (ours / base - 1) for ours, base in runs] for size, runs in found.items()}
        told = [
            f"G = {n}: {percent(np.mean(gap))} ± {np.std(gap, ddof=1) / np.sqrt(len(gap)):.1f}"
            for n, gap in gaps.items()
        ]
        asked.append(said(what, "; ".join(told), all(np.mean(gap) < 0 for gap in gaps.values())))
    return asked


def _spread(kept: Mapping[str, Any], name: str) -> str:
    """The range over the runs, each against k-means from its own seeds."""
    errors = [100 * (ours / base - 1) for ours, base in compared(kept, name)]
    return f"{len(errors)} runs, {percent(min(errors))} to {percent(max(errors))}" if len(errors) > 1 else "one run"


def _problem_section(problem: Problem, kept: dict[str, Any] | None) -> str:
    if kept is None or not any(compared(kept, entry.name) for entry in problem.entries):
        return f"### {problem.title}\n\nNot run."
    base = list(kept["baseline"].values())
    head = ("algorithm", "G", "savings, paper", "ours", "least", "error, paper", "ours", "runs", "iterations", "empty",
            "warm-up", "tolerance")  # fmt: skip
    rows = [_line(entry, problem, kept) for entry in problem.entries if compared(kept, entry.name)]
    missing = [entry.name for entry in problem.entries if not compared(kept, entry.name)]
    lines = [
        f"### {problem.title}",
        f"N = {kept['n_rows']:,}, D = {kept['n_columns']}, C = {kept['n_clusters']:,}. Lloyd: "
        f"{np.mean([one['error'] for one in base]):.6g} per row after "
        f"{np.mean([one['n_iter'] for one in base]):.0f} iterations (mean of {len(base)}). At most {problem.max_iter} "
        f"iterations. {problem.note}".rstrip(),
        markdown_table(head, rows).rstrip(),
    ]
    if missing:
        lines.append("Not run: " + ", ".join(missing) + ".")
    return "\n\n".join(lines)


def _line(entry: Entry, problem: Problem, kept: dict[str, Any]) -> list[str]:
    variant, error, savings = entry.variant, relative_error(kept, entry.name), _average(kept, entry.name, "savings")
    unit = "of the objective" if variant.kind == "k-means" else "a row"
    return [
        variant.algorithm,
        variant.size,
        entry.paper_savings,
        f"{savings:.4g}×",
        f"{variant.least_savings(problem.n_clusters):.4g}×",
        "–" if entry.paper_error is None else percent(entry.paper_error),
        percent(error),
        str(len(compared(kept, entry.name))),
        f"{_average(kept, entry.name, 'n_iter'):.0f}",
        f"{_average(kept, entry.name, 'n_empty'):.1f}",
        str(variant.n_warmup),
        f"{variant.tol:g} {unit}, 3 times running" if variant.tol else "0",
    ]


TICKS = (-20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200)


def draw(config: Config, results: dict[str, Any], path: Path) -> None:
    """Savings against error, ours filled and the paper's hollow, one panel per data set."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    shown = [problem for problem in config.problems if results.get(problem.name, {}).get("entries")]
    figure = Figure(figsize=(3.9 * len(shown), 3.6), layout="constrained")
    colors = {"k-means": "#2563a8", "GMM": "#c9632b"}
    for panel, problem in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        kept = results[problem.name]
        for kind, color in colors.items():
            entries = [one for one in problem.entries if one.variant.kind == kind and compared(kept, one.name)]
            savings = [_average(kept, one.name, "savings") for one in entries]
            errors = [relative_error(kept, one.name) for one in entries]
            panel.plot(savings, errors, "o-", color=color, linewidth=1, label=f"var-{kind}-S, ours")
            paper = [(one.measured_savings, one.paper_error) for one in entries if one.paper_error is not None]
            if paper:
                panel.plot(
                    *zip(*paper, strict=True), "o--", color=color, mfc="white", lw=0.8, label=f"var-{kind}-S, paper"
                )
        panel.axhline(0.0, color="0.5", linewidth=0.8)
        panel.set(xscale="log", xlabel="N·C / distances per iteration", title=problem.name)
        panel.set_yscale("symlog", linthresh=5.0)
        panel.set_ylim(-20, 200)
        panel.set_yticks(TICKS, [f"{tick:+d}".replace("-", "−") for tick in TICKS])
        panel.yaxis.set_minor_locator(NullLocator())
        plain_ticks(panel.xaxis)
        panel.grid(alpha=0.25)
    axes = figure.axes
    axes[0].set_ylabel("error against Lloyd [%]")
    axes[-1].legend(fontsize="x-small")
    save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep, report."""
    options = parser("Table 2 of Forster & Lücke 2018", REPORT)
    options.add_argument("--only", action="append", default=[], metavar="TEXT", help="entries whose name contains TEXT")
    options.add_argument("--without", action="append", default=[], metavar="TEXT", help="entries without TEXT")
    options.add_argument(
        "--add", action="append", default=[], type=Path, metavar="FILE", help="what was kept elsewhere"
    )
    add_options(options)
    chosen = options.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    config = replace(config, n_runs=chosen.runs or config.n_runs, only=tuple(chosen.only))
    config = replace(config, without=tuple(chosen.without))
    name = "table2-quick" if chosen.quick else "table2"
    for path in chosen.add:
        kept = read_results(chosen.output / f"{name}.json")
        write_results(chosen.output / f"{name}.json", merged(kept, read_results(path)))
    if not chosen.report_only:
        keep_measuring(config, chosen.output, name, n_jobs=chosen.jobs)
    if not chosen.keep_only:
        write_report(config, chosen.output, name)
    return 0


def keep_measuring(config: Config, folder: Path, name: str = "table2", *, n_jobs: int = 1) -> None:
    """Add what is wanted to the kept numbers."""
    kept = folder / f"{name}.json"
    results = read_results(kept)
    measure(config, results, lambda: write_results(kept, results), lambda line: print(line, flush=True), n_jobs)


def write_report(config: Config, folder: Path, name: str = "table2") -> None:
    """The section and the picture of what is kept."""
    results = read_results(folder / f"{name}.json")
    if any(one["entries"] for one in results.values()):
        draw(config, results, folder / f"{name}.png")
        update_report(folder / "report.md", HEADING, name, section(config, results, f"{name}.png"))


if __name__ == "__main__":
    sys.exit(main())
