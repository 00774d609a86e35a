"""Every k alike? Seconds and error of KMeans for k from 2 to 2,000, and where either of them jumps.

    python benchmarks/continuity.py                          # four data sets; tens of minutes
    python benchmarks/continuity.py --sets geonames --rounds 3
    python benchmarks/continuity.py --cpu                    # on a machine that others use too

Neighbours are compared where another path begins, k with k + 1 (`turns`): greedy seeds and the compiled search of few
rows end, parts are no longer drawn, probing begins, and so on. Between them nothing changes but the path, so the
ratio of their medians, or of their mean errors, is the jump.

Between such places a grid is measured, whose k are a third apart. There both figures change with k by themselves, and
are compared on logarithmic scales, where over a few k of the grid they are nearly straight lines, or bend a little.
What is said is the factor that is left when that trend is taken away:

- a *step* between two k of the grid: one parabola is fitted to the three values on either side, all six together, with
  a step in the middle, by least squares. So a curve that only falls, rises or bends has no step, and one noisy value
  is averaged with two others;
- a *bump* at one k: its value against a parabola through the two values on either side.

Seconds should have none beyond 1.5×, upward or downward. Errors should have none beyond 1 % upward: a fit that is
better than its neighbours does no harm. Very few clusters, and k near the number of groups that there really are, may
show what the data do by themselves. Writes continuity.json and the picture of the documentation.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from globular import KMeans
from globular.algorithms.kmeans.cells import EXACT_UP_TO
from globular.algorithms.kmeans.coreset import (
    LAST_SHARE,
    LEAST_GROWTH,
    PART_ROWS_PER_CLUSTER,
    TIMES_MORE_ROWS,
    rows_of_first_part,
)
from globular.algorithms.kmeans.pipeline import CLUSTERS_STARTED, PROBING_FROM
from globular.algorithms.kmeans.trials import SWAPPED_FROM
from globular.algorithms.seeding.common import are_few, are_few_to_seed
from globular.algorithms.seeding.named import GREEDY_UP_TO
from globular.errors import DataError
from globular.io import write_whole
from globular.plotting.history import HUES, tidy
from harness.data import SETS as KNOWN
from harness.fits import Rows
from harness.machine import describe_machine
from harness.plots import new_panels, save

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "continuity.png"
SETS = ("covtype", "glove50", "geonames", "uber_nyc")
MOST_ROWS = {"covtype": 100_000, "glove50": 50_000}
"""Of sets that would take hours."""
STARTED_ONCE_FROM = CLUSTERS_STARTED // 2 + 1
"""Number of clusters from which there is one start, unless rows are very many."""
SECONDS_LIMIT, ERROR_LIMIT = 1.5, 1.01
N_SIDE = 3
"""Values on either side of a step."""


@dataclass(frozen=True)
class Point:
    """One number of clusters: the median seconds of the fits, and the mean of their mean squared distances."""

    data_set: str
    n_clusters: int
    seconds: float
    error: float


@dataclass(frozen=True)
class Jump:
    """A factor that a trend does not explain, between two k (a step) or at one of them (a bump)."""

    where: str
    factor: float


def numbers_of_clusters(first: int = 2, last: int = 2_000, n: int = 24) -> list[int]:
    """About n of them in equal ratios: the grid."""
    return np.unique(np.geomspace(first, last, n).round().astype(int)).tolist()


def turns(n_rows: int, n_columns: int, first: int = 2, last: int = 2_000) -> list[int]:
    """The last k of a path, where with k + 1 another one begins, for dense data of that shape."""

    def path(k: int) -> tuple[object, ...]:
        rows = rows_of_first_part(n_rows, n_columns, k) or n_rows
        limits = (STARTED_ONCE_FROM - 1, GREEDY_UP_TO, PROBING_FROM - 1, EXACT_UP_TO)
        few = are_few(rows, n_columns, k), k < PROBING_FROM and are_few_to_seed(rows, n_columns, k)
        has_part = rows < n_rows if k < PROBING_FROM else n_rows >= TIMES_MORE_ROWS * PART_ROWS_PER_CLUSTER * k
        swapped_first = SWAPPED_FROM <= k < PROBING_FROM and not has_part
        several = k < PROBING_FROM and has_part and n_rows // LAST_SHARE >= LEAST_GROWTH * rows
        return *(k <= limit for limit in limits), *few, has_part, swapped_first, several

    return [k for k in range(first, last) if path(k) != path(k + 1)]


def neighbors(points: Sequence[Point], name: str) -> list[Jump]:
    """The ratio between each k and k + 1 that both were measured."""
    values = {point.n_clusters: getattr(point, name) for point in points}
    return [
        Jump(f"from k = {k} to {k + 1}", values[k + 1] / values[k]) for k in values if k + 1 in values and values[k] > 0
    ]


def steps(k: Sequence[int], values: Sequence[float]) -> list[Jump]:
    """The step between each two neighbouring k, as a factor."""
    x, y = np.log(k), np.log(values)
    found = []
    for right in range(1, len(k)):
        some = np.arange(max(0, right - N_SIDE), min(len(k), right + N_SIDE))
        if len(some) > 4:  # a parabola and a step have four parameters
            design = np.column_stack([np.vander(x[some] - x[right], 3), some >= right])
            step = np.linalg.lstsq(design, y[some], rcond=None)[0][3]
            found.append(Jump(f"from k = {k[right - 1]} to {k[right]}", math.exp(step)))
    return found


def bumps(k: Sequence[int], values: Sequence[float]) -> list[Jump]:
    """Each value but the outer two against its neighbours, as a factor."""
    x, y = np.log(k), np.log(values)
    found = []
    for i in range(1, len(k) - 1):
        others = [j for j in range(max(0, i - 2), min(len(k), i + 3)) if j != i]
        if len(others) > 2:
            trend = np.linalg.lstsq(np.vander(x[others] - x[i], 3), y[others], rcond=None)[0][2]
            found.append(Jump(f"at k = {k[i]}", math.exp(y[i] - trend)))
    return found


def jumps(points: Sequence[Point], grid: Sequence[int]) -> list[str]:
    """What should not be, of one data set, in words."""
    spread = [point for point in points if point.n_clusters in grid]
    k = [point.n_clusters for point in spread]
    found = []
    for name, limit, both_ways in (("seconds", SECONDS_LIMIT, True), ("error", ERROR_LIMIT, False)):
        values = [getattr(point, name) for point in spread]
        for jump in (*neighbors(points, name), *steps(k, values), *bumps(k, values)):
            if jump.factor > limit or (both_ways and jump.factor < 1.0 / limit):
                found.append(f"{points[0].data_set}, {jump.where}: {name} × {jump.factor:.3f}")
    return found


def largest(points: Sequence[Point]) -> list[str]:
    """The largest ratios of neighbours of one data set, in words, whatever they are."""
    said = []
    for name in ("seconds", "error"):
        found = neighbors(points, name)
        for of, jump in (("largest", max), ("smallest", min)):
            if found:
                one = jump(found, key=lambda each: each.factor)
                said.append(f"{points[0].data_set}, {of} ratio of neighbours, {name}: × {one.factor:.3f} {one.where}")
    return said


def measure(
    name: str, rows: Rows, numbers: Sequence[int], rounds: int, threads: int, clock: Callable[[], float]
) -> list[Point]:
    """All k in turns, so that a disturbance of the machine hits neighbours alike; errors over all rows.

    Every round has a seed of its own: one start may take twice as long as another.
    """

    def fit(k: int, seed: int) -> tuple[float, KMeans]:
        model = KMeans(k, random_state=seed, n_threads=threads)
        began = clock()
        model.fit(rows.X, sample_weight=rows.weights)
        return clock() - began, model

    for k in {numbers[0], numbers[-1]}:  # kernels
        fit(k, 0)
    seconds, errors = np.empty((2, rounds, len(numbers)))
    total = rows.X.shape[0] if rows.weights is None else float(rows.weights.sum())
    for seed in range(rounds):
        for i, k in enumerate(numbers):
            seconds[seed, i], model = fit(k, seed)
            errors[seed, i] = -model.score(rows.X, sample_weight=rows.weights) / total
    typical = np.median(seconds, axis=0).tolist(), errors.mean(axis=0).tolist()
    return [Point(name, k, *figures) for k, *figures in zip(numbers, *typical, strict=True)]


def sample(rows: Rows, n_rows: int) -> Rows:
    """At most so many rows, drawn at random."""
    n = rows.X.shape[0]
    chosen = np.sort(np.random.default_rng(0).choice(n, min(n, n_rows), replace=False))
    return Rows(rows.X[chosen], None if rows.weights is None else rows.weights[chosen])


def draw(points: Sequence[Point], path: Path, source: str, unit: str) -> None:
    """Seconds and errors against k, a line per data set; errors against those of the first k."""
    figure, panels = new_panels(2, 5, 4)
    for index, name in enumerate(dict.fromkeys(point.data_set for point in points)):
        there = [point for point in points if point.data_set == name]
        k, first = [point.n_clusters for point in there], there[0].error or 1.0
        style = {"color": HUES[index % len(HUES)], "marker": "o", "markersize": 3, "linewidth": 1.2, "label": name}
        panels[0].plot(k, [point.seconds for point in there], **style)
        panels[1].plot(k, [point.error / first for point in there], **style)
    for panel, title in zip(panels, (f"{unit} of a fit", "error, that of the smallest k = 1"), strict=True):
        tidy(panel).set(xscale="log", yscale="log", xlabel="clusters k", title=title)
        panel.axvline(500, color="#9aa3ad", linewidth=0.8, linestyle=":")
    panels[0].legend(frameon=False)
    save(figure, path, source)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure, say the jumps, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(KNOWN), metavar="NAME")
    parser.add_argument("--k", nargs="+", type=int, help="in place of the grid and the turns", metavar="K")
    parser.add_argument("--max-rows", type=int, help="of every set; 100,000 of covtype and 50,000 of glove50 at most")
    parser.add_argument("--rounds", type=int, default=3, help="fits of each k, each from a seed of its own")
    parser.add_argument("--threads", type=int, help="2, or 1 where CPU seconds are counted")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds, which do not show what else is running")
    parser.add_argument("--output", type=Path, default=Path("bench-results/continuity.json"))
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    threads = options.threads or (1 if options.cpu else 2)
    clock, unit = (time.process_time, "CPU seconds") if options.cpu else (time.perf_counter, "seconds")
    machine, points = describe_machine(), list[Point]()
    grid = options.k or numbers_of_clusters()
    for name in options.sets:
        try:
            every = KNOWN[name]()
        except DataError as error:
            print(f"{name}: {error}")
            continue
        rows = sample(every, min(options.max_rows or 10**9, MOST_ROWS.get(name, 10**9)))
        pairs = [k + more for k in turns(*rows.X.shape) for more in (0, 1)]
        numbers = sorted(set(options.k or [*grid, *pairs]))
        there = measure(name, rows, numbers, options.rounds, threads, clock)
        for point in there:
            print(f"{name}, k = {point.n_clusters}: {point.seconds:.3g} {unit}, error {point.error:.6g}")
        points += there
        options.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": asdict(machine), "points": [asdict(point) for point in points]}, indent=0)
        write_whole(options.output, lambda file, text=text: file.write(text.encode()))
    if not points:
        raise SystemExit("none of the data sets was found")
    draw(points, options.picture, f"{machine.machine}; {threads} threads; {machine.commit[:7]}", unit)
    by_set = [[point for point in points if point.data_set == name] for name in options.sets]
    by_set = [there for there in by_set if there]
    print(*(line for there in by_set for line in largest(there)), sep="\n")
    print(*([line for there in by_set for line in jumps(there, grid)] or ["no jump in seconds or error"]), sep="\n")


if __name__ == "__main__":
    main()
