"""Run problems × adapters and write results.csv, table.md and curve.png; by default all of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import readme  # beside this file
from globular.benchmarking.adapters import ADAPTERS
from globular.benchmarking.problems import PROBLEMS
from globular.benchmarking.run import run_benchmark


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="*", default=[], choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--adapters", nargs="*", default=[], choices=list(ADAPTERS), metavar="NAME")
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 10, 25])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds per run")
    parser.add_argument("--same-start", action="store_true", help="same random rows for all that take a start")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    parser.add_argument("--readme", action="store_true", help="keep the results and write the README's table anew")
    options = parser.parse_args()
    results = run_benchmark(
        options.problems,
        options.adapters,
        threads=options.threads,
        repeats=options.repeats,
        n_iter=options.iterations,
        output=options.output,
        progress=print,
        timeout=options.timeout,
        same_start=options.same_start,
    )
    print(f"written: {results}")
    if options.readme:
        readme.write(readme.keep([results]))


if __name__ == "__main__":
    main()
