"""Seconds, inertia and peak memory of the README's problems before and after a change, side by side.

    python benchmarks/before_and_after.py BEFORE/src AFTER/src
    python benchmarks/before_and_after.py BEFORE/src AFTER/src --problems mnist-1000,birch-4096 --rounds 5
    python benchmarks/before_and_after.py BEFORE/src AFTER/src --qualities fast,balanced,best

One process for each checkout stays for all rounds of a problem; they get the same job in turn, the order changing from
round to round, so what else happens on the machine meets both. A fit of some rows comes first and is not timed. The
fastest round of each side counts. Memory is that of a fresh process for each side, which loads the rows and fits once.
Real data are looked for in GLOBULAR_DATA (else `../shared/data`); a problem without its file is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.machine import peak_memory_mib, process_environment

THREADS = 2
WORK = (sys.executable, __file__, "--work")
README_PROBLEMS = (
    "mnist-1000", "kddbio-2000", "glove50-2000", "glove50-10000", "covtype-5000", "sift-4096", "birch-4096",
    "sift-20000", "birch-102400",
)  # fmt: skip
WARM_UP_ROWS = 8_192
"""Enough for as many clusters as bring the kernels of the timed fit into play."""
PAUSE_SECONDS = 0.3
"""Between two fits: the threads of BLAS look for more work for a while."""


# --- one side ------------------------------------------------------------------------------------------------------


def objective(model: Any) -> float:
    """What a fit has come to: the inertia of centres, the bound of a mixture."""
    return float(model.inertia_ if hasattr(model, "inertia_") else model.lower_bound_)


def work() -> None:
    """Answer jobs, one JSON object per line, until there are no more; the first one names the rows."""
    import globular

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    X: Any = None
    for line in sys.stdin:
        job = json.loads(line)
        make = partial(getattr(globular, job["estimator"]), random_state=0, n_threads=THREADS, **job["options"])
        if X is None:
            X = np.load(job["rows"])
            few = X[:WARM_UP_ROWS]
            make(min(job["n_clusters"], len(few) // 4), max_iter=3).fit(few)
        model = make(job["n_clusters"])
        began = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - began
        answer = {"seconds": seconds, "objective": objective(model), "peak_mib": peak_memory_mib()}
        print(json.dumps(answer), file=answers, flush=True)


class Side:
    """A resident process with the globular of one checkout, which answers each line of JSON with another."""

    def __init__(self, src: Path, command: Sequence[str] = WORK, n_threads: int = THREADS) -> None:
        self.src = src
        variables = process_environment(n_threads, tune_openblas=False)
        variables["PYTHONPATH"] = os.pathsep.join([str(src), variables["PYTHONPATH"]])
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, job: Any) -> Any:
        """Do one job and wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.src}: the process ended with status {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


# --- both sides ----------------------------------------------------------------------------------------------------


def in_turns(sources: list[Path], job: dict[str, Any], rounds: int) -> tuple[list[float], list[list[float]]]:
    """The fastest seconds of either side, and all objectives that it came to."""
    found: list[list[dict[str, float]]] = [[], []]
    with Side(sources[0]) as before, Side(sources[1]) as after:
        turns = [(0, before), (1, after)]
        for number in range(rounds):
            for place, side in turns[:: 1 if number % 2 == 0 else -1]:
                time.sleep(PAUSE_SECONDS)
                found[place].append(side.run(job))
    best = [min(answer["seconds"] for answer in answers) for answers in found]
    return best, [sorted({answer["objective"] for answer in answers}) for answers in found]


def peaks(sources: list[Path], job: dict[str, Any]) -> list[float]:
    """Peak memory of a fresh process for either side, which loads the rows and fits once."""
    found = []
    for src in sources:
        with Side(src) as side:
            found.append(side.run(job)["peak_mib"])
    return found


def difference(objectives: list[list[float]]) -> str:
    """Of what the two sides came to, relative to the first."""
    before, after = objectives
    return "identical" if before == after else f"{(after[0] - before[0]) / abs(before[0]):+.2e}"


def measure(sources: list[Path], job: dict[str, Any], rounds: int) -> str:
    """One line about one problem."""
    memory = peaks(sources, job)
    best, objectives = in_turns(sources, job, rounds)
    return (
        f"{best[0]:9.3f} {best[1]:9.3f} {best[1] / best[0]:7.3f}  {difference(objectives):<10}"
        f" {memory[0]:9.0f} {memory[1]:9.0f} {memory[1] / memory[0]:7.3f}"
    )


def main() -> None:
    """Parse the command line, make the rows of each problem once, and measure."""
    if sys.argv[1:] == ["--work"]:
        work()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, type=Path, metavar="SRC", help="the src folders before and after")
    parser.add_argument("--problems", default=",".join(README_PROBLEMS), help="names with commas between them")
    parser.add_argument("--qualities", default="balanced", help="of fast, balanced and best, with commas between them")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sources = [src.resolve() for src in options.sources]
    sys.path.insert(0, str(sources[1]))
    from globular.errors import DataError
    from harness.data import PROBLEMS  # of generated rows, the sources after the change decide

    print(f"{'':<28}{'before s':>9} {'after s':>9} {'ratio':>7}  {'inertia':<10} {'MiB':>9} {'MiB':>9} {'ratio':>7}")
    for name in options.problems.split(","):
        problem = PROBLEMS[name]
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder) / "rows.npy"
            try:
                np.save(rows, problem.load())
            except DataError as error:
                print(f"{name:<28}left out: {error}")
                continue
            for quality in options.qualities.split(","):
                job = {
                    "rows": str(rows), "n_clusters": problem.n_clusters, "estimator": "KMeans",
                    "options": {"quality": quality},
                }  # fmt: skip
                title = name if quality == "balanced" else f"{name}, {quality}"
                print(f"{title:<28}{measure(sources, job, options.rounds)}", flush=True)


if __name__ == "__main__":
    main()
