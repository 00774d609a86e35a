"""What more cores give: threads 1, 2, 4, 8, 16 × problems × programs, with the speed-up and a picture.

    python benchmarks/threads.py                              # everything that the machine has cores for; hours
    python benchmarks/threads.py --only "Lloyd 64" --threads 1 4 16
    python benchmarks/threads.py --scale 0.01 --rounds 1      # a hundredth of the rows
    python benchmarks/threads.py --minutes 4                  # what matters most, for as long as that
    python benchmarks/threads.py --minutes 0                  # table and picture of what is there, also of elsewhere

Every problem, program and number of threads has a process of its own, whose thread variables are set and which may run
on that many cores only, physical cores before the second threads of them. What is timed is in
`harness/threaded.py`. Results go to a JSON file after every run; runs that it has are not repeated.

With `--minutes`, kernels are compiled first, in processes side by side; then the machine itself (products, memory,
gathering: what tasks that share nothing gain is what anything can gain), fits, other estimators, predict and Lloyd;
ours run with one, half and all of the threads, peers and our other settings with all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from globular.machine import allowed_cores
from globular.plotting.history import GREY, HUES, pyplot, tidy
from harness.adapters import ADAPTERS, title
from harness.machine import describe_machine, process_environment
from harness.plots import new_panels, save
from harness.results import RunFile
from harness.threaded import PROBLEMS, ThreadProblem

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "threads.png"
THREADS = (1, 2, 4, 8, 16)
FIRST_FAMILIES = ("the machine itself", "KMeans, many clusters", "other estimators", "predict")
LINE_PER_PROBLEM = ("the machine itself", "other estimators")
"""Families of which the picture has a line for every problem."""
OURS = ("globular", "globular-balanced", "globular-lloyd")
"""Programs that a short measurement runs with several numbers of threads."""
COMPILED = 0.1
"""Share of the rows on which kernels are compiled: enough that nearly all of them are called."""
SLOWER = 1.05
"""More threads count as slower beyond this."""


@dataclass(frozen=True)
class ThreadRun:
    """One problem, program and number of threads; seconds are null where there was an error message instead."""

    problem: str
    program: str
    threads: int
    scale: float
    commit: str
    seconds: float | None = None
    error: float | None = None
    message: str = ""

    @property
    def key(self) -> tuple[str, str, int, float]:
        """What makes it another run."""
        return self.problem, self.program, self.threads, self.scale


def cores_in_order() -> list[int]:
    """Cores that this process may use, the first hardware thread of each before the second ones."""
    seen, firsts, seconds = set[str](), list[int](), list[int]()
    for core in sorted(os.sched_getaffinity(0)):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(core)
        (seconds if siblings in seen else firsts).append(core)
        seen.add(siblings)
    return firsts + seconds


def run_one(run: ThreadRun, rounds: int, timeout: float) -> ThreadRun:
    """Start the process and read its answer; whatever goes wrong is a message."""
    what = [run.problem, run.program, str(run.threads), str(run.scale), str(rounds)]
    cores = cores_in_order()[: run.threads]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.threaded", *what],
            env=process_environment(run.threads, tune_openblas="faiss" in run.program),
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if answer["seconds"] > 0.0:
            return ThreadRun(*run.key, run.commit, **answer)
        message = "too short to be timed: more iterations took no longer"
    except subprocess.TimeoutExpired:
        message = f"not done within {timeout:.0f} s"
    except (ValueError, IndexError):  # no answer
        message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
    return ThreadRun(*run.key, run.commit, message=message)


def compile_kernels(programs: Iterable[tuple[str, str]], deadline: float) -> None:
    """Run problems on a part of the rows, side by side, so that the numba cache has their kernels."""
    cores, left = allowed_cores(), deadline - time.monotonic()
    if left > 0.0:
        with ThreadPoolExecutor(cores) as pool:
            for problem, program in programs:
                pool.submit(run_one, ThreadRun(problem, program, cores, COMPILED, ""), 1, left)


def everything(threads: Sequence[int], scale: float, commit: str, chosen: Sequence[ThreadProblem]) -> list[ThreadRun]:
    """All problems, programs and numbers of threads."""
    return [
        ThreadRun(problem.name, program, n, scale, commit)
        for problem in chosen
        for n in threads
        for program in problem.programs
    ]


def most_important(
    threads: Sequence[int], scale: float, commit: str, chosen: Sequence[ThreadProblem]
) -> list[ThreadRun]:
    """What a short measurement runs, in that order; `threads` ascend."""
    few, families = sorted({threads[0], *threads[-2:]}), list(FIRST_FAMILIES)
    ranked = sorted(chosen, key=lambda each: families.index(each.family) if each.family in families else len(families))
    return [
        ThreadRun(problem.name, program, n, scale, commit)
        for problem in ranked
        for program in sorted(problem.programs, key=lambda name: name not in OURS)
        for n in (few if program in OURS else few[-1:])
    ]


def good_seconds(runs: Iterable[ThreadRun]) -> dict[tuple[str, str], dict[int, float]]:
    """Seconds by problem and program, and then by threads."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        if run.seconds is not None:
            found.setdefault((run.problem, run.program), {})[run.threads] = run.seconds
    return found


def results_table(runs: Sequence[ThreadRun]) -> Table:
    """A line per problem and program: the time with each number of threads, the speed-up, the last error."""
    seconds, threads = good_seconds(runs), sorted({run.threads for run in runs})
    table = Table(box=None)
    for name in ("problem", "program", "of a"):
        table.add_column(name)
    for name in (*(f"{n} threads" for n in threads), "speed-up", "error"):
        table.add_column(name, justify="right")
    for (problem, program), there in seconds.items():
        gain = f"{there[min(there)] / there[max(there)]:.1f}×" if len(there) > 1 else "–"
        errors = [run.error for run in runs if (run.problem, run.program) == (problem, program) and run.error]
        cells = [in_words(there[n]) if n in there else "–" for n in threads]
        last = f"{errors[-1]:.5g}" if errors else ""
        ours = "bold" if program.startswith("globular") else ""
        table.add_row(problem, program, PROBLEMS[problem].unit, *cells, gain, last, style=ours)
    return table


def in_words(seconds: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1e3 * seconds:.1f} ms"


def remarks(runs: Sequence[ThreadRun]) -> list[str]:
    """Where more threads are slower, and where a peer is faster with the same threads; fits with errors beside."""
    seconds = good_seconds(runs)
    errors = {(run.problem, run.program, run.threads): run.error for run in runs}
    found = []
    for (problem, program), there in seconds.items():
        ours, numbers = program.startswith("globular"), sorted(there)
        for fewer, more in pairwise(numbers):
            if ours and there[more] > SLOWER * there[fewer]:
                found.append(f"{problem}, {program}: {more} threads are slower than {fewer}")
        for name in () if ours else [name for other, name in seconds if other == problem and "globular" in name]:
            for n in sorted(there.keys() & seconds[problem, name].keys()):
                theirs, mine = errors[problem, program, n], errors[problem, name, n]
                better = theirs is None or mine is None or theirs < mine
                if there[n] < seconds[problem, name][n] and better:
                    ratio = seconds[problem, name][n] / there[n]
                    found.append(f"{problem}, {n} threads: {name} takes {ratio:.2f} × the time of {program}")
    return found


def draw(runs: Sequence[ThreadRun], path: Path, source: str) -> None:
    """Speed-up over one thread, a panel per family of problems, a line per program (the geometric mean of problems)."""
    seconds = {key: there for key, there in good_seconds(runs).items() if 1 in there and len(there) > 1}
    if not seconds:
        return
    families = list(dict.fromkeys(PROBLEMS[problem].family for problem, _ in seconds))
    figure, panels = new_panels(len(families), 4, 3.4)
    for panel, family in zip(panels, families, strict=True):
        lines: dict[str, list[dict[int, float]]] = {}
        for (problem, program), there in seconds.items():
            if PROBLEMS[problem].family == family:
                name = f"{problem}, {program}" if family in LINE_PER_PROBLEM else program
                lines.setdefault(title(name), []).append({n: there[1] / there[n] for n in there})
        most = max(max(gains) for some in lines.values() for gains in some)
        tidy(panel).plot([1, most], [1, most], "--", color=GREY, linewidth=1)
        for index, (name, some) in enumerate(lines.items()):
            numbers = sorted(set.intersection(*(set(gains) for gains in some)))
            means = [math.exp(fmean(math.log(gains[n]) for gains in some)) for n in numbers]
            style = "-" if "globular" in name else ":"
            panel.plot(numbers, means, style, marker="o", markersize=4, color=HUES[index % len(HUES)], label=name)
        panel.set(xscale="log", yscale="log", title=family, xlabel="threads", ylabel="speed-up")
        ticks = sorted({run.threads for run in runs})
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(pyplot().FixedLocator(ticks))
            axis.set_major_formatter(pyplot().ScalarFormatter())
            axis.set_minor_locator(pyplot().NullLocator())
        panel.legend(frameon=False, fontsize=7)
    save(figure, path, source)


def is_there(program: str) -> bool:
    """Whether the library of a program is installed."""
    module = {"globular": "globular-lloyd", "sklearn": "sklearn-lloyd", "faiss": "faiss-kmeans"}.get(program, program)
    return ADAPTERS[module].is_installed()


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run what is missing, print and draw all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="problems whose name has this in it")
    parser.add_argument("--programs", default="", metavar="TEXT", help="programs whose name has this in it")
    parser.add_argument("--threads", nargs="+", type=int, default=list(THREADS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--rounds", type=int, default=3, help="the fastest counts")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of a process")
    parser.add_argument("--output", type=Path, default=Path("bench-results/threads.json"))
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--minutes", type=float, help="what matters most, until this time has passed")
    options = parser.parse_args(arguments)
    deadline = math.inf if options.minutes is None else time.monotonic() + 60.0 * options.minutes
    commit, file = describe_machine().commit, RunFile(options.output, ThreadRun)
    problems = [problem for problem in PROBLEMS.values() if options.only in problem.name]
    threads = sorted(n for n in options.threads if n <= allowed_cores())
    choose = everything if options.minutes is None else most_important
    wanted = [run for run in choose(threads, options.scale, commit, problems) if is_there(run.program)]
    wanted = [run for run in wanted if options.programs in run.program]
    missing = [run for run in wanted if not file.has(run)]
    if options.minutes is not None:
        ours = dict.fromkeys((run.problem, run.program) for run in missing if run.program in OURS)
        compile_kernels(ours, deadline)
    for at, run in enumerate(missing):
        left = deadline - time.monotonic()
        if left <= 0.0:
            print(f"no time was left for {len(missing) - at} of {len(wanted)} runs")
            break
        done = run_one(run, options.rounds, min(options.timeout, left))
        file.add(done)
        outcome = done.message if done.seconds is None else in_words(done.seconds)
        print(f"{run.problem}, {run.program}, threads {run.threads}: {outcome}", flush=True)
    names = {problem.name for problem in problems}
    found = [run for run in file.runs.values() if run.problem in names and options.programs in run.program]
    found = [run for run in found if run.scale == options.scale]
    Console(width=max(140, Console().width)).print(results_table(found))
    print("\n".join(remarks(found)))
    if found:
        draw(found, options.picture, f"{file.machine}; {found[-1].commit[:7]}")


if __name__ == "__main__":
    main()
