"""Fig. 6: the algorithms between mbatch and nmbatch.

    python -m experiments.newling2016.figure6 [--quick] [--problems NAME …] [--runs N] [--rows N] [--seconds S]
                                            [--jobs N] [--keep-only] [--report-only] [-o DIR]

mbatch.remove takes back the former vote of a row that comes again; nmbatch.deact is nmbatch without bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.common import markdown_table, provenance, read_results, update_report, write_results
from experiments.newling2016 import HEADING, REPORT
from experiments.newling2016.cells import measure_curves
from experiments.newling2016.curves import SETUP, Curve, Setup, from_json, to_json
from experiments.newling2016.drawing import chosen_problems, chosen_setup, curve_parser, draw_panels
from experiments.newling2016.figure2 import FINDINGS, FULL, LEVELS, QUICK, seconds_to
from experiments.newling2016.problems import PAPERS, PROBLEMS
from experiments.verdicts import Claim, claims_table, said, tally

ALGORITHMS = ("mbatch", "mbatch.remove", "nmbatch.deact", "nmbatch")


def measure(name: str, setup: Setup, n_runs: int, n_rows: int | None, n_jobs: int) -> dict[str, list[Curve]]:
    """All runs on one data set."""
    return measure_curves(name, setup, [(one, one, None) for one in ALGORITHMS], n_runs, n_rows, n_jobs)


def section(kept: Mapping[str, Any], picture: str) -> str:
    """The picture and one table."""
    rows = []
    for name, entry in kept.items():
        curves = from_json(entry["curves"])
        for algorithm, runs in curves.items():
            times = [seconds_to(curves, level)[algorithm] for level in LEVELS]
            shown = ["∞" if time == float("inf") else f"{time:.3g} s" for time in times]
            rows.append([f"{name}: {algorithm}", *shown, f"{sum(run.n_distances for run in runs) / len(runs):.3g}"])
    runs = "; ".join(
        f"`--problems {name} --runs {entry['runs']} --seconds {entry['seconds']:g}`" for name, entry in kept.items()
    )
    asked = [claim for name, entry in kept.items() for claim in claims(name, from_json(entry["curves"]))]
    missing = [PROBLEMS[name].title for name in PAPERS if name not in kept]
    return "\n\n".join(
        [
            "## Fig. 6: from mbatch to nmbatch",
            "Seconds until the mean over runs stays within so many percent of E*, the lowest energy of any run.",
            replace(
                SETUP, command="newling2016.figure6", data="stand-ins; k = 50, b₀ = 5,000, ρ = 100",
                runs=f"20 in the paper; here {runs}",
            ).text(f"{entry['provenance']} ({name})" for name, entry in kept.items()),
            f"![validation energy against seconds]({picture})",
            markdown_table(("", *(f"within {level:g} %" for level in LEVELS), "distances"), rows).rstrip(),
            *([f"Not run, for their time: {', '.join(missing)}."] if missing else []),
            claims_table(asked),
            tally(asked),
        ]
    )  # fmt: skip


def claims(name: str, curves: Mapping[str, Sequence[Curve]]) -> list[Claim]:
    """What the paper says, at the finest level that either of two algorithms reaches."""
    asked = []
    for first, second, words in (
        ("mbatch.remove", "mbatch", "taking back old votes improves mbatch"),
        ("nmbatch", "mbatch.remove", "nmbatch is faster than mbatch.remove"),
        ("nmbatch", "nmbatch.deact", "bounds make nmbatch faster"),
    ):
        what = f"{PROBLEMS[name].title}: {words}"
        for level in reversed(LEVELS):
            times = seconds_to(curves, level)
            if min(times[first], times[second]) < float("inf"):
                shown = ["never" if time == float("inf") else f"{time:.3g} s" for time in (times[first], times[second])]
                met = times[first] < times[second]
                remark = "" if met else FINDINGS.get(name, "")
                asked.append(said(what, f"within {level:g} %: {shown[0]} against {shown[1]}", met, remark))
                break
        else:
            asked.append(said(what, "neither comes within 2 % of E*", None, "local minima: see Fig. 2 by start"))
    return asked


def write_report(kept: Mapping[str, Any], folder: Path, name: str) -> None:
    """The picture, and the section of the report about it."""
    draw_panels({key: from_json(entry["curves"]) for key, entry in kept.items()}, folder / f"{name}.png")
    update_report(folder / "report.md", HEADING, name, section(kept, f"{name}.png"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    chosen = curve_parser("Fig. 6 of Newling & Fleuret 2016", REPORT).parse_args(arguments)
    setup = chosen_setup(chosen, QUICK, FULL)
    n_runs = chosen.runs or (2 if chosen.quick else 20)
    name = "figure6-quick" if chosen.quick else "figure6"
    folder: Path = chosen.output
    kept = read_results(folder / f"{name}.json")
    for problem in chosen_problems(chosen):
        curves = measure(problem, setup, n_runs, chosen.rows, chosen.jobs)
        kept[problem] = {
            "curves": to_json(curves), "runs": n_runs, "k": setup.k, "b0": setup.b0, "seconds": setup.seconds,
            "provenance": provenance(),
        }  # fmt: skip
        write_results(folder / f"{name}.json", kept)
    if not chosen.keep_only:
        write_report(kept, folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
