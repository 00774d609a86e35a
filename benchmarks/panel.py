"""The panel of `ablation.py`, README's problems and few clusters with two states of the library: seconds and errors.

    python benchmarks/panel.py BEFORE/src AFTER/src
    python benchmarks/panel.py BEFORE/src AFTER/src --groups panel --only covtype --seeds 1
    python benchmarks/panel.py BEFORE/src AFTER/src --groups wide --threads 16

Each side has a process with the rows of a problem; fits with the same seed take turns, and which side begins changes
from seed to seed. Problems run side by side where there are cores for more than one. The table has geometric means over
seeds, of after ÷ before; a line of JSON for each pair of fits goes to the file that `--out` names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from statistics import fmean
from typing import Any

FEW_SETS = ("covtype", "shuttle", "skin", "uber_nyc", "geonames", "newsgroups20", "groups-overlapping")
FEW = (2, 16, 100, 400)
QUALITIES = ("fast", "balanced", "best")
WIDE = (
    "one normal k=256",
    "sift k=4,096",
    "groups k=20,000",
    "chunky",
    "infinite: 200,000",
    "truncated: 8",
    "batches: m",
)
"""Problems of the panel that show what many threads are worth."""


def problems(group: str) -> list[Any]:
    """The problems of a group."""
    from ablation import PANEL, Problem
    from before_and_after import README_PROBLEMS
    from harness.data import PROBLEMS, SETS

    def few(name: str, k: int) -> Problem:
        def weights() -> Any:
            return SETS[name]().weights

        return Problem(f"{name} k={k}", "KMeans", k, 1, lambda: SETS[name]().X, {}, weights)

    def readme(name: str, quality: str) -> Problem:
        problem = PROBLEMS[name]
        return Problem(f"{name}, {quality}", "KMeans", problem.n_clusters, 1, problem.load, {"quality": quality})

    match group:
        case "panel":
            return list(PANEL)
        case "wide":
            return [problem for problem in PANEL if problem.name.startswith(WIDE)]
        case "few":
            return [few(name, k) for name in FEW_SETS for k in FEW]
        case "readme":
            return [readme(name, quality) for name in README_PROBLEMS for quality in QUALITIES]
    raise SystemExit(f"no group {group!r}")


def work(group: str, name: str, n_threads: int) -> None:
    """Fit with each seed that comes, and answer with seconds, distances and error."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    from ablation import fit

    problem = next(each for each in problems(group) if each.name == name)
    X, weights = problem.make(), None if problem.weights is None else problem.weights()
    fit(problem, X, weights, 0, n_threads, None)  # compiles what has to be, and draws the rows into memory
    for line in sys.stdin:
        seed = json.loads(line)  # none: it is enough to be ready
        answer = None if seed is None else fit(problem, X, weights, seed, n_threads, None)
        print(json.dumps(answer), file=answers, flush=True)


def measure(
    sources: list[str], seeds: int, deadline: float, seats: Queue[list[int]], job: tuple[str, str]
) -> list[Any]:
    """Pairs of answers of a problem, as long as there is time."""
    from before_and_after import Side

    cores, found = seats.get(), []
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "--work", *job, str(len(cores))]
    try:
        sides = [Side(Path(src), command, len(cores)) for src in sources] if time.time() < deadline else []
        watch = threading.Timer(max(0.0, deadline - time.time()), lambda: [side.end() for side in sides])
        watch.start()
        try:
            for side in sides:
                side.run(None)
            for seed in range(seeds if sides else 0):
                pair = [None, None]
                for place in (0, 1) if seed % 2 == 0 else (1, 0):
                    pair[place] = sides[place].run(seed)
                found.append(pair)
        except (SystemExit, OSError) as error:
            print(f"{job[1]}: {error}", file=sys.stderr)
        finally:
            watch.cancel()
            for side in sides:
                side.end()
    finally:
        seats.put(cores)
    return found


def ratio(pairs: list[Any], place: int) -> float:
    """The geometric mean of after ÷ before; 0: seconds, 1: distances, 2: error."""
    return math.exp(fmean(math.log(max(after[place], 1e-12) / max(before[place], 1e-12)) for before, after in pairs))


def show(group: str, found: dict[str, list[Any]]) -> None:
    """Print the table of a group."""
    print(f"\n{group:<40}{'before s':>10}{'after s':>10}{'time':>8}{'distances':>11}{'error':>10}  pairs")
    rows = {name: [ratio(pairs, place) for place in range(3)] for name, pairs in found.items() if pairs}
    for name, (seconds, distances, error) in rows.items():
        fastest = [min(pair[side][0] for pair in found[name]) for side in range(2)]
        print(
            f"{name:<40}{fastest[0]:10.3f}{fastest[1]:10.3f}{seconds:8.3f}{distances:11.3f}"
            f"{100 * (error - 1):+9.3f}%{len(found[name]):7d}"
        )
    means = [math.exp(fmean(math.log(row[place]) for row in rows.values())) for place in range(3)]
    print(
        f"{'geometric mean':<60}{means[0]:8.3f}{means[1]:11.3f}{100 * (means[2] - 1):+9.3f}%{len(rows):7d}", flush=True
    )


def main() -> None:
    """Parse the command line, measure, and print tables."""
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, metavar="SRC", help="the src folders before and after")
    parser.add_argument("--groups", default="panel", help="of panel, readme, few and wide, with commas between them")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of each fit")
    parser.add_argument("--minutes", type=float, default=600.0, help="what is not done by then is left out")
    parser.add_argument("--out", type=Path, help="a file to which lines of JSON are added")
    options = parser.parse_args()
    sources = [str(Path(src).resolve()) for src in options.sources]
    sys.path.insert(0, sources[1])
    cores = sorted(os.sched_getaffinity(0))
    seats: Queue[list[int]] = Queue()
    for at in range(0, max(len(cores) - options.threads + 1, 1), options.threads):
        seats.put(cores[at : at + options.threads])
    deadline = time.time() + 60.0 * options.minutes
    for group in options.groups.split(","):
        names = [problem.name for problem in problems(group) if options.only in problem.name]
        with ThreadPoolExecutor(seats.qsize()) as pool:
            task = partial(measure, sources, options.seeds, deadline, seats)
            found = dict(zip(names, pool.map(task, [(group, name) for name in names]), strict=True))
        if options.out:
            with options.out.open("a") as file:
                file.writelines(json.dumps([group, name, *pair]) + "\n" for name in names for pair in found[name])
        if any(found.values()):
            show(group, found)


if __name__ == "__main__":
    main()
