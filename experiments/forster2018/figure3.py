"""Fig. 3: iterations until the variational algorithms pass converged k-means, against the number of clusters.

    python -m experiments.forster2018.figure3 [--quick] [--largest C] [--runs N] [-o DIR]

Counted as in the paper: E-steps of the warm-up and iterations, until the mean quantization error of the runs falls
below the mean error of converged k-means from the same seeds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.common import (
    Band,
    Rows,
    exact_error,
    lloyd_run,
    markdown_table,
    parser,
    provenance,
    read_results,
    save_figure,
    update_report,
    write_results,
)
from experiments.forster2018 import HEADING, REPORT
from experiments.forster2018.fits import CHAIN_LENGTH, SETUP, Kind, Variant, birch_warmup, moments
from experiments.forster2018.traces import plain_ticks
from experiments.verdicts import Claim, claims_table, in_band, said, tally
from globular import datasets, seeding

KINDS: tuple[Kind, ...] = ("k-means", "GMM")
SUBLINEAR = Band(high=1.0)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of the figure."""

    sides: tuple[int, ...] = (5, 10, 16, 23, 32, 45, 64)
    sizes: tuple[int, ...] = (2, 5)
    n_runs: int = 5
    max_iter: int = 200
    n_per_cluster: int = 100
    slope: Band = SUBLINEAR
    """Of log iterations against log C: below 1 the iterations grow less than the clusters."""

    def variants(self, C: int) -> list[Variant]:
        """The four curves."""
        return [Variant(kind, G, 1, birch_warmup(G, C), max_iter=self.max_iter) for kind in KINDS for G in self.sizes]


FULL = Config()
QUICK = Config(sides=(5, 8, 12), n_runs=2, max_iter=60, n_per_cluster=50)


def measure(config: Config, results: dict[str, Any], keep: Callable[[], None], say: Callable[[str], None]) -> None:
    """Run one size after the other; sizes that are there already with as many runs, or more, stay."""
    for side in config.sides:
        C = side * side
        if results.get(str(C), {}).get("n_runs", 0) >= config.n_runs:
            continue
        X = datasets.birch_grid(side, config.n_per_cluster, random_state=0).X
        seeds = [seeding.afk_mc2(X, C, chain_length=CHAIN_LENGTH, random_state=run) for run in range(config.n_runs)]
        base = [lloyd_run(X, start, config.max_iter) for start in seeds]
        target = float(np.mean([one.error for one in base]))
        found = {
            variant.algorithm + " " + variant.size: passing(X, seeds, variant, target) for variant in config.variants(C)
        }
        results[str(C)] = {
            "n_runs": config.n_runs,
            "lloyd": float(np.mean([one.n_iter for one in base])),
            "warmup": {variant.size: variant.n_warmup for variant in config.variants(C)},
            "iterations": found,
            "when": provenance(),
        }
        say(f"C = {C}: k-means {results[str(C)]['lloyd']:.0f}, {found}")
        keep()


def passing(X: Rows, seeds: Sequence[NDArray[Any]], variant: Variant, target: float) -> int | None:
    """Warm-up and iterations until the mean error of the runs is at most `target`; None if it never is.

    All runs go on together, and end there: what comes after is not asked for. One that has converged stays where it is.
    """
    runs = [moments(X, start, variant, seed) for seed, start in enumerate(seeds)]
    errors = [math.inf] * len(runs)
    for t in range(1, variant.max_iter + 1):
        going = False
        for place, run in enumerate(runs):
            if (moment := next(run, None)) is not None:
                errors[place], going = exact_error(X, moment.centers), True
        if float(np.mean(errors)) <= target:
            return variant.n_warmup + t
        if not going:
            break
    return None


def slope(sizes: Sequence[int], iterations: Sequence[int | None]) -> float:
    """Of a line through log iterations against log C; NaN with fewer than two points."""
    points = [(math.log(C), math.log(n)) for C, n in zip(sizes, iterations, strict=True) if n is not None]
    if len(points) < 2:
        return math.nan
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def n_fewer(results: dict[str, Any]) -> int:
    """In how many cases a variational algorithm passed k-means before k-means itself had converged."""
    return sum(n is not None and n < one["lloyd"] for one in results.values() for n in one["iterations"].values())


def draw(results: dict[str, Any], path: Path) -> None:
    """Iterations against C, both logarithmic; Lloyd dashed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    sizes = sorted(map(int, results))
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    panel = figure.subplots()
    for start in 2.0 ** np.arange(-6, 8):
        panel.plot(sizes, start * np.array(sizes) / sizes[0], color="0.92", linewidth=1, zorder=0)
    panel.plot(sizes, [results[str(C)]["lloyd"] for C in sizes], "k--", label="k-means until convergence")
    looks = {"var-k-means-S 2 + 1": "o-", "var-k-means-S 5 + 1": "s-", "var-GMM-S 2 + 1": "o-", "var-GMM-S 5 + 1": "s-"}
    for name, style in looks.items():
        points = [(C, results[str(C)]["iterations"].get(name)) for C in sizes]
        points = [(C, n) for C, n in points if n is not None]
        if points:
            color = "#2563a8" if "k-means" in name else "#c9632b"
            filled = "white" if "2 + 1" in name else color
            panel.plot(*zip(*points, strict=True), style, color=color, mfc=filled, label=name)
    top = max(max([one["lloyd"], *(n for n in one["iterations"].values() if n)]) for one in results.values())
    panel.set(xscale="log", yscale="log", xlabel="clusters C", ylabel="iterations, warm-up included")
    panel.set_ylim(4, 1.6 * top)
    panel.set_xticks(sizes, [f"{C:,}" for C in sizes], fontsize="small")
    panel.xaxis.set_minor_locator(NullLocator())
    plain_ticks(panel.yaxis)
    panel.legend(fontsize="small")
    save_figure(figure, path)


def section(config: Config, results: dict[str, Any], picture: str) -> str:
    """One line per C, the slopes below."""
    sizes = sorted(map(int, results))
    names = list(dict.fromkeys(name for C in sizes for name in results[str(C)]["iterations"]))
    rows = [
        [str(C), " / ".join(map(str, results[str(C)]["warmup"].values())), f"{results[str(C)]['lloyd']:.0f}"]
        + ["never" if (n := results[str(C)]["iterations"].get(name)) is None else str(n) for name in names]
        + [str(results[str(C)]["n_runs"])]
        for C in sizes
    ]
    asked = claims(config, results)
    missing = [str(side**2) for side in config.sides if str(side**2) not in results]
    return "\n\n".join(
        [
            "## Fig. 3: iterations to pass converged k-means",
            "BIRCH grids; mean error of the variational runs against the mean error of converged k-means from the same "
            "seeds. As in the paper the length of the warm-up was tuned on the training error (see `birch_warmup`).",
            replace(
                SETUP, command="forster2018.figure3", data="BIRCH grids, 100 rows a cluster",
                stopping=f"at most {config.max_iter} iterations, tolerance 0",
                runs="5 a size in the paper; those made are in the table",
            ).text(results[str(C)]["when"] for C in sizes),
            f"![iterations against clusters]({picture})",
            markdown_table(("C", "warm-up, 2 + 1 / 5 + 1", "k-means", *names, "runs"), rows).rstrip(),
            *(["Not run: C = " + ", ".join(missing) + "."] if missing else []),
            claims_table(asked), tally(asked),
        ]
    )  # fmt: skip


def claims(config: Config, results: dict[str, Any]) -> list[Claim]:
    """What the text says of the figure, which has no numbers."""
    sizes = sorted(map(int, results))
    names = list(dict.fromkeys(name for C in sizes for name in results[str(C)]["iterations"]))
    found = {name: [results[str(C)]["iterations"].get(name) for C in sizes] for name in names}
    asked = []
    for name, iterations in found.items():
        never = [str(C) for C, n in zip(sizes, iterations, strict=True) if n is None]
        remark = "k-means is never passed at C = " + ", ".join(never) + ", left out of the slope" if never else ""
        asked.append(
            in_band(f"{name}: slope of log iterations", "below 1", slope(sizes, iterations), config.slope, "{:.2f}",
                    remark)
        )  # fmt: skip
        passed = len(sizes) - len(never)
        asked.append(said(f"{name}: improves on k-means in all cases", f"{passed} of {len(sizes)} sizes", not never))
    if found:
        n, of = n_fewer(results), len(sizes) * len(names)
        asked.append(said("in most cases fewer iterations than k-means", f"{n} of {of}", 2 * n > of))
    return asked


def report(config: Config, folder: Path, *, quick: bool = False, only_up_to: int | None = None) -> None:
    """Run the figure and write its section, its picture and its numbers."""
    name = "figure3-quick" if quick else "figure3"
    kept = folder / f"{name}.json"
    results = read_results(kept)
    wanted = replace(config, sides=tuple(side for side in config.sides if side**2 <= (only_up_to or side**2)))
    measure(wanted, results, lambda: write_results(kept, results), lambda line: print(line, flush=True))
    draw(results, folder / f"{name}.png")
    update_report(folder / "report.md", HEADING, name, section(config, results, f"{name}.png"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep, report."""
    options = parser("Fig. 3 of Forster & Lücke 2018", REPORT)
    options.add_argument("--largest", type=int, default=None, metavar="C", help="leave larger grids out")
    chosen = options.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    config = replace(config, n_runs=chosen.runs or config.n_runs)
    report(config, chosen.output, quick=chosen.quick, only_up_to=chosen.largest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
